"""The orchestrator: draws prompts, turns groups into batches, hands them to the ranks and records every step.

loop or call   consumes              produces                         waits for
tend           results               ready groups, draws, batches     results, at most `POLL_S`
next           batches               each rank's work for a step      a batch; after the last step, the evaluation
report         a rank's step report  a ledger event, a metrics line   the disk
published      a version             draws, evaluation prompts        the queue
saved          checkpoint shares     a complete checkpoint            the disk, after the share of the last rank
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from olmorl.clock import Clock
from olmorl.config import Config
from olmorl.errors import DeadlinePassed
from olmorl.learner.background import in_thread, to_its_end
from olmorl.learner.orchestrator import recovery
from olmorl.learner.orchestrator.changes import replaced_by_recipe
from olmorl.learner.orchestrator.checkpoint_keeper import CheckpointKeeper, Export
from olmorl.learner.orchestrator.draw_source import DrawSource, Stream
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.evaluation import Evaluator
from olmorl.learner.orchestrator.rank_coordinator import RankCoordinator
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.orchestrator.step_metrics import StepMetrics
from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.durable_files import DiskWriter
from olmorl.learner.storage.metrics_log import Fields, MetricsLog, highest_total
from olmorl.learner.storage.rollout_log import RolloutLog
from olmorl.learner.storage.rollout_record import Ended
from olmorl.learner.waits import Waits
from olmorl.messages import STOP_ASKED, TRAIN_LANE, ActorStatus, Begin, Owner, StepReport, Stop, Version, Work
from olmorl.ports import Counts, Queue, Row
from olmorl.run_dir import RunFiles

T = TypeVar("T")
TAKE_LIMIT = 256
POLL_S = 0.2
"""Longest wait of one call for results."""
ROUND_S = 0.5
"""Interval between two checks of leases, heartbeats and evaluation lanes."""
LISTEN_S = 20.0
"""Time after which `stop_asked` answers no, at the next change."""


class RunProgress(NamedTuple):
    """The progress of the run."""

    step: int
    counts: Counts
    """The places of the live draws."""
    num_failed: int
    """Draws that failed since the last scored group."""
    failures: str
    """These failures in words; empty without any."""


class Orchestrator:
    """Runs one start of the learner. Implements `BatchSource`; built by `open`.

    Each part guards its own state: `draws` the draws, the evaluator its rounds. The orchestrator itself makes one line
    of `metrics.jsonl` at a time.
    """

    def __init__(
        self,
        config: Config,
        queue: Queue,
        clock: Clock,
        waits: Waits,
        *,
        begin: Begin,
        control: RunControl,
        draws: Draws,
        evaluator: Evaluator,
        ranks: RankCoordinator,
        metrics: StepMetrics,
        keeper: CheckpointKeeper,
    ) -> None:
        self._config = config
        self._queue = queue
        self._clock = clock
        self._begin = begin
        self._evaluator = evaluator
        self._ranks = ranks
        self._metrics = metrics
        self._keeper = keeper
        self._line = asyncio.Lock()
        """Held while a line of the metrics is made, amended or made durable."""
        self.waits = waits
        self.control = control
        self.draws = draws

    @classmethod
    async def open(
        cls,
        config: Config,
        queue: Queue,
        stream: Stream,
        clock: Clock,
        *,
        num_ranks: int,
        evaluations: Mapping[str, Sequence[Row]],
        resume: bool = False,
        from_step: int | None = None,
        observe: Callable[[Fields], None] | None = None,
        observe_ended: Callable[[Ended], None] | None = None,
        export: Export | None = None,
    ) -> Orchestrator:
        """Take over the run, recover its state, and build the orchestrator.

        Args:
            stream: the training prompts.
            num_ranks: of the learner.
            evaluations: rows of each evaluation set, by its name.
            resume: continue the run that the directory holds.
            from_step: go back to this checkpoint and abandon everything after it.
            observe: called with every line of `metrics.jsonl` when it is written.
            observe_ended: called with every draw that ends; again after the loss of the process that writes rollouts.
            export: makes the exports of `checkpoint.export_every`.

        Raises:
            UserError: the directory holds a run and `resume` is off, there is no checkpoint `from_step`, or the
                queue belongs to another run.
            DataError: the training data changed.
            Superseded: a newer start has taken over the run.
        """
        files, waits = RunFiles(config.run_dir), Waits(clock)
        disk, control = DiskWriter(clock, config.supervision.deadlines.checkpoint_s, waits), RunControl(queue, waits)
        source, last_step = DrawSource(stream, config.sampling.group_size, clock), config.schedule.steps
        recovered = await recovery.recover(
            files, queue, source, clock, disk, last_step=last_step, resume=resume, from_step=from_step
        )
        plan, changes = recovered.plan, recovered.ledger.state.changes
        if changes and (replaced := list(replaced_by_recipe(config, changes, plan.step + 1))):
            recovered.ledger.append(*replaced)
        rollouts = RolloutLog(files.rollouts, plan.incarnation, plan.step + 1, disk, observe_ended)
        draws = Draws(config, queue, recovered, rollouts, disk, clock, control, num_ranks)
        lines = MetricsLog(files.metrics, observe)
        tokens = int(highest_total(files, "tokens_evaluation_total"))
        evaluator = Evaluator(
            *(queue, evaluations, config.evaluation, clock, rollouts, last_step, recovered.evaluated, tokens),
            every=lambda version: draws.settings(version).evaluation.every,
        )
        wall_s = next(lines.newest_first(), {"wall_s": 0.0})["wall_s"]
        try:
            metrics = StepMetrics(lines, disk, clock.now(), wall_s, await queue.statuses(), draws.state.lost)
            await evaluator.start(lines.newest_first(), recovered.epoch)
            await draws.counts()
        except BaseException:
            await to_its_end(draws.close())
            raise
        ranks = RankCoordinator(config, draws, control, waits, num_ranks, plan.replay_to)
        ranks.expect_question()
        return cls(
            config,
            queue,
            clock,
            waits,
            begin=plan.begin(num_ranks),
            control=control,
            draws=draws,
            evaluator=evaluator,
            ranks=ranks,
            metrics=metrics,
            keeper=CheckpointKeeper(config, draws.settings, export),
        )

    @property
    def incarnation(self) -> int:
        """The number of this start of the learner."""
        return self._begin.incarnation

    async def run(self) -> str:
        """Serve until the run is over and its last checkpoint is complete; returns why it is over.

        Draws in flight stay in the queue for a later start.

        Raises:
            OlmoRLError: the error that ended the run. Every waiting rank gets it too.
        """
        tending = asyncio.create_task(self._tend())
        self.waits.follow(tending)
        self._keeper.begin_exports()
        try:
            while (stop := self._ranks.finished) is None:
                await self.waits.change()
            if stop.reason != STOP_ASKED:
                await self._last_exports()
            return stop.reason
        finally:
            # The next start cancels this one also while it closes, and the process that writes rollouts has to end.
            await to_its_end(self._close(tending))

    async def _close(self, tending: asyncio.Task[None]) -> None:
        await self._keeper.close()
        tending.cancel()
        await asyncio.wait([tending])
        await self.draws.close()

    # --- calls of the launcher ----------------------------------------------------------------------

    async def save(self) -> int:
        """Have the learner write a checkpoint after its current step; returns the step once it is complete.

        Raises:
            DeadlinePassed: it was not complete in time.
        """
        step = self._ranks.request_save()
        self.waits.notify()
        await self._wait(lambda: self._ranks.has_saved(step), f"the checkpoint of step {step}")
        return step

    async def progress(self) -> RunProgress:
        """The progress of the run."""
        # Waits for no change under way: people ask when something takes long.
        counts = await self._queue.counts(TRAIN_LANE)
        return RunProgress(self.draws.done, counts, *self.draws.failures)

    # --- calls of the ranks -------------------------------------------------------------------------

    async def begin(self, rank: int) -> Begin:
        return self._begin

    async def next(self, rank: int, step: int) -> Work:
        work = await self._explained(self._ranks.next(rank, step))
        if isinstance(work, Stop):
            await self._last_evaluation()
            await self._end_before(step, work)
        return work

    async def report(self, report: StepReport) -> None:
        """Record a step. A report that comes again is ignored."""
        self._ranks.reported(report.step)
        async with self._line:
            if report.step > self.draws.done:
                await self._record(report)
        self._ranks.expect_question()

    async def _record(self, report: StepReport) -> None:
        facts = self._ranks.batch(report.step).facts
        await self._hear()
        await self.draws.lose(self._metrics.lost())
        counts, in_flight = await self.draws.train(report.step, facts.trained_tokens)
        state, ended = self.draws.state, self.draws.exhausted
        line = self._metrics.line(report, facts, state, counts, in_flight, self._clock.now(), data_ended=ended)
        self.draws.check_newest()
        results = self._evaluator.results(report.step)
        await self._metrics.append(line | results)
        await self._keep_best(results)
        if self.draws.has_built(report.step + 1):
            self.waits.notify()  # rank 0 goes on with that batch, and `_tend` builds the one after it
        else:
            await self._advance()

    async def published(self, version: Version, seconds: float) -> None:
        self._metrics.published(seconds)
        if not self.control.stopping:
            await self._evaluator.begin_if_due(version)
        self.draws.publish(version)
        await self._advance()

    async def stop_asked(self) -> bool:
        deadline = self._clock.now() + LISTEN_S
        while not self.control.stopping and self._clock.now() < deadline:
            await self.waits.change()
        return self.control.stopping

    async def given_up(self, step: int) -> None:
        await self._end_before(step, Stop(reason=STOP_ASKED))

    async def _end_before(self, step: int, stop: Stop) -> None:
        await self._write_results()
        self._ranks.end_before(step, stop)
        self.waits.notify()

    async def saved(self, rank: int, step: int) -> None:
        """Complete the checkpoint after the last share: first the marker, then remove older checkpoints."""
        if not self._ranks.share_written(rank, step):
            return
        files, settings = RunFiles(self._config.run_dir), self._config.checkpoint
        await self.draws.write_rollouts()
        async with self._line:
            await self._metrics.sync()
        await self.draws.complete(step)
        self.waits.notify()
        await self._keeper.tidy(step)
        await in_thread(rollout_log.retain, files.rollouts, settings.rollouts, step, self.incarnation)

    # --- the loop -----------------------------------------------------------------------------------

    async def _tend(self) -> None:
        last_round = self._clock.now()
        while True:
            await self.draws.accept(TAKE_LIMIT, POLL_S)
            if self._clock.now() - last_round >= ROUND_S:
                last_round = self._clock.now()
                await self._check_all()
            await self._advance()

    async def declare_dead(self, actor: str) -> None:
        """Release the leases of the dead `actor`, and record what it has lost. If it still runs, it has to leave.

        Its heartbeat goes last: the launcher declares it dead again if this call does not come to its end, and the next
        start counts its loss if the run is over.
        """
        await self.control.declare_dead(actor)
        await self._hear()  # after the release: what it has stored is final
        self._metrics.died(actor)
        if await self.draws.lose(self._metrics.lost()):
            await self._queue.forget_actor(actor)

    async def _hear(self) -> Mapping[str, ActorStatus]:
        """Count the newest heartbeats, and return them."""
        statuses = await self._queue.statuses()
        self._metrics.heard(statuses, self._clock.now())
        return statuses

    async def _check_all(self) -> None:
        await self.draws.counts()
        await self._evaluator.collect(self.draws.epoch, self.control.paused)
        await self._queue.expire()
        await self.draws.observe(await self._hear())

    async def _advance(self) -> None:
        await self.draws.advance()
        self._metrics.ready(self.draws.num_ready, self._clock.now())
        self.waits.notify()

    # --- the end ------------------------------------------------------------------------------------

    async def _last_evaluation(self) -> None:
        """Evaluate the last published version, unless a stop was asked for."""
        limit_s = self._config.evaluation.deadline_s + self._config.learner.batch_deadline_s
        ranks, evaluator = self._ranks, self._evaluator
        await self._wait(lambda: self.control.stopping or ranks.all_published, "the last version's publishing")
        await self._wait(lambda: self.control.stopping or evaluator.idle, "the evaluation under way", limit_s)
        if (version := self.draws.published) is not None and not self.control.stopping:
            await self._write_results()
            await evaluator.begin(version)
        await self._wait(lambda: self.control.stopping or evaluator.idle, "the last evaluation", limit_s)

    async def _last_exports(self) -> None:
        """Make the exports that are due, unless a stop is asked for; then tidy up."""
        self._keeper.begin_exports()
        limit_s = self._config.supervision.deadlines.checkpoint_s
        with suppress(DeadlinePassed):
            await self._wait(lambda: self._keeper.idle or self.control.stopping, "the last exports", limit_s)
        await self._keeper.tidy(self.draws.done)

    async def _write_results(self) -> None:
        """Add the results of an evaluation that ended after the last step to its line."""
        async with self._line:
            if results := self._evaluator.results():
                await self._metrics.amend(results)
                await self._keep_best(results)

    async def _keep_best(self, results: Fields) -> None:
        """Look whether these results of an evaluation make another checkpoint the best one."""
        if any(map(self._keeper.is_metric, results)):
            await self._keeper.tidy(self.draws.done)

    async def _wait(self, ready: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        limit_s = limit_s or self._config.learner.batch_deadline_s
        await self._explained(self.waits.until(ready, what, Owner.ORCHESTRATOR, limit_s))

    async def _explained(self, wait: Coroutine[Any, Any, T]) -> T:
        """Add the places of all draws to the message of a passed deadline."""
        try:
            return await wait
        except DeadlinePassed as error:
            raise DeadlinePassed(f"{error}: {await self.draws.describe()}") from None
