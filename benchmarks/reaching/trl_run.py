"""Runs of TRL's GRPOTrainer in an environment of its own, with the model, data and learning rate of the service."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from accuracy.packages import Scratch

from olmorl.config import Config
from reaching.timed_run import StopRule, TimedRun, watch

TRL = "1.16.0"
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("trl_script.py")
TIMEOUT_S = 900.0
SHARED = ("torch", "transformers", "numpy", "msgspec", "pydantic", "python-flint")
"""Packages that TRL gets in the service's version."""
SETTINGS: Mapping[str, Any] = {"threads": 2, "micro_batch": 96, "scale_rewards": "none", "more": {}}
"""The fastest settings here."""


def environment(scratch: Path) -> Path:
    """The Python of TRL's environment. Raises ResourceError if it cannot be installed."""
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in SHARED]
    return Scratch(scratch).environment(f"trl=={TRL}", *shared)


def run(python: Path, settings: Config, folder: Path, seed: int, keys: Mapping[str, Any], rule: StopRule) -> TimedRun:
    """Train until the rule ends the run."""
    chosen = {**SETTINGS, **keys}
    path = folder / "settings.json"
    path.write_text(json.dumps(_given(settings, folder, seed) | chosen, indent=1), encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(chosen["threads"]), "CUDA_VISIBLE_DEVICES": ""}
    lines = folder / "steps.jsonl"
    launched_at = watch(
        [str(python), str(SCRIPT), str(path)],
        {**environment, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"},
        folder / "output.log",
        lambda: [line["reward"] for line in _lines(lines)[1:]],
        rule,
        TIMEOUT_S,
    )
    start, *steps = _lines(lines)
    samples = settings.schedule.prompts_per_step * settings.sampling.group_size
    took_s = [after["at"] - before["at"] for before, after in pairwise([start, *steps])]
    useful = [samples * line["tokens"] * (1 - line["useless"]) for line in steps]
    return TimedRun(
        start_s=start["at"] - launched_at,
        seconds=[line["at"] - start["at"] for line in steps],
        rewards=[line["reward"] for line in steps],
        more={
            "useless": [line["useless"] for line in steps],
            "tokens": [line["tokens"] for line in steps],
            "useful_tokens_per_s": [tokens / seconds for tokens, seconds in zip(useful, took_s, strict=True)],
        },
        weights=[folder / f"version_{line['step']}.safetensors" for line in steps],
    )


def _given(settings: Config, folder: Path, seed: int) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "model": settings.model.path,
        "train": settings.data.train[0],
        "seed": seed,
        "steps": settings.schedule.steps,
        "prompts": settings.schedule.prompts_per_step,
        "group": settings.sampling.group_size,
        "max_tokens": settings.sampling.max_tokens,
        "learner": settings.learner.model_dump(mode="json"),
    }


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"]
