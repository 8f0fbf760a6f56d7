"""Random bit flips and cuts over every file that a start, an actor or a reader trusts: each is noticed and named.

`OLMORL_DAMAGES=10000 python -m pytest tests/learner/storage/test_damage.py -s` makes 10,000 and prints the counts;
`OLMORL_SEED` makes others.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
import torch

from olmorl.clock import SystemClock
from olmorl.errors import OlmoRLError
from olmorl.learner.storage import checkpoint_dir, ledger, rollout_log
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.group_stats import score
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger import Ledger, Position
from olmorl.learner.storage.ledger_state import Decided, Drawn, LedgerState, Outcome, Started, Trained, journaled
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.learner.trainer.checkpoint_shards import KINDS, ParameterPiece, Share, Shares
from olmorl.messages import Group, Version
from olmorl.ports import NamedBuffer
from olmorl.queues.weights.chunks import checked
from olmorl.queues.weights.deltas import Packer
from olmorl.queues.weights.file_publisher import PublishedFolder
from olmorl.run_dir import RunFiles

MakeGroup = Callable[..., Group]
NUMBER = int(os.environ.get("OLMORL_DAMAGES", "500"))
SEED = int(os.environ.get("OLMORL_SEED", "7"))
V1 = Version(1, 0)


class Kind(NamedTuple):
    """Files of one kind, and how the service reads them."""

    files: list[Path]
    read: Callable[[], object]
    names: tuple[str, ...]
    """The error has one of these texts, or the path of the file."""
    may_be_torn: tuple[Path, ...] = ()
    """Files whose end a crash may tear, so that only flips are damage."""


async def a_run(run_dir: Path, make_group: MakeGroup) -> None:
    """Two starts of a run: four steps, the first two of them in a checkpoint."""
    files = RunFiles(run_dir)
    state, position, rollouts = LedgerState(), Position(0, 0), None
    for incarnation in (1, 2):
        ledger.acquire(files.ledger)
        first_step = 2 * incarnation - 1
        start = Started(
            incarnation=incarnation,
            step=first_step - 1,
            replay_to=first_step - 1,
            previous=position.incarnation,
            previous_bytes=position.num_bytes,
            stream={"position": 0},
        )
        books = Ledger(files.ledger, start, state)
        rollouts = RolloutLog(files.rollouts, incarnation, first_step, DiskWriter(SystemClock(), 10.0))
        for step in (first_step, first_step + 1):
            await a_step(step, incarnation, books, files, rollouts, make_group)
        await rollouts.put(make_group(4 * step), Outcome.STALE)
        await rollouts.close()
        position = books.position
        books.close()
        if incarnation == 1:
            part = Part(step=2, incarnation=1, ledger_incarnation=1, ledger_bytes=position.num_bytes)
            checkpoint_dir.shares_of(files.checkpoints, 2, 1).mkdir(parents=True)
            checkpoint_dir.complete(files.checkpoints, part, state)


async def a_step(
    step: int, incarnation: int, books: Ledger, files: RunFiles, rollouts: RolloutLog, make_group: MakeGroup
) -> None:
    draws = [make_group(draw_id) for draw_id in range(4 * step - 4, 4 * step)]
    ids = [group.prompt.draw_id for group in draws]
    books.append(*(Drawn(draw=i, row=f"a:{i}", position=i, version=step - 1) for i in ids))
    books.append(Decided(draw=ids[0], attempt=1, outcome=Outcome.ZERO_GRADIENT, score=score(draws[0])))
    await rollouts.put(draws[0], Outcome.ZERO_GRADIENT)
    Journal(files.journal).write(step, incarnation, draws[1:])
    books.append(journaled(step, draws[1:]), Trained(step=step, tokens=9))
    await rollouts.end_step(step, draws[1:])


def shares(folder: Path) -> None:
    """Two ranks, each with a half of two parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        pieces = [
            ParameterPiece(name, 40 * rank, {kind: torch.rand(40, generator=torch.manual_seed(rank)) for kind in KINDS})
            for name in ("layer.weight", "layer.bias")
        ]
        share = Share(rank, 2, pinned=False)
        share.copy(pieces, {"random/cpu": torch.arange(16, dtype=torch.uint8)}, steps=2)
        share.write(folder)


def published(folder: Path) -> PublishedFolder:
    store = PublishedFolder(folder, Packer(1000, 1), in_place=False)
    matrix = np.random.default_rng(0).normal(size=(50, 20)).astype("<f4")
    store.publish(V1, [NamedBuffer("layer.weight", "float32", (50, 20), memoryview(matrix))], None, 0, 1)
    return store


def fetch(store: PublishedFolder) -> None:
    version = store.latest()
    assert version is not None
    manifest, streams = store.open(version)
    for rank, chunks in enumerate(streams):
        for _ in checked(chunks, manifest, rank):
            pass


@pytest.fixture
async def kinds(tmp_path: Path, make_group: MakeGroup) -> dict[str, Kind]:
    files = RunFiles(tmp_path)
    await a_run(tmp_path, make_group)
    share_folder = checkpoint_dir.shares_of(files.checkpoints, 2, 1)
    shares(share_folder)
    store = published(files.weights)
    rollouts = rollout_log.files(files.rollouts)
    folder, end = checkpoint_dir.folder_of(files.checkpoints, 2), ledger.end_of(files.ledger, 3)

    def restore() -> None:
        found = Shares(checkpoint_dir.shares(files.checkpoints, 2))
        found.read("master", "layer.weight", 0, 80)
        checkpoint_dir.state_at(files, end, 2)

    own = [folder / checkpoint_dir.PART, folder / checkpoint_dir.SNAPSHOT]
    return {
        "journal": Kind(
            sorted(files.journal.iterdir()), lambda: [Journal(files.journal).read(s) for s in range(1, 5)], ()
        ),
        "ledger": Kind(sorted(files.ledger.iterdir()), lambda: list(ledger.history(tmp_path)), ()),
        "checkpoints": Kind([*own, *sorted(share_folder.iterdir())], restore, ()),
        "weights": Kind(
            [path for path in sorted(files.weights.iterdir()) if "part" not in path.name],
            lambda: fetch(store),
            ("version 1.0: chunk",),
        ),
        "rollouts": Kind(
            rollouts,
            lambda: [list(rollout_log.read(path)) for path in rollouts],
            (),
            tuple(path for path in rollouts if "partial" in path.name),
        ),
    }


def damages(kind: Kind, number: int, random: Random) -> Iterator[tuple[Path, str, bytes]]:
    """Files with what happens to them, and their bytes after it."""
    for _ in range(number):
        path = random.choice([path for path in kind.files if path.stat().st_size])
        data = bytearray(path.read_bytes())
        if path not in kind.may_be_torn and random.random() < 0.2:
            yield path, "cut", bytes(data[: random.randrange(len(data))])
            continue
        place = random.randrange(8 * len(data))
        data[place // 8] ^= 1 << place % 8
        yield path, "flip", bytes(data)


@pytest.mark.parametrize("name", ["journal", "ledger", "checkpoints", "weights", "rollouts"])
def test_every_flip_and_cut_is_noticed_and_named(kinds: dict[str, Kind], name: str) -> None:
    kind = kinds[name]
    kind.read()
    noticed: Counter[str] = Counter()
    for path, what, data in damages(kind, NUMBER // len(kinds), Random(SEED)):
        whole = path.read_bytes()
        path.write_bytes(data)
        with pytest.raises(OlmoRLError) as raised:
            kind.read()
        said = str(raised.value)
        assert str(path) in said or any(text in said for text in kind.names), f"{path} {what}: {said}"
        path.write_bytes(whole)
        noticed[f"{what} of {path.suffix or path.name}"] += 1
    kind.read()
    print(f"{name}: {sum(noticed.values())} noticed and named: {dict(sorted(noticed.items()))}")
    assert noticed.total() == NUMBER // len(kinds)


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("journal", ".batch"),
        ("ledger", ".jsonl"),
        ("checkpoints", ".safetensors"),
        ("checkpoints", ".json"),
        ("rollouts", ".zst"),
    ],
)
def test_a_file_in_the_place_of_another_is_noticed_and_named(kinds: dict[str, Kind], name: str, suffix: str) -> None:
    one, other = [path for path in kinds[name].files if path.suffix == suffix][:2]
    for path, copy in ((one, other), (other, one)):
        whole = path.read_bytes()
        path.write_bytes(copy.read_bytes())
        with pytest.raises(OlmoRLError, match=str(path if name != "checkpoints" else path.parent)):
            kinds[name].read()
        path.write_bytes(whole)
