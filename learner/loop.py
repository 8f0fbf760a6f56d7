"""The story of one learner rank: begin, restore, publish; then next, train, publish, report, checkpoint; export.

Only rank 0 reports steps to the orchestrator. Every rank takes part in the trainer's calls, and publishes its shard.
"""

from __future__ import annotations

from pathlib import Path

from olmorl.clock import Clock
from olmorl.config import Config
from olmorl.learner.background import unless_failed
from olmorl.learner.checkpoint_writer import CheckpointWriter
from olmorl.learner.publisher import Publisher
from olmorl.learner.stop_listener import StopListener
from olmorl.log_context import note_facts
from olmorl.messages import STOP_ASKED, Begin, Probe, Save, StepReport, Stop, Version
from olmorl.ports import BatchSource, Trainer, WeightStore
from olmorl.run_dir import RunFiles


async def run(
    rank: int, trainer: Trainer, source: BatchSource, store: WeightStore, clock: Clock, config: Config
) -> Stop:
    """Train until the orchestrator says stop; returns why. Writes `checkpoints/`, and after all steps `export/`.

    Raises:
        RunEnded: the orchestrator or the weight store ended the run.
        ResourceError: the disk refused a checkpoint.
    """
    begin = await source.begin(rank)
    step = _restore(trainer, begin)
    async with (
        Publisher(store, source, clock, rank, begin.ranks) as publisher,
        CheckpointWriter(rank, trainer, source, clock, begin, config) as saver,
        StopListener(rank, trainer, source),
    ):
        if begin.publish:
            await publisher.publish(Version(begin.incarnation, step), trainer.snapshot(), _probe(trainer, config))
        asked_at = clock.now()
        while not isinstance(work := await unless_failed(source.next(rank, step + 1), saver, publisher), Stop):
            if isinstance(work, Save):
                began_at = clock.now()
                await saver.save(step)
                asked_at += clock.now() - began_at
                continue
            note_facts(incarnation=begin.incarnation, step=work.step)
            started_at = clock.now()
            values = await trainer.train(work)
            if values is None:
                work = await _give_up(rank, source, work.step)
                break
            finished_at, step = clock.now(), work.step
            version = Version(begin.incarnation, step)
            values |= {"learner_wait_s": started_at - asked_at, "learner_step_s": finished_at - started_at}
            values |= {"learner_snapshot_s": 0.0, "learner_publish_wait_s": 0.0}
            if work.publish:
                await publisher.finish()  # it reads the memory of the last snapshot
                values["learner_publish_wait_s"] = clock.now() - finished_at
                buffers, probe = trainer.snapshot(), _probe(trainer, config)
                values["learner_snapshot_s"] = clock.now() - finished_at - values["learner_publish_wait_s"]
                await publisher.publish(version, buffers, probe)
            if rank == 0:
                await source.report(StepReport(step=step, version=version, values=values))
            if work.checkpoint:
                await saver.save(step)
            asked_at = clock.now()
        await saver.save(step)
    if work.export:
        trainer.export(RunFiles(config.run_dir).export, config.sampling)
    return work


def _restore(trainer: Trainer, begin: Begin) -> int:
    """Load the checkpoint of this start, if any; returns its step."""
    if begin.checkpoint is not None:
        trainer.restore(Path(begin.checkpoint))
    return begin.step


def _probe(trainer: Trainer, config: Config) -> Probe | None:
    """The log-probabilities that an engine must compute with these weights; None without a proof."""
    return None if config.weights.proof_tolerance == "off" else trainer.probe()


async def _give_up(rank: int, source: BatchSource, step: int) -> Stop:
    """Report a step that was given up. Its batch stays in the journal, and a later start trains it."""
    if rank == 0:
        await source.given_up(step)
    return Stop(reason=STOP_ASKED)
