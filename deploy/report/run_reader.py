"""Reads a run directory into the parts of a report.

A run that is dead, running or half-written is read as far as it goes.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from olmorl.deploy.report import rollouts
from olmorl.deploy.report.columns import Blob, blob, json_blob
from olmorl.deploy.report.rollouts import OUTCOMES, FileRollouts, MaskRule, SourceCounts
from olmorl.deploy.report.timeline import timeline
from olmorl.deploy.report.token_pieces import TokenPieces, read_pieces
from olmorl.deploy.view.curves import evaluation_points, sections
from olmorl.deploy.view.run_state import has_launcher, last_end, metric_lines, no_step_yet
from olmorl.errors import DataError, ResourceError
from olmorl.learner.storage import ledger, rollout_log
from olmorl.learner.storage.ledger_state import Line, Start, Started, Trained
from olmorl.learner.storage.metrics_log import missing_steps
from olmorl.metrics import meaning, of_evaluation
from olmorl.run_dir import RunFiles

_LEFT_BY_RUNS = ("config.toml", "metrics.jsonl", "ledger", "rollouts", "process_events.jsonl")
_SHOWN_SETTINGS = (
    "model.path", "objective.preset", "objective.rho", "sampling.group_size", "sampling.max_tokens",
    "sampling.temperature", "schedule.steps", "schedule.prompts_per_step", "schedule.max_lag", "schedule.over_age",
    "learner.learning_rate", "run.seed", "run.mode",
)  # fmt: skip


class RunReader:
    """Reads one run, and again when it has grown. A file that has not changed is read once."""

    def __init__(self, run_dir: Path, most_bytes: int, tokenizer: Path | None = None) -> None:
        """`most_bytes` is about the size of the rollouts in the report; with more, every n-th group is kept.

        Raises:
            DataError: the folder holds no run.
        """
        self.run_dir = run_dir
        if not run_dir.is_dir():
            raise DataError(f"{run_dir}: no such folder; give the folder of a run, such as runs/demo")
        if not any((run_dir / name).exists() for name in _LEFT_BY_RUNS):
            raise DataError(f"{run_dir}: no run directory; runs are made under run.directory (default: runs/)")
        self._most_bytes = most_bytes
        self._tokenizer = tokenizer
        self._files: dict[tuple[Any, ...], FileRollouts] = {}

    @property
    def signature(self) -> tuple[Any, ...]:
        """Changes when the run has grown, or has lost its launcher."""
        files = RunFiles(self.run_dir)
        watched = [files.metrics, files.process_events, *rollout_log.files(files.rollouts)]
        return (has_launcher(self.run_dir), *((path.name, *_stamp(path)) for path in watched))

    def read(self) -> tuple[dict[str, Any], list[Blob]]:
        """The run's entry in the manifest, and all its parts.

        Raises:
            DataError: nothing has happened in the run yet.
            ResourceError: a metrics line is damaged.
        """
        notes: list[str] = []
        settings = _settings(self.run_dir, notes)
        lines = metric_lines(self.run_dir)
        if missing := missing_steps(lines):
            notes.append(f"{RunFiles(self.run_dir).metrics}: {missing}")
        events = _ledger_events(self.run_dir, notes)
        files, stride = self._read_rollouts(settings, events, notes)
        num_groups = sum(file.num_groups for file in files)
        if not lines and not num_groups:
            raise DataError(no_step_yet(self.run_dir))
        index = blob(rollouts.index(files))
        about = json_blob(
            {
                "name": self.run_dir.resolve().name,
                "folder": str(self.run_dir.resolve()),
                "state": _state(self.run_dir),
                "settings": {key: _lookup(settings, key) for key in _SHOWN_SETTINGS},
                "notes": notes,
                "lines": (columns := _columns(lines)),
                "sections": sections(list(columns)),
                "evaluations": {name: evaluation_points(lines, name) for name in of_evaluation(columns)},
                "meanings": {name: found for name in columns if (found := meaning(name))},
                "sources": _sources(files),
                "causes": _causes(files),
                "tokens": _tokens(files),
                "timeline": timeline(self.run_dir, events, lines),
                "rollouts": {
                    "groups": num_groups,
                    "completions": sum(file.num_completions for file in files),
                    "stride": stride,
                },
            }
        )
        chunks = [chunk for file in files for chunk in file.chunks]
        entry = {"about": about.name, "index": index.name, "chunks": [[t.name, k.name] for t, k in chunks]}
        return entry, [about, index, *(part for chunk in chunks for part in chunk)]

    def _read_rollouts(
        self, settings: Mapping[str, Any], events: Sequence[Line], notes: list[str]
    ) -> tuple[list[FileRollouts], int]:
        folder = RunFiles(self.run_dir).rollouts
        paths = rollout_log.files(folder)
        stride = rollouts.stride_for(folder, self._most_bytes)
        starts = [Start(e.incarnation, e.step, e.replay_to) for e in events if isinstance(e, Started)]
        masks_truncated = bool(_lookup(settings, "objective.mask_truncated"))
        max_lag = _lookup(settings, "schedule.max_lag")
        rule = MaskRule(1 << 30 if max_lag is None else max_lag, masks_truncated, starts)
        pieces = self._pieces(settings, notes) if paths else None
        known, self._files = self._files, {}
        for path in paths:
            key = (path, *_stamp(path), len(starts), stride, pieces is None)
            self._files[key] = known.get(key) or rollouts.read_file(path, rule, pieces, stride)
        found = list(self._files.values())
        notes += [file.note for file in found if file.note]
        return found, stride

    def _pieces(self, settings: Mapping[str, Any], notes: list[str]) -> TokenPieces | None:
        """The tokenizer of the run. Without it the browser has the texts, and no text of single tokens."""
        places = list(_tokenizers(self.run_dir, str(_lookup(settings, "model.path") or "")))
        if self._tokenizer is not None:
            places = [self._tokenizer / "tokenizer.json" if self._tokenizer.is_dir() else self._tokenizer]
        for place in places:
            if pieces := read_pieces(place):
                return pieces
        if self._tokenizer is not None:
            raise DataError(f"{places[0]}: no tokenizer.json of a kind that can be read; give the model's folder")
        if _lookup(settings, "run.mode") != "simulated":
            notes.append("tokens are not shown one by one: no tokenizer.json was found; give its folder (--tokenizer)")
        return None


def _tokenizers(run_dir: Path, model: str) -> Iterator[Path]:
    yield RunFiles(run_dir).export / "tokenizer.json"
    if not model:
        return
    yield Path(model) / "tokenizer.json"
    with suppress(ImportError, ValueError, OSError):
        from huggingface_hub import try_to_load_from_cache

        if isinstance(cached := try_to_load_from_cache(model, "tokenizer.json"), str):
            yield Path(cached)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)


def _settings(run_dir: Path, notes: list[str]) -> dict[str, Any]:
    path = RunFiles(run_dir).config
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append(f"{path} is missing: settings are not shown")
    except (OSError, ValueError) as error:
        notes.append(f"{path}: not read: {error}")
    return {}


def _lookup(settings: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    found = settings.get(section)
    return found.get(name) if isinstance(found, dict) else None


def _ledger_events(run_dir: Path, notes: list[str]) -> list[Line]:
    """The starts and the trained steps."""
    try:
        return [event for event in ledger.history(run_dir) if isinstance(event, Started | Trained)]
    except (ResourceError, OSError) as error:
        notes.append(f"no times of steps: {error}")
        return []


def _state(run_dir: Path) -> str:
    if end := last_end(run_dir):
        return end.partition(": ")[2]
    if has_launcher(run_dir):
        return "running"
    return f"not running; it goes on with olmorl-launch --resume; why it stopped is in {run_dir / 'logs'}"


def _columns(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The metric lines by field; None where a line lacks it. Evaluations are one field among the others."""
    names = dict.fromkeys(name for line in lines for name in line)
    return {name: [line.get(name) for line in lines] for name in names}


def _sources(files: Sequence[FileRollouts]) -> list[dict[str, Any]]:
    """For each data source the counts of its scored groups, and its groups by outcome."""
    scored: dict[str, SourceCounts] = {}
    outcomes: dict[str, dict[str, int]] = {}
    for file in files:
        for (source, outcome), tally in file.tallies.items():
            # As in the metrics: a failed group has no score.
            scored[source] = scored.get(source, SourceCounts()) + (tally if outcome != "failed" else SourceCounts())
            outcomes.setdefault(source, dict.fromkeys(OUTCOMES, 0))[outcome] += tally.groups
    return [{"source": source, "scored": scored[source], "outcomes": outcomes[source]} for source in sorted(scored)]


def _causes(files: Sequence[FileRollouts]) -> list[list[Any]]:
    """Outcome, cause and number of groups, the most frequent first."""
    found = sum((file.causes for file in files), start=Counter[tuple[str, str]]())
    return [[outcome, cause, number] for (outcome, cause), number in sorted(found.items(), key=lambda each: -each[1])]


def _tokens(files: Sequence[FileRollouts]) -> dict[str, int]:
    """Recorded completion tokens by outcome."""
    tokens = dict.fromkeys(OUTCOMES, 0)
    for file in files:
        for (_, outcome), tally in file.tallies.items():
            tokens[outcome] += tally.tokens
    return tokens
