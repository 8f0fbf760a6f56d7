"""`olmorl-eval` with vLLM: a model folder, and a checkpoint of a run whose weights are the folder's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from olmorl import config
from olmorl.actors.vllm_engine.arguments import sampling_params
from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer
from olmorl.deploy.evaluation.cli import main
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.learner.trainer import model as models
from olmorl.ports import Sampling
from tests.learner.trainer.test_export import write

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


def run_of(folder: Path, path: str) -> Path:
    """A run with a complete checkpoint of step 4, of unchanged weights."""
    settings = config.build({"run": {"directory": folder}, "model": {"path": path, "dtype": "float32"}})
    settings.run_dir.mkdir()
    (settings.run_dir / "config.toml").write_text(config.to_toml(settings))
    loaded = models.load(settings.model, "auto", torch.device("cpu"))
    checkpoints = settings.run_dir / "checkpoints"
    weights = {name: weight.detach() for name, weight in loaded.named_parameters()}
    write(checkpoint_dir.shares_of(checkpoints, 4, 1), weights, world=2)
    part = Part(step=4, incarnation=1, ledger_incarnation=1, ledger_bytes=0)
    checkpoint_dir.complete(checkpoints, part, LedgerState())
    return settings.run_dir


def test_the_nucleus_reaches_vllm() -> None:
    assert sampling_params(Sampling(max_tokens=4, top_p=0.5)).top_p == 0.5
    assert sampling_params(Sampling(max_tokens=4)).top_p == 1.0


def test_a_checkpoint_answers_as_the_folder_with_its_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model")
    tokenizer = build_tokenizer(256)
    build_model(ModelSize(hidden=64, intermediate=64, layers=2, heads=2, max_tokens=256), tokenizer, 0).save_pretrained(
        model
    )
    tokenizer.save_pretrained(model)
    run = run_of(tmp_path, model)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n}?", "ground_truth": "1", "dataset": "math"}) + "\n" for n in "abc")
    )
    out = tmp_path / "answers.jsonl"
    words = [model, f"{run}/checkpoints/step_4", str(rows), "-o", str(out), "--samples", "3", "--temperature", "1",
             "--top-p", "0.9", "--max-tokens", "12", "--model.dtype", "float32", "--data.max_prompt_tokens", "32",
             "--actors.kv_cache_gib", "0.1", "--actors.enforce_eager", "true", "--actors.max_running", "4"]  # fmt: skip
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in found["models"]] == [model, f"{run}@4"]
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {name: [row["completion_ids"] for row in answers if row["model"] == name] for name in (model, f"{run}@4")}
    assert len(texts[model]) == 9 and texts[model] == texts[f"{run}@4"]
    assert len({tuple(tokens) for tokens in texts[model]}) > 6, "samples of one prompt differ"
    assert all(0 < len(row["completion_ids"]) <= 12 for row in answers)
    # What is there is not sampled again.
    assert main([*words, "--json", "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == found["models"]
