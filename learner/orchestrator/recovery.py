"""Where a start of the learner begins: which checkpoint, which journaled steps after it, which draws are open.

`recover` calls the others, in this order:

claim                 take the queue for this incarnation of this run
go_back               on request: move everything after a checkpoint to `abandoned/`
plan                  choose the newest checkpoint and the steps to replay; changes nothing
carry_out             remove or move the files that the plan does not use
open_ledger           open this incarnation's file, and put the stream where the ledger says
cut_metrics           cut the metric lines of steps that are taken again, but remember their evaluations
flush_unless_trusted  empty a queue that contradicts itself or the ledger
drop_foreign          drop the dead letters of other histories
reconcile             compare the queue with the ledger, draw by draw
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from olmorl.clock import Clock
from olmorl.errors import ResourceError, Superseded, UserError
from olmorl.learner.background import in_thread
from olmorl.learner.orchestrator.draw_source import DrawSource
from olmorl.learner.storage import checkpoint_dir, durable_files, ledger, rollout_log
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger import Ledger, Position
from olmorl.learner.storage.ledger_state import LedgerState, Started, journaled
from olmorl.learner.storage.metrics_log import Fields, MetricsLog
from olmorl.messages import TRAIN_LANE, Begin
from olmorl.metrics import of_evaluation
from olmorl.ports import PromptQueue, Queue, QueuePlace
from olmorl.run_dir import RunFiles

log = logging.getLogger(__name__)
T = TypeVar("T")


class StartPlan(NamedTuple):
    """The point where a start begins, and the files that it does not use."""

    incarnation: int
    step: int
    replay_to: int
    checkpoint: Path | None
    """The folder of the learner's shares."""
    history: Position | None
    """The end of the valid part of the ledger."""
    unusable: Sequence[Path]
    """Journal files after a gap or after the last step, the newest first. Their draws stay open."""

    def begin(self, num_ranks: int) -> Begin:
        """What each rank of this start is told."""
        return Begin(
            incarnation=self.incarnation,
            step=self.step,
            checkpoint=None if self.checkpoint is None else str(self.checkpoint),
            publish=self.replay_to == self.step,
            ranks=num_ranks,
        )


class Reconciled(NamedTuple):
    """Where the queue and the ledger disagree."""

    leftovers: set[int]
    """Results of draws that have ended or are in the journal. They are trimmed when they arrive."""
    lost: set[int]
    """Open draws that the queue does not have. They are queued once more."""
    withdrawn: set[int]
    """Ended or journaled draws that a fail-over put back. They are removed from the queue."""


class Recovered(NamedTuple):
    """The state of the run at a start."""

    plan: StartPlan
    ledger: Ledger
    source: DrawSource
    """Makes the next draws."""
    evaluated: dict[int, Fields]
    """The evaluation results of the steps that are replayed."""
    epoch: str
    """The queue's before it was compared."""
    reconciled: Reconciled


async def recover(
    files: RunFiles,
    queue: Queue,
    source: DrawSource,
    clock: Clock,
    disk: DiskWriter,
    *,
    last_step: int,
    resume: bool = False,
    from_step: int | None = None,
) -> Recovered:
    """Take over the run and recover its state. `Orchestrator.open` has the arguments and the errors."""
    check_free(files, resume)
    incarnation = ledger.acquire(files.ledger)
    await disk.write(partial(in_thread, durable_files.check_room, files.ledger / f"{incarnation}.room"))
    await claim(queue, files, incarnation)
    history = None if from_step is None else await go_back(queue, files, incarnation, from_step)
    begin = plan(files, incarnation, last_step, history)
    carry_out(files, begin)
    opened = open_ledger(files, begin, source, clock)
    evaluated = cut_metrics(files, begin)
    epoch = await queue.epoch()
    emptied = await flush_unless_trusted(queue, opened.state) or from_step is not None
    await drop_foreign(queue, opened.state, emptied)
    return Recovered(begin, opened, source, evaluated, epoch, await reconcile(queue, opened.state))


def check_free(files: RunFiles, resume: bool) -> None:
    """Refuse to start a run in a folder that holds one, and to resume a run that does not exist.

    Raises:
        UserError: says what to do instead.
    """
    there = bool(ledger.incarnations(files.ledger))
    if there and not resume:
        raise UserError(
            f"{files.run_dir} holds a run already: continue it (--resume), give this one another name "
            "(--name NAME), or remove the folder"
        )
    if resume and not there:
        raise UserError(
            f"{files.run_dir} holds no run to resume: leave out --resume, or check --name and run.directory"
        )


async def claim(queue: PromptQueue, files: RunFiles, incarnation: int) -> None:
    """Take the queue of the run.

    Raises:
        Superseded: a newer start has taken it.
        ResourceError: an earlier run in this folder used it.
    """
    try:
        await queue.claim(incarnation)
    except Superseded as error:
        is_first = ledger.end_of(files.ledger, incarnation) is None
        if not is_first or ledger.incarnations(files.ledger)[-1] > incarnation:
            raise
        ledger.release(files.ledger, incarnation)
        raise ResourceError(
            f"{error}: {files.run_dir} held an earlier run, and its keys are still in this Redis: give this run "
            "another --run.name, or remove the keys olmorl:{RUN}:* of that run"
        ) from None


async def go_back(queue: Queue, files: RunFiles, incarnation: int, step: int) -> Position:
    """Make `step` the newest checkpoint. Later steps leave the history; returns its end.

    Raises:
        UserError: there is no complete checkpoint of `step`.
    """
    checkpoint_dir.pick(files.checkpoints, step)
    history = checkpoint_dir.read_part(files.checkpoints, step).position
    # The queue first: after a crash here its draws are queued again. Draws of an abandoned history would be refused.
    await queue.flush(TRAIN_LANE)
    _abandon(files, step, history, incarnation)
    return history


def plan(files: RunFiles, incarnation: int, last_step: int, history: Position | None = None) -> StartPlan:
    """Choose the newest checkpoint and the journaled steps to replay. Changes nothing.

    Args:
        last_step: of the run; no later step is replayed.
        history: its end, if the run went back. A file that is cut before it does not matter then.

    Raises:
        ResourceError: the checkpoint is damaged, or the ledger is cut.
    """
    step = checkpoint_dir.pick(files.checkpoints, None)
    shares = None if step is None else checkpoint_dir.shares(files.checkpoints, step)
    done = step or 0
    journal = Journal(files.journal)
    replay_to = max([done, *(s for s in journal.replayable(after=done) if s <= last_step)])
    return StartPlan(
        incarnation,
        done,
        replay_to,
        shares,
        history or _or_way_on(files, lambda: ledger.end_of(files.ledger, incarnation)),
        [journal.path_of(s) for s in reversed(journal.steps()) if s > replay_to],
    )


def carry_out(files: RunFiles, begin: StartPlan) -> None:
    """Remove or move the files that the plan does not use."""
    checkpoint_dir.remove_incomplete(files.checkpoints)
    Journal(files.journal).forget(begin.step)
    _move_to_abandoned(files, begin.unusable, begin.incarnation)


def open_ledger(files: RunFiles, begin: StartPlan, source: DrawSource, clock: Clock) -> Ledger:
    """Start this incarnation's file of the ledger.

    Raises:
        DataError: the data has changed since the draws.
        ResourceError: a damaged ledger or journal.
    """
    saved = None if begin.checkpoint is None else begin.step
    state = _or_way_on(files, lambda: checkpoint_dir.state_at(files, begin.history, saved))
    source.seek(state)
    previous = begin.history or Position(0, 0)
    started = Started(
        incarnation=begin.incarnation,
        step=begin.step,
        replay_to=begin.replay_to,
        previous=previous.incarnation,
        previous_bytes=previous.num_bytes,
        stream=source.state(),
    )
    opened = Ledger(files.ledger, started, state, clock.wall)
    journal = Journal(files.journal)
    for step in range(begin.step + 1, begin.replay_to + 1):
        if step not in state.batches:
            event = journaled(step, journal.read(step))
            if strange := state.contradictions([event]):
                raise ResourceError(
                    f"{journal.path_of(step)}: its draws {strange} are not in flight: the ledger has lost "
                    "their lines; remove it and the steps after it to generate their prompts again"
                )
            opened.append(event)
    state.forget(begin.step)
    return opened


def _or_way_on(files: RunFiles, read: Callable[[], T]) -> T:
    """The result of `read`. An error of it says which checkpoint a start can go back to, and what is lost then."""
    try:
        return read()
    except ResourceError as error:
        sound = checkpoint_dir.newest_sound(files.checkpoints)
        way_on = (
            "there is no checkpoint to go back to: start a new run"
            if sound is None
            else f"--resume --from-step {sound} goes on without it: what was drawn and trained after step {sound} is "
            "lost, and those steps are trained again on other prompts"
        )
        raise ResourceError(f"{error}. {way_on}") from error


def cut_metrics(files: RunFiles, begin: StartPlan) -> dict[int, Fields]:
    """Cut the metric lines that will be written again. Returns their evaluation results, by step.

    A replayed step makes the same version again, so its evaluation is still valid. A file of its own keeps the results
    through a crash during the replay.
    """
    lines = MetricsLog(files.metrics)
    later = takewhile(lambda line: line["step"] > begin.step, lines.newest_first())
    known = {line["step"]: of_evaluation(line) for line in later}
    if files.evaluated.exists():
        known = msgspec.json.decode(files.evaluated.read_bytes(), type=dict[int, dict[str, Any]]) | known
    evaluated: dict[int, Fields] = {
        step: fields for step, fields in known.items() if fields and begin.step < step <= begin.replay_to
    }
    durable_files.write_whole(files.evaluated, [msgspec.json.encode(evaluated)])
    lines.cut_after(begin.step, files.abandoned(begin.incarnation) / "metrics.jsonl")
    newest = next(lines.newest_first(), {"step": 0})["step"]
    if newest < begin.step:
        log.warning("%s: it has no line for the steps %d to %d", files.metrics, newest + 1, begin.step)
    return evaluated


async def flush_unless_trusted(queue: Queue, state: LedgerState) -> bool:
    """Empty a queue that cannot be trusted; its draws are queued once more. Returns whether it was emptied.

    Either it holds draws that the ledger lost, for example with the end of a damaged file: new draws will get their
    numbers. Or it contradicts itself: after a power cut, Redis may come back with half a transaction.
    """
    places = await queue.inventory(TRAIN_LANE)
    live = (await queue.counts(TRAIN_LANE)).live
    unknown = [draw_id for draw_id in places if draw_id >= state.num_drawn]
    if state.num_drawn and (unknown or live != len(places)):
        log.warning(
            "the queue is emptied: it held %d draws that the ledger has lost, and %d entries for %d draws",
            *(len(unknown), live, len(places)),
        )
        await queue.flush(TRAIN_LANE)
        return True
    return False


async def drop_foreign(queue: Queue, state: LedgerState, emptied: bool) -> None:
    """Drop the dead letters of draws that are not part of this history.

    Args:
        emptied: the lane was emptied. Then no result can still arrive, and only failed draws keep their letters.
    """
    letters = {letter.draw_id for letter in await queue.dead_letters(TRAIN_LANE)}
    if emptied:
        ours = letters & (state.failed.keys() | state.to_replay.keys())
    else:
        ours = {draw_id for draw_id in letters if draw_id < state.num_drawn}
    await queue.drop_dead_letters(letters - ours, TRAIN_LANE)


async def reconcile(queue: PromptQueue, state: LedgerState, answered: Collection[int] = ()) -> Reconciled:
    """Compare the queue with the ledger, and correct the queue: the ledger is the authority.

    Args:
        answered: open draws whose results had arrived. If the queue lost such a result, no actor works on its lease.

    Raises:
        ResourceError: the queue holds draws that the ledger never made.
    """
    places = await queue.inventory(TRAIN_LANE)
    present = set(places)
    if unknown := [draw_id for draw_id in present if draw_id >= state.num_drawn]:
        raise ResourceError(
            f"the queue holds {len(unknown)} prompts that this run never drew: another run of the same name uses it; "
            "give this one another --run.name or another --queue.url"
        )
    ended = present - state.open.keys()
    orphaned = {draw_id for draw_id in answered if places.get(draw_id) is QueuePlace.LEASED}
    # Look again instead of trusting the answer of `withdraw`: a call that is repeated after a lost answer withdraws 0.
    await queue.withdraw(ended | orphaned, TRAIN_LANE)
    withdrawn = (ended | orphaned) - (await queue.inventory(TRAIN_LANE)).keys()
    lost = (state.open.keys() - present) | (orphaned & withdrawn)
    await queue.forget_done(lost, TRAIN_LANE)
    return Reconciled(ended - withdrawn, lost, withdrawn - orphaned)


def _abandon(files: RunFiles, step: int, history: Position, incarnation: int) -> None:
    # Checkpoints first: without them a start after a crash here resumes from `step` too. Then the newest files of the
    # ledger and of the journal first: each continues the one before it.
    later = [
        checkpoint_dir.folder_of(files.checkpoints, s) for s in checkpoint_dir.steps(files.checkpoints) if s > step
    ]
    journal = Journal(files.journal)
    later += [journal.path_of(s) for s in reversed(journal.steps()) if s > step]
    later += [path for path in files.exports.glob("step_*") if path.name[5:].isdecimal() and int(path.name[5:]) > step]
    rollouts = [*rollout_log.files(files.rollouts), *rollout_log.evaluation_files(files.rollouts)]
    later += [path for path in rollouts if rollout_log.step_of(path) > step]
    for i in reversed(ledger.incarnations(files.ledger)):
        if history.incarnation < i < incarnation:
            later += ledger.files_of(files.ledger, i)
    _move_to_abandoned(files, later, incarnation)
    path = ledger.path_of(files.ledger, history.incarnation)
    if tail := ledger.cut(files.ledger, history):
        durable_files.write_whole(files.abandoned(incarnation) / path.relative_to(files.run_dir), [tail])


def _move_to_abandoned(files: RunFiles, paths: Sequence[Path], incarnation: int) -> None:
    for path in paths:
        moved = files.abandoned(incarnation) / path.relative_to(files.run_dir)
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, moved)
