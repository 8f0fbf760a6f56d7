"""`olmorl-eval` with vLLM: a folder, an export, a checkpoint and a hub model of the same weights, in one table."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from olmorl import config
from olmorl.actors.vllm_engine.arguments import sampling_params
from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.export import export
from olmorl.ports import Sampling
from olmorl.run_dir import RunFiles
from tests.learner.trainer.test_export import write

ROOT = Path(__file__).resolve().parents[3]
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


def test_an_export_a_checkpoint_and_a_model_of_the_hub_answer_as_the_folder_with_their_weights(tmp_path: Path) -> None:
    model = str(tmp_path / "model")
    tokenizer = build_tokenizer(256)
    build_model(ModelSize(hidden=64, intermediate=64, layers=2, heads=2, max_tokens=256), tokenizer, 0).save_pretrained(
        model
    )
    tokenizer.save_pretrained(model)
    run = run_of(tmp_path, model)
    export(run, 4, RunFiles(run).export)
    cached = tmp_path / "home" / "hub" / "models--org--tiny"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    shutil.copytree(model, cached / "snapshots" / ("0" * 40))
    rows, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{n}?", "ground_truth": "1", "dataset": "math"}) + "\n" for n in "abc")
    )
    models = [model, f"{run}/checkpoints/step_4", f"{run}/export", "org/tiny"]
    names = [model, f"{run}@4", f"{run}/export", "org/tiny"]
    words = [*models, str(rows), "-o", str(out), "--samples", "3", "--temperature", "1",
             "--top-p", "0.9", "--max-tokens", "12", "--model.dtype", "float32", "--data.max_prompt_tokens", "32",
             "--actors.kv_cache_gib", "0.1", "--actors.enforce_eager", "true", "--actors.max_running", "4",
             "--json"]  # fmt: skip

    def evaluated(*more: str) -> dict[str, Any]:
        environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "olmorl.deploy.evaluation.cli", *words, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=800, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    found = evaluated()
    assert [one["model"] for one in found["models"]] == names
    assert [(one["model"], one["minus"]) for one in found["differences"]] == [(name, model) for name in names[1:]]
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    texts = {name: [row["completion_ids"] for row in answers if row["model"] == name] for name in names}
    assert len(texts[model]) == 9 and all(texts[name] == texts[model] for name in names)
    assert len({tuple(tokens) for tokens in texts[model]}) > 6, "samples of one prompt differ"
    assert all(0 < len(row["completion_ids"]) <= 12 for row in answers)
    # What is there is not sampled again.
    assert evaluated("--resume")["models"] == found["models"]
