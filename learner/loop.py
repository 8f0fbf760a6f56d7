"""The story of one learner rank: begin, restore, publish; then next, train, publish, report, checkpoint; export.

Rank 0 alone speaks to the assembler of steps and to the weight store; every rank takes part in the trainer's calls.
"""

from __future__ import annotations

from pathlib import Path

from olmorl.clock import Clock
from olmorl.config import Config
from olmorl.learner.interruption import Interruption
from olmorl.learner.publisher import Publisher
from olmorl.learner.saver import Saver
from olmorl.messages import STOP_ASKED, Begin, Save, StepReport, Stop, Version
from olmorl.ports import BatchSource, Trainer, WeightStore


async def run(
    rank: int, trainer: Trainer, source: BatchSource, store: WeightStore, clock: Clock, config: Config
) -> Stop:
    """Train until the assembler says stop; returns why. Leaves `checkpoints/`, and at the end of all steps `export/`.

    Raises:
        RunEnded: the assembler or the weight store ended the run.
        ResourceError: the disk refused a checkpoint.
    """
    begin = await source.begin(rank)
    step = _restore(trainer, begin)
    async with (
        Publisher(store, source, clock) as publisher,
        Saver(rank, trainer, source, clock, begin, config) as saver,
        Interruption(rank, trainer, source),
    ):
        if begin.publish:
            await publisher.publish(Version(begin.incarnation, step), trainer.snapshot())
        asked_at = clock.now()
        while not isinstance(work := await saver.meanwhile(publisher.meanwhile(source.next(rank, step + 1))), Stop):
            if isinstance(work, Save):
                began_at = clock.now()
                await saver.save(step)
                asked_at += clock.now() - began_at
                continue
            started_at = clock.now()
            values = await trainer.train(work)
            if values is None:
                work = await _give_up(rank, source, work.step)
                break
            finished_at, step = clock.now(), work.step
            version = Version(begin.incarnation, step)
            if work.publish:
                await publisher.publish(version, trainer.snapshot())
            values |= {"learner_wait_s": started_at - asked_at, "learner_step_s": finished_at - started_at}
            if rank == 0:
                await source.report(StepReport(step=step, version=version, values=values))
            if work.checkpoint:
                await saver.save(step)
            asked_at = clock.now()
        await saver.save(step)
    if work.export:
        trainer.export(config.run_dir / "export")
    return work


def _restore(trainer: Trainer, begin: Begin) -> int:
    """Go to where this start begins; returns the steps done by then."""
    if begin.checkpoint is not None:
        trainer.restore(Path(begin.checkpoint))
    return begin.step


async def _give_up(rank: int, source: BatchSource, step: int) -> Stop:
    """The batch stays in the journal: a later start trains it."""
    if rank == 0:
        await source.given_up(step)
    return Stop(reason=STOP_ASKED)
