"""Runs of the service: the demo's recipe with some keys changed, without evaluation, with a checkpoint at each step."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save_file

from olmorl import config
from olmorl.deploy.demo import demo
from olmorl.deploy.demo.settings import DemoSettings
from olmorl.learner.storage import checkpoint_dir, ledger, rollout_log
from olmorl.learner.storage.ledger_state import Trained
from olmorl.learner.trainer.checkpoint_shards import KINDS, Shares
from olmorl.run_dir import RunFiles
from reaching.timed_run import EndRule, TimedRun, watch

TIMEOUT_S = 900.0
TOLD = ("lag_mean", "learner_wait_s", "learner_step_s", "useful_tokens_per_s")


def recipe(base: config.Config, folder: Path, seed: int, keys: Mapping[str, Any]) -> config.Config:
    """The settings of a run. `base` is the demo's recipe with its paths filled in."""
    settings = base
    for key, value in {
        "run.directory": str(folder),
        "run.name": "run",
        "run.seed": seed,
        "checkpoint.every": 1,
        "checkpoint.keep": 200,
        **keys,
    }.items():
        settings = config.with_key(settings, key, value)
    return settings.model_copy(
        update={
            "model": settings.model.model_copy(update={"build": None}),
            "evaluation": settings.evaluation.model_copy(update={"data": []}),
        }
    )


def prepared(path: Path, scratch: Path, of: DemoSettings, keys: Mapping[str, Any]) -> config.Config:
    """The recipe at `path` with some keys changed, and with the model and data of a demo, which are made if missing."""
    settings = config.load(path)
    for key, value in {"run.directory": str(scratch), **keys}.items():
        settings = config.with_key(settings, key, value)
    demo.prepare(settings, lambda what, share: None, of)
    return demo.resolve(settings, of)


def lines_until(settings: config.Config, rule: EndRule) -> list[dict[str, Any]]:
    """The metric lines of a run. The rule gets the times of its steps and ends it."""
    metrics, folder = RunFiles(settings.run_dir).metrics, settings.run.directory
    _launch(settings, folder, lambda: [line["wall_s"] for line in _lines(metrics)], rule)
    return _lines(metrics)


def _launch(settings: config.Config, folder: Path, values: Callable[[], Sequence[float]], rule: EndRule) -> float:
    path = folder / "recipe.toml"
    path.write_text(config.to_toml(settings), encoding="utf-8")
    command = [sys.executable, "-m", "olmorl.deploy.launch", str(path)]
    return watch(command, {}, folder / "output.log", values, rule, TIMEOUT_S)


def run(settings: config.Config, rule: EndRule) -> TimedRun:
    """Train until the rule, given the mean rewards, ends the run."""
    files, folder = RunFiles(settings.run_dir), settings.run.directory
    launched_at = _launch(settings, folder, lambda: [line["reward_mean"] for line in _lines(files.metrics)], rule)
    lines = _lines(files.metrics)
    trained = {event.step: event.at or 0.0 for event in ledger.history(files.run_dir) if isinstance(event, Trained)}
    first = next(files.rollouts.glob("step_000001.*"))
    began_at = min(record["started_at"] for record in rollout_log.read(first))
    steps = range(1, len(lines) + 1)
    weights = [_weights(files.checkpoints, settings, step, folder / f"version_{step}.safetensors") for step in steps]
    shutil.rmtree(settings.run_dir)
    return TimedRun(
        start_s=began_at - launched_at,
        seconds=[trained[step] - began_at for step in steps],
        rewards=[line["reward_mean"] for line in lines],
        more={name: [line[name] for line in lines] for name in TOLD},
        weights=weights,
    )


def _lines(metrics: Path) -> list[dict[str, Any]]:
    if not metrics.exists():
        return []
    whole = metrics.read_bytes().rpartition(b"\n")[0]
    return [msgspec.json.decode(line) for line in whole.splitlines()]


def _weights(checkpoints: Path, settings: config.Config, step: int, target: Path) -> Path:
    """The master weights of a checkpoint as one file."""
    shares = Shares(checkpoint_dir.shares(checkpoints, step))
    shapes = _shapes(Path(settings.model.path))
    weights = {
        name: shares.read(KINDS[0], name, 0, numel).reshape(shapes[name]) for name, numel in shares.numels.items()
    }
    save_file(weights, target)
    return target


def _shapes(model: Path) -> dict[str, list[int]]:
    from safetensors import safe_open

    with safe_open(model / "model.safetensors", framework="pt") as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
