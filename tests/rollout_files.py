"""Files of `rollouts/` that tests make from others."""

from pathlib import Path

import zstandard

from olmorl.learner.storage import rollout_log, rollout_record, sealed_records


def copy(source: Path, target: Path) -> None:
    """Writes the records of one file as another file, under its name."""
    write(list(rollout_log.read(source, bytes)), target)


def write(lines: list[bytes], target: Path) -> None:
    """Writes records, each a line of JSON, as a file."""
    frame = zstandard.compress(b"\n".join(lines))
    target.write_bytes(sealed_records.header(frame, rollout_record.name_of(target)) + frame)
    if "partial" not in target.name:
        with target.open("ab") as file:
            file.write(sealed_records.end(target.stat().st_size))
