"""`make gsm8k`: from rows in GSM8K's published layout to four curves, with a tiny model that knows the tags."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import pytest

import olmorl
from tests.end_to_end.launching import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]
OPTIONS = """
--model.dtype float32 --schedule.steps 4 --schedule.prompts_per_step 4 --sampling.max_tokens 64
--data.max_prompt_tokens 760 --actors.max_running 32 --actors.kv_cache_gib 0.25 --actors.enforce_eager true
--learner.zero_stage 1 --learner.learning_rate 1e-3
"""


class Shopping(NamedTuple):
    """A problem of the layout, and answers with and without all tags, right or wrong."""

    first: int
    second: int

    @property
    def question(self) -> str:
        return f"Ann has {self.first} pens and buys {self.second}. How many pens does she have?"

    @property
    def ground_truth(self) -> str:
        return str(self.first + self.second)

    @property
    def dataset(self) -> str:
        return "math"

    def work_out(self, careful: bool) -> str:
        answer = self.ground_truth if careful else str(random.Random(self.question).randrange(2, 10))
        return f"<think>\nadd\n</think>\n<answer>\n{answer}\n</answer>" if careful else f"<answer>\n{answer}\n</answer>"


def problems() -> Iterator[Shopping]:
    rng = random.Random(0)
    while True:
        yield Shopping(rng.randrange(1, 5), rng.randrange(1, 5))


def model_folder(folder: Path) -> Path:
    from olmorl.deploy.demo.settings import ModelSize, WarmStart
    from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer, warm_start

    tokenizer = build_tokenizer(1024)
    model = build_model(ModelSize(hidden=64, intermediate=192, heads=2), tokenizer, seed=0)
    warm_start(model, tokenizer, problems(), WarmStart(steps=100, batch=8, careful_share=0.5), 0, lambda *_: None)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_one_command_leads_from_raw_rows_to_four_curves(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    rows = [{"question": f"{n}. {one.question}", "answer": f"It is <<{one.first}+{one.second}={one.ground_truth}>>"
             f"{one.ground_truth}{' pens' * (60 * (n % 10 == 9))}.\n#### {one.ground_truth}"}
            for n, one in zip(range(60), problems(), strict=False)]  # fmt: skip
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"INPUT={raw}", f"MODEL={model}", f"RUNS={tmp_path}/runs", f"OPTIONS={' '.join(OPTIONS.split())}"]
    command = ["make", "gsm8k", "READY=", f"BIN={Path(sys.executable).parent}", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "53 rows; 0 repeated, 6 over-long and 0 unusable ones left out" in done.stdout, "one is the example"
    tables = olmorl.read_run(tmp_path / "runs" / "gsm8k")
    answers = [row for row in tables.answers.to_pylist() if row["evaluation"] is None]
    for row in answers:
        verdicts = {name: verdict["reward"] for name, verdict in json.loads(row["verdicts"]).items()}
        assert row["reward"] == pytest.approx(0.5 * verdicts["format"] + 0.5 * verdicts["tag_count"] + verdicts["math"])
        text = row["text"]
        tags = sum(text.count(tag) == 1 for tag in ("<think>", "</think>", "<answer>", "</answer>"))
        assert verdicts["tag_count"] == tags / 4
    (system, question, shown, _) = json.loads(answers[0]["prompt"])
    assert "<think>" in system["content"] and question["content"] == rows[0]["question"]
    assert shown["content"].startswith("<think>\nIt is ") and "<<" not in shown["content"]
    for line in tables.metrics.to_pylist():
        scored = [row for row in answers if row["filed"] == line["step"]]
        assert line["reward_mean"] == pytest.approx(fmean(row["reward"] for row in scored))
        assert line["reward_mean"] == pytest.approx(
            0.5 * line["reward_format_mean"] + 0.5 * line["reward_tag_count_mean"] + line["reward_math_mean"]
        )
    assert len({row["reward"] for row in answers}) > 2, "it is a policy that learns something"
    assert (tmp_path / "runs" / "gsm8k.png").stat().st_size > 10_000
