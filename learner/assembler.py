"""The assembler: prompts out, groups in, batches to the learner. One object is one start of the learner.

verb       does                                                       waits for
settle     decides what is filtered, shelves what may be trained      results
draw       keeps as much in flight as the lag allows                  a published version, a finished step
assemble   journals the next batch and packs it, one step ahead       enough groups that may go now
next       hands a rank its shard                                     the batch, then the end of evaluation
report     books the step, writes its line                            -
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from olmorl.clock import Clock
from olmorl.config import Config
from olmorl.errors import DeadlinePassed
from olmorl.learner import checkpoint, dead_letters, durable, ledger, recovery
from olmorl.learner.batch import Composer
from olmorl.learner.bell import Bell
from olmorl.learner.books import Books
from olmorl.learner.census import Census
from olmorl.learner.dead_letters import DeadLetters
from olmorl.learner.draws import Draws, Stream
from olmorl.learner.evaluation import Evaluator, newest_version
from olmorl.learner.handout import Handout
from olmorl.learner.journal import Journal
from olmorl.learner.lines import Fields, Lines
from olmorl.learner.orders import Orders
from olmorl.learner.owed import Owed
from olmorl.learner.pipeline import Pipeline
from olmorl.learner.progress import Meter
from olmorl.learner.recovery import RunFiles
from olmorl.learner.roll_call import RollCall
from olmorl.learner.rollouts import Rollouts
from olmorl.learner.room import Room
from olmorl.learner.thread import in_thread
from olmorl.learner.waiting import Waits
from olmorl.messages import STOP_ASKED, TRAIN_LANE, Begin, StepReport, Stop, Version, Work
from olmorl.ports import Counts, Queue, Row

TAKE_LIMIT = 256
POLL_S = 0.2
"""How long one look for results takes at most."""
ROUND_S = 0.5
"""How often leases, heartbeats and evaluation lanes are looked at."""
LISTEN_S = 20.0
"""How long one question for a stop waits for its answer."""
ASSEMBLER = "the assembler"
"""Owner of waits."""


class Assembler:
    """Every draw is in exactly one place: the queue, the journal, or its outcome. Implements `BatchSource`.

    Args:
        stream: the training prompts.
        num_ranks: of the learner.
        evaluations: rows of each evaluation set, by its name.
        resume: continue the run that the directory holds.
        from_step: go back to this checkpoint and abandon what came after it.
        observe: called with every line of `metrics.jsonl` as it is written.
    """

    def __init__(
        self,
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
    ) -> None:
        self._config = config
        self._queue = queue
        self._clock = clock
        self._resume = resume
        self._from_step = from_step
        self._files = RunFiles(config.run_dir)
        self._journal = Journal(self._files.journal)
        self._lines = Lines(self._files.lines, observe)
        self._draws = Draws(stream, config.sampling.group_size)
        self._num_ranks = num_ranks
        self._composer = Composer(config, num_ranks)
        self._evaluator = Evaluator(queue, evaluations, config.evaluation, clock, config.schedule.steps)
        self._turn = asyncio.Lock()
        self._bell = Bell()
        self.waits = Waits(self._bell, clock)
        self._owed = Owed(self.waits, config.supervision.step_deadline_s)
        self._room = Room(clock, config.checkpoint.deadline_s, self.waits)
        self._roll_call = RollCall(num_ranks, self.waits, config.checkpoint.deadline_s)
        self._published: int | None = None
        self.orders = Orders(queue, self.waits, self._bell)
        self._over = False
        self._stopped: Stop | None = None
        self._last_step: int | None = None

    # --- life -------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the run over and recover what it left.

        Raises:
            UserError: the directory holds a run and `resume` is off, there is no checkpoint `from_step`, or the
                queue is another run's.
            DataError: the training data changed.
            Superseded: a newer start has taken the run over.
        """
        recovery.check_free(self._files, self._resume)
        self.incarnation = ledger.acquire(self._files.ledger)
        await self._room.use(partial(in_thread, durable.check_room, self._files.ledger / f"{self.incarnation}.room"))
        await recovery.claim(self._queue, self._files, self.incarnation)
        if self._from_step is not None:
            await recovery.go_back(self._queue, self._files, self.incarnation, self._from_step)
        self._plan = recovery.plan(self._files, self.incarnation, self._config.schedule.steps)
        self._ledger = recovery.open_ledger(self._files, self._plan, self._draws)
        self._evaluated = recovery.cut_lines(self._files, self._plan)
        epoch = await self._queue.epoch()
        emptied = await recovery.flush_unless_trusted(self._queue, self._ledger.accounts) or self._from_step is not None
        await dead_letters.disown(self._queue, self._ledger.accounts, emptied)
        found = await recovery.reconcile(self._queue, self._ledger.accounts)
        self._rollouts = Rollouts(self._files.rollouts, self.incarnation, self._plan.step + 1, self._room)
        self._books = Books(
            self._queue, self._ledger, self._journal, self._rollouts, self._draws, self._room, self.incarnation, found
        )
        self._done = self._plan.step
        self._saved = None if self._plan.checkpoint is None else self._plan.step
        self._pipeline = Pipeline(self._config, self._books, self._composer, self._done, self._plan.replay_to)
        self._census = Census(self._queue, epoch, self._books, self._pipeline, self._evaluator, self.orders)
        self.dead_letters = DeadLetters(self._queue, self._books, self._turn)
        steps = self._config.schedule.steps
        self._handout = Handout(self._pipeline, self._num_ranks, steps, self._done, self._plan.replay_to)
        lines = self._lines.read()
        self._meter = Meter(self._clock.now(), lines[-1]["wall_s"] if lines else 0.0, await self._queue.statuses())
        await self._evaluator.start(newest_version([*lines, *self._evaluated.values()]))
        await self._census.counts()
        self._owed.question()

    async def run(self) -> str:
        """Serve until every step is done, or a stop was asked for, and the last checkpoint is complete; returns why.

        What is still in flight then stays where it is, for a later start.

        Raises:
            OlmoRLError: what ended the run; every rank that waits gets it too.
        """
        tending = asyncio.create_task(self._tend())
        self._bell.follow(tending)
        try:
            # A rank may hear of the stop before rank 0 has reported the step that came last.
            while self._stopped is None or not self._last_step == self._done == self._saved:
                await self._bell.heard()
            return self._stopped.reason
        finally:
            self._over = True
            tending.cancel()
            await asyncio.wait([tending])
            await self._rollouts.close()
            self._ledger.close()

    # --- the launcher's side ------------------------------------------------------------------------

    async def save(self) -> int:
        """Have the learner write a checkpoint after its current step; returns the step once it is complete.

        Raises:
            DeadlinePassed: it was not.
        """
        step = self._done if self._saved == self._done else self._handout.save()
        self._bell.ring()
        await self._wait(lambda: self._saved is not None and self._saved >= step, f"the checkpoint of step {step}")
        return step

    async def look(self) -> tuple[int, Counts]:
        """Steps done, and where the live draws are."""
        # Not in turn: people look just when something takes long.
        return self._done, await self._queue.counts(TRAIN_LANE)

    # --- the learner's side -----------------------------------------------------------------------

    async def begin(self, rank: int) -> Begin:
        """As the port says; the same for every rank."""
        step, replay_to, folder = self._plan.step, self._plan.replay_to, self._plan.checkpoint
        shares = None if folder is None else str(folder)
        return Begin(incarnation=self.incarnation, step=step, checkpoint=shares, publish=replay_to == step)

    async def next(self, rank: int, step: int) -> Work:
        """As the port says.

        Raises:
            DeadlinePassed: no batch within `learner.batch_deadline_s`.
            NothingToLearn: too many groups in a row without a gradient.
            OlmoRLError: whatever else ended the assembler.
        """
        work: Work | None = None
        self._owed.asked(rank)

        def ready() -> bool:
            nonlocal work
            work = self._handout.next(rank, step, self.orders.stopping)
            return work is not None

        await self._wait(ready, f"the batch of step {step}")
        assert work is not None
        self._owed.answered(rank, work)
        if isinstance(work, Stop):
            await self._last_evaluation()
            await self._end_before(step, work)
        return work

    async def report(self, report: StepReport) -> None:
        """As the port says; a step that is booked already is not booked again."""
        self._owed.reported(report.step)
        async with self._turn:
            if report.step > self._done:
                await self._book(report)
        self._owed.question()

    async def _book(self, report: StepReport) -> None:
        batch = self._handout.batch(report.step)
        self._meter.heard(await self._queue.statuses())
        await self._books.train(report.step, batch.facts.trained_tokens, self._meter.wasted())
        self._done = report.step
        counts, in_flight = await self._census.counts()
        line = self._meter.line(report, batch.facts, self._books.accounts, counts, in_flight, self._clock.now())
        self._ledger.check_newest()
        line |= {**self._evaluated.get(report.step, {}), **self._evaluator.results()}
        await self._room.use(partial(in_thread, self._lines.append, line))
        await self._advance()

    async def published(self, version: Version, seconds: float) -> None:
        """As the port says."""
        async with self._turn:
            self._published = version.number
            self._meter.published(seconds)
            if self._evaluator.is_due(version.number) and not self.orders.stopping:
                await self._evaluator.ask(version)
            await self._advance()

    async def stop_asked(self) -> bool:
        """As the port says."""
        deadline = self._clock.now() + LISTEN_S
        while not self.orders.stopping and self._clock.now() < deadline:
            await self._bell.heard()
        return self.orders.stopping

    async def given_up(self, step: int) -> None:
        """As the port says."""
        await self._end_before(step, Stop(reason=STOP_ASKED))

    async def _end_before(self, step: int, stop: Stop) -> None:
        async with self._turn:
            if results := self._evaluator.results():
                await self._room.use(partial(in_thread, self._lines.amend, results))
        self._stopped, self._last_step = stop, step - 1
        self._owed.end()
        self._bell.ring()

    async def saved(self, rank: int, step: int) -> None:
        """As the port says. The marker is written last; only then are older checkpoints and journals removed."""
        if not self._roll_call.answer(rank, step):
            return
        async with self._turn:
            await self._census.counts()
            await self._rollouts.flush()
            await in_thread(self._lines.sync)
            await self._books.complete(self._files.checkpoints, step)
            self._saved = step
            self._bell.ring()
        await in_thread(checkpoint.retain, self._files.checkpoints, self._config.checkpoint.keep)

    # --- the verbs --------------------------------------------------------------------------------

    async def _tend(self) -> None:
        last_round = self._clock.now()
        while True:
            epoch = self._census.epoch
            taken = await self._queue.take(TAKE_LIMIT, TRAIN_LANE, POLL_S)
            async with self._turn:
                # A comparison that came between has everything taken anew.
                if self._census.epoch == epoch:
                    await self._pipeline.settle(taken)
                if self._clock.now() - last_round >= ROUND_S:
                    last_round = self._clock.now()
                    await self._look_around()
                await self._advance()

    async def _look_around(self) -> None:
        await self._census.counts()
        await self._census.evaluation()
        await self._queue.expire()
        self._meter.heard(await self._queue.statuses())

    async def _advance(self) -> None:
        if self._over:
            return  # the publishing of the last version may end after the run: the books are closed
        if self._published is not None and self.orders.drawing:
            await self._pipeline.draw(Version(self.incarnation, self._published), self._done)
        await self._pipeline.assemble(self._done)
        if not self.orders.stopping:
            await self._pipeline.end_of_stream()
        self._bell.ring()

    # --- the end ----------------------------------------------------------------------------------

    async def _last_evaluation(self) -> None:
        """Unless a stop was asked for, evaluate the last published version."""
        limit_s = self._config.evaluation.deadline_s + self._config.learner.batch_deadline_s
        newest = self._handout.to_publish
        await self._wait(lambda: self.orders.stopping or self._published == newest, "the last version's publishing")
        await self._wait(lambda: self.orders.stopping or self._evaluator.idle, "the evaluation under way", limit_s)
        if self._published is not None and not self.orders.stopping:
            async with self._turn:
                await self._evaluator.ask(Version(self.incarnation, self._published))
        await self._wait(lambda: self.orders.stopping or self._evaluator.idle, "the last evaluation", limit_s)

    async def _wait(self, ready: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
        """Wait until `ready`, or for the error that ended the background work."""
        try:
            await self.waits.until(ready, what, ASSEMBLER, limit_s or self._config.learner.batch_deadline_s)
        except DeadlinePassed as error:
            raise DeadlinePassed(f"{error}: {await self._census.describe(self._turn)}") from None
