"""Where a start of the learner begins: which checkpoint, which journaled steps after it, and where every draw is.

claim        the queue is this run's, and this incarnation's
go_back      where people ask for it: what came after a checkpoint moves to `abandoned/`
plan         the newest checkpoint and the steps to replay
open_ledger  its file of this incarnation, and the stream where the ledger says it was
cut_lines    the metric lines of steps that are taken again, but for what they know of evaluations
reconcile    each open draw is in the queue, or among the lost ones; what the queue holds beside them is withdrawn
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from olmorl.errors import ResourceError, Superseded, UserError
from olmorl.learner import checkpoint, durable, ledger, rollouts
from olmorl.learner.accounts import Accounts, Journaled, Started
from olmorl.learner.draws import Draws
from olmorl.learner.evaluation import of_evaluation
from olmorl.learner.journal import Journal
from olmorl.learner.ledger import Ledger, Position
from olmorl.learner.lines import Fields, Lines
from olmorl.learner.score import Score, score
from olmorl.messages import TRAIN_LANE, Group
from olmorl.ports import Place, PromptQueue, Queue

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFiles:
    """The parts of a run directory that the assembler owns."""

    run_dir: Path

    @property
    def ledger(self) -> Path:
        return self.run_dir / "ledger"

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal"

    @property
    def rollouts(self) -> Path:
        return self.run_dir / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    @property
    def lines(self) -> Path:
        return self.run_dir / "metrics.jsonl"

    @property
    def evaluated(self) -> Path:
        return self.run_dir / "evaluated.json"

    def abandoned(self, incarnation: int) -> Path:
        """Where a start puts what is no longer part of the history."""
        return self.run_dir / "abandoned" / f"{incarnation:06d}"


class Plan(NamedTuple):
    """Where a start begins."""

    incarnation: int
    step: int
    replay_to: int
    checkpoint: Path | None
    """The folder of the learner's shares."""
    history: Position | None
    """The part of the ledger that counts."""


def check_free(files: RunFiles, resume: bool) -> None:
    """Refuse to start over a run that is there, and to resume one that is not.

    Raises:
        UserError: with the way out.
    """
    there = bool(ledger.incarnations(files.ledger))
    if there and not resume:
        raise UserError(
            f"{files.run_dir} holds a run already: go on with it (--resume), give this one another name "
            "(--name NAME), or remove the folder"
        )
    if resume and not there:
        raise UserError(
            f"{files.run_dir} holds no run to resume: leave --resume away, or check --name and run.directory"
        )


async def claim(queue: PromptQueue, files: RunFiles, incarnation: int) -> None:
    """Take the run's queue over.

    Raises:
        Superseded: a newer start has taken it over.
        ResourceError: an earlier run in this folder used it.
    """
    try:
        await queue.claim(incarnation)
    except Superseded as error:
        is_first = ledger.end_of(files.ledger, incarnation) is None
        if not is_first or ledger.incarnations(files.ledger)[-1] > incarnation:
            raise
        ledger.give_up(files.ledger, incarnation)
        raise ResourceError(
            f"{error}: {files.run_dir} held an earlier run, and what that left in this Redis is there yet: give this "
            "one another --run.name, or remove the keys olmorl:{RUN}:* of the run that is named here"
        ) from None


async def go_back(queue: Queue, files: RunFiles, incarnation: int, step: int) -> None:
    """Make `step` the newest checkpoint; what came later is no longer part of the history.

    Raises:
        UserError: there is no complete checkpoint of it.
    """
    checkpoint.pick(files.checkpoints, step)
    history = checkpoint.read_part(files.checkpoints, step).position
    # The queue first: what it loses is queued again, but draws of an abandoned history would be a stranger's.
    await queue.flush(TRAIN_LANE)
    _abandon(files, step, history, incarnation)


def plan(files: RunFiles, incarnation: int, last_step: int) -> Plan:
    """Choose the newest checkpoint, and tidy up after a crash.

    Args:
        last_step: of the run; no later one is replayed.
    """
    step = checkpoint.pick(files.checkpoints, None)
    checkpoint.remove_incomplete(files.checkpoints)
    folder = None if step is None else checkpoint.shares(files.checkpoints, step)
    done = step or 0
    journal = Journal(files.journal)
    journal.forget(done)
    replay_to = max([done, *(s for s in journal.replayable(after=done) if s <= last_step)])
    # Behind a gap, or the last step: their draws are drawn on, and a later start must not find them here.
    left = [journal.path_of(s) for s in reversed(journal.steps()) if s > replay_to]
    _move_to_abandoned(files, left, incarnation)
    return Plan(incarnation, done, replay_to, folder, ledger.end_of(files.ledger, incarnation))


def open_ledger(files: RunFiles, begin: Plan, draws: Draws) -> Ledger:
    """Start this incarnation's file of the ledger.

    Raises:
        DataError: the data is not what was drawn from.
        ResourceError: a damaged ledger or journal.
    """
    accounts = ledger.fold(ledger.events_until(files.ledger, begin.history))
    draws.seek(accounts)
    previous = begin.history or Position(0, 0)
    started = Started(
        incarnation=begin.incarnation,
        step=begin.step,
        replay_to=begin.replay_to,
        previous=previous.incarnation,
        previous_bytes=previous.num_bytes,
        stream=draws.state(),
    )
    opened = Ledger(files.ledger, started, accounts)
    journal = Journal(files.journal)
    for step in range(begin.step + 1, begin.replay_to + 1):
        if step not in accounts.batches:
            opened.append(journaled(step, journal.read(step)))
    return opened


def cut_lines(files: RunFiles, begin: Plan) -> dict[int, Fields]:
    """Cut the metric lines that are to be written again. Returns what they knew of evaluations, by their steps.

    A replayed step makes the version that it made before. In a file of its own that outlives a crash in the replay.
    """
    lines = Lines(files.lines)
    known = {line["step"]: of_evaluation(line) for line in lines.read()}
    if files.evaluated.exists():
        known = msgspec.json.decode(files.evaluated.read_bytes(), type=dict[int, dict[str, Any]]) | known
    evaluated: dict[int, Fields] = {
        step: fields for step, fields in known.items() if fields and begin.step < step <= begin.replay_to
    }
    durable.write_whole(files.evaluated, [msgspec.json.encode(evaluated)])
    lines.cut_after(begin.step, files.abandoned(begin.incarnation) / "metrics.jsonl")
    return evaluated


def journaled(step: int, groups: Sequence[Group]) -> Journaled:
    """The ledger's line for a step that is in the journal."""
    draws = [(group.prompt.draw_id, group.prompt.attempt) for group in groups]
    return Journaled(step=step, draws=draws, score=sum(map(score, groups), Score()))


class Reconciled(NamedTuple):
    """What the queue and the ledger disagree about."""

    leftovers: set[int]
    """Among the results, though their outcome or their place in the journal is durable: trimmed when they arrive."""
    lost: set[int]
    """Open, and not in the queue: to be queued once more."""
    withdrawn: set[int]
    """Queued or leased once more by a fail-over, though durable: they are not any longer."""


async def flush_unless_trusted(queue: Queue, accounts: Accounts) -> bool:
    """Empty a queue that cannot be trusted: its draws are queued once more, as after any loss. Returns whether it was.

    It holds draws of this run that the ledger has lost, the end of a damaged file, say: their numbers will be drawn
    again. Or it contradicts itself: a Redis that died by a power cut may come back with half a transaction.
    """
    places = await queue.inventory(TRAIN_LANE)
    live = (await queue.counts(TRAIN_LANE)).live
    unknown = places.keys() - accounts.draws.keys()
    if accounts.draws and (unknown or live != len(places)):
        log.warning(
            "the queue starts anew: it held %d draws that the ledger has lost, and %d entries for %d draws",
            *(len(unknown), live, len(places)),
        )
        await queue.flush(TRAIN_LANE)
        return True
    return False


async def reconcile(queue: PromptQueue, accounts: Accounts, answered: Collection[int] = ()) -> Reconciled:
    """Compare the queue with the ledger, which is the authority.

    Args:
        answered: open draws whose answer had arrived; nobody works on the lease of one that the queue has lost.

    Raises:
        ResourceError: the queue holds draws that the ledger never made.
    """
    places = await queue.inventory(TRAIN_LANE)
    there = set(places)
    if strange := there - accounts.draws.keys():
        raise ResourceError(
            f"the queue holds {len(strange)} prompts that this run never drew: another run of the same name uses it; "
            "give this one another --run.name or another --queue.url"
        )
    over = there - accounts.open.keys()
    orphaned = {draw_id for draw_id in answered if places.get(draw_id) is Place.LEASED}
    # Not by its answer: an answer that was lost is asked for again, and says that nothing was left to withdraw.
    await queue.withdraw(over | orphaned, TRAIN_LANE)
    withdrawn = (over | orphaned) - (await queue.inventory(TRAIN_LANE)).keys()
    lost = (accounts.open.keys() - there) | (orphaned & withdrawn)
    await queue.forget_done(lost, TRAIN_LANE)
    return Reconciled(over - withdrawn, lost, withdrawn - orphaned)


def _abandon(files: RunFiles, step: int, history: Position, incarnation: int) -> None:
    # Checkpoints first: once they are gone, a start that crashed half-way through is resumed from `step` as well. The
    # newest file first, of the ledger and of the journal: each goes on with the one before.
    later = [checkpoint.folder_of(files.checkpoints, s) for s in checkpoint.steps(files.checkpoints) if s > step]
    journal = Journal(files.journal)
    later += [journal.path_of(s) for s in reversed(journal.steps()) if s > step]
    later += [path for path in rollouts.files(files.rollouts) if rollouts.step_of(path) > step]
    later += [
        ledger.path_of(files.ledger, i)
        for i in reversed(ledger.incarnations(files.ledger))
        if history.incarnation < i < incarnation
    ]
    _move_to_abandoned(files, later, incarnation)
    path = ledger.path_of(files.ledger, history.incarnation)
    if tail := durable.cut(path, history.num_bytes):
        durable.write_whole(files.abandoned(incarnation) / path.relative_to(files.run_dir), [tail])


def _move_to_abandoned(files: RunFiles, paths: Sequence[Path], incarnation: int) -> None:
    for path in paths:
        moved = files.abandoned(incarnation) / path.relative_to(files.run_dir)
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, moved)
