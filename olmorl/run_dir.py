"""Defines the paths of a run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFiles:
    """Has the path of every file and folder of one run. Creates no file."""

    run_dir: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.run_dir / "config.toml"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.run_dir / "logs"

    @property
    def ledger(self) -> Path:
        """Every draw and its outcome: one file for each incarnation."""
        return self.run_dir / "ledger"

    @property
    def journal(self) -> Path:
        """The groups of the steps since the last checkpoint."""
        return self.run_dir / "journal"

    @property
    def rollouts(self) -> Path:
        """Every group that was generated, the filtered ones included."""
        return self.run_dir / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """One folder for each checkpoint."""
        return self.run_dir / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One line for each step."""
        return self.run_dir / "metrics.jsonl"

    @property
    def tracking_id(self) -> Path:
        """The id of the run for trackers and traces."""
        return self.run_dir / "tracking_id"

    @property
    def evaluated(self) -> Path:
        """Evaluation results of the steps that are being replayed."""
        return self.run_dir / "evaluated.json"

    @property
    def process_events(self) -> Path:
        """Every start, state and end of a process, one a line."""
        return self.run_dir / "process_events.jsonl"

    @property
    def processes(self) -> Path:
        """The host and the id of each process."""
        return self.run_dir / "processes.json"

    @property
    def targets(self) -> Path:
        """Where each process serves its metrics."""
        return self.run_dir / "targets.json"

    @property
    def control(self) -> Path:
        """Where the launcher listens for commands, while it runs."""
        return self.run_dir / "control.json"

    @property
    def lock(self) -> Path:
        """The launcher that has the run."""
        return self.run_dir / ".lock"

    @property
    def starts(self) -> Path:
        """The configuration of each start."""
        return self.run_dir / "starts"

    @property
    def ended(self) -> Path:
        """Why the run is over, once it is."""
        return self.run_dir / "ended.txt"

    @property
    def redis(self) -> Path:
        """The append-only file of the run's own Redis."""
        return self.run_dir / "redis"

    @property
    def weights(self) -> Path:
        """Published versions, with `weights.store = "file"` on a cluster."""
        return self.run_dir / "weights"

    @property
    def tensorboard(self) -> Path:
        """The events of `telemetry.tracker = "tensorboard"`."""
        return self.run_dir / "tensorboard"

    @property
    def export(self) -> Path:
        """The finished policy as a Hugging Face folder."""
        return self.run_dir / "export"

    @property
    def exports(self) -> Path:
        """The policy after some of the steps (`checkpoint.export_every`)."""
        return self.run_dir / "exports"

    def export_of(self, step: int) -> Path:
        """The policy after a step as a Hugging Face folder."""
        return self.exports / f"step_{step}"

    def abandoned(self, incarnation: int) -> Path:
        """Folder to which this incarnation moves files that are no longer part of the history."""
        return self.run_dir / "abandoned" / f"{incarnation:06d}"
