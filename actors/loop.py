"""The actor's story: admit groups while the engine has room, generate, verify, commit.

    task       does                                           waits for                   ends with
    admit      leases prompts, starts one `serve` for each    room, prompts               drain, stop
    serve      generate, verify each, score, commit a group   the engine, the verifiers   its group
    update     applies the newest weights                     the weight store            the actor
    prove      has fixed tokens scored after each update      the engine                  the actor
    extend     keeps leases, cancels work whose lease is lost  time                        the actor
    report     heartbeats, commands, stall watch                time                        the actor

All live in one task group: an error in any of them ends the actor with that error as its cause. Its leases are then
released like the leases of a dead actor, so that a prompt that kills engines runs out of attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from olmorl import config, deadlines
from olmorl.actors import heartbeat
from olmorl.actors.admission import EVALUATION_SHARE, Intake, Lane, slots
from olmorl.actors.episodes.runner import Plays
from olmorl.actors.leased_groups import LeasedGroup, Order, held_sequences, place_in_engine
from olmorl.actors.sequence_times import SequenceTimes
from olmorl.actors.weight_follower import WeightFollower
from olmorl.actors.weight_proof import TOLERANCE
from olmorl.clock import Clock, within
from olmorl.errors import DeadlinePassed, PromptRefused, Unscorable, first_cause
from olmorl.log_context import note_facts
from olmorl.messages import TRAIN_LANE, ActorStatus, Completion, Failure, Group, Prompt, Result
from olmorl.model_cost import DevicePeak
from olmorl.ports import CommitOutcome, Engine, LeaseQueue, Sampling, Scorer, WeightSource

EXTENSIONS = 4
"""Times that a lease is extended within its length."""


class Actor:
    """Every lease ends in a commit, its loss or its return. A group is committed whole or not at all."""

    def __init__(
        self,
        *,
        name: str,
        engine: Engine,
        queue: LeaseQueue,
        weights: WeightSource,
        scorer: Scorer,
        clock: Clock,
        sample: Callable[[Prompt, int], Sampling],
        lanes: Sequence[Lane],
        settings: config.Actors,
        lease_s: float,
        max_lag: int,
        max_span: int | None = None,
        proof_tolerance: float = TOLERANCE["bfloat16"],
        evaluation_share: float = EVALUATION_SHARE,
        metrics: str = "",
        peak: DevicePeak | None = None,
        play: Plays | None = None,
    ) -> None:
        """`sample` gives the parameters of each completion, `lanes` comes from `admission.lanes`.

        While the engine drains, or stays more than `max_lag` versions behind, the actor leases nothing and gives back
        groups that have not begun. With `max_span`, a training answer that spans more versions is cancelled, and its
        group fails as `stale` (`over_age = "drop"`). `peak`: of all devices of the engine together. `play` is for
        episodes.
        """
        self.name = name
        self._engine = engine
        self._queue = queue
        self._scorer = scorer
        self._clock = clock
        self._sample = sample
        self._settings = settings
        self._lease_s = lease_s
        self._max_span = max_span
        self._metrics = metrics
        self._peak = peak or DevicePeak()
        self._intake = Intake(name, engine, queue, lanes, settings, evaluation_share)
        self._weights = WeightFollower(
            weights,
            engine,
            clock,
            owner=name,
            poll_s=deadlines.BETWEEN_LOOKS_S,
            deadline_s=settings.stall_deadline_s,
            max_lag=max_lag,
            drains=settings.weight_update == "drain",
            tolerance=proof_tolerance,
        )
        self._watch = heartbeat.StallWatch(name, settings.stall_deadline_s)
        self._totals = heartbeat.Totals()
        self._episodes = play.player(engine, clock, self._note_change) if play else None
        self._works: dict[str, LeasedGroup] = {}
        self._order = Order.RUN
        self._times: SequenceTimes | None = None
        self._noting: asyncio.Handle | None = None
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Start, serve until told to drain or stop, and leave nothing behind.

        Raises:
            DeadlinePassed: the engine, the weights or the verifiers gave no sign for their deadline.
            OlmoRLError: another cause ended the actor; of several causes the first.
        """
        async with contextlib.AsyncExitStack() as owned:
            owned.callback(self._ended.set)
            owned.push_async_callback(self._engine.stop)
            owned.push_async_callback(self._scorer.stop)
            if self._episodes:
                owned.push_async_callback(self._episodes.stop)
            try:
                await self._live()
            except BaseExceptionGroup as group:
                raise first_cause(group) from group

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            standing = [tasks.create_task(self._report())]
            await self._start()
            standing += [
                tasks.create_task(each) for each in (self._update(), self._extend(), self._weights.prover.run())
            ]
            await self._admit(tasks)
            await self._leave()
            for task in standing:
                task.cancel()
        await self._queue.heartbeat(self.status())

    async def drain(self) -> None:
        """Lease no more, finish the leased groups, leave. Returns when `run` ended; the caller sets the deadline."""
        self._obey(Order.DRAIN)
        await self._ended.wait()

    async def stop(self) -> None:
        """Give all leases back and leave. Returns when `run` ended; the caller sets the deadline."""
        self._obey(Order.STOP)
        await self._ended.wait()

    async def _start(self) -> None:
        awaited = f"the engine and the verifiers of {self.name} to start (actors.start_deadline_s)"
        try:
            async with within(self._settings.start_deadline_s, awaited):
                await self._scorer.start()  # first: an engine waits until its libraries are imported, in a thread
                if self._episodes:
                    await self._episodes.start()
                newest = await self._weights.newest()
                with contextlib.nullcontext() if newest is None else self._weights.prover.taking(newest.manifest):
                    await self._engine.start(newest)
        except DeadlinePassed as error:
            if not self._weights.trouble:
                raise
            raise DeadlinePassed(f"{error}: weights could not be fetched: {self._weights.trouble}") from None
        self._times = SequenceTimes(self._clock.now())

    async def _admit(self, tasks: asyncio.TaskGroup) -> None:
        while not self._order.final:
            held = held_sequences(self._works.values())
            if self._order is Order.PAUSE or self._weights.trails or not self._intake.room(held):
                await self._change()
                continue
            for lease in await self._intake.lease(held):
                if lease.lease_id in self._works:
                    continue  # after a fail-over that lost the lease, the queue leased the draw to the same actor again
                work = LeasedGroup(lease, place_in_engine(lease.prompt, self._works.values()))
                self._works[lease.lease_id] = work
                self._note_change()
                work.task = tasks.create_task(self._serve(work))
            await asyncio.sleep(0)  # the other actors of this event loop lease before this one leases more

    async def _serve(self, work: LeasedGroup) -> None:
        note_facts(actor=self.name, lane=work.prompt.lane, prompt=work.prompt.draw_id, attempt=work.prompt.attempt)
        try:
            if not await self._weights.reach(work.prompt.min_version):
                await self._queue.give_back([work.lease])
                return
            work.version, work.started_at = self._engine.version, self._clock.wall()
            self._note_change()
            await self._commit(work, await self._answer(work))
        finally:
            del self._works[work.lease.lease_id]
            self._totals.ended(work)
            self._note_change()

    async def _answer(self, work: LeasedGroup) -> Result:
        """The scored group, or the failure of the draw. Every other error ends the actor."""
        try:
            async with asyncio.TaskGroup() as samples:
                tasks = [samples.create_task(self._complete(work, i)) for i in range(work.prompt.group_size)]
            scored = await self._scorer.combine(work.prompt, [task.result() for task in tasks])
        except asyncio.CancelledError:
            if not work.stale:
                raise
            return self._failure(work, "stale", f"unfinished over {self._max_span} versions after {work.version}")
        except (ExceptionGroup, Unscorable) as error:
            match first_cause(error):
                case PromptRefused() as cause:
                    return self._failure(work, "over_long", str(cause))
                case Unscorable() as cause:
                    return self._failure(work, "unscorable", str(cause))
            raise
        return Group(
            prompt=work.prompt,
            completions=scored,
            actor=self.name,
            started_at=work.started_at,
            finished_at=self._clock.wall(),
        )

    async def _complete(self, work: LeasedGroup, index: int) -> Completion:
        return await self._verify(work, await self._generate(work, index))

    async def _generate(self, work: LeasedGroup, index: int) -> Completion:
        prompt = work.prompt
        # Not by the attempt: after a fail-over the queue may give out the same attempt under another lease.
        request_id = f"{prompt.lane}/{work.lease.lease_id}/{index}"
        try:
            sampling = self._sample(prompt, index)
            if prompt.episode is UNSET:
                completion = await self._engine.generate(request_id, prompt.token_ids, sampling, work.priority)
                work.num_tokens += len(completion.token_ids)
            else:
                assert self._episodes is not None, "a prompt that is an episode, in a run of single answers"
                completion = await self._episodes.run(work, index, request_id, sampling)
        finally:
            work.num_generating -= 1
            self._note_change()
        return replace(completion, index=index, generated_at=self._clock.wall())

    async def _verify(self, work: LeasedGroup, completion: Completion) -> Completion:
        work.num_unverified += 1
        self._note_change()
        verdicts = await self._scorer.verify(work.prompt, completion)
        verified = replace(completion, verdicts=completion.verdicts | verdicts)
        work.num_unverified -= 1
        self._note_change()
        self._totals.verified(verified)
        return verified

    async def _commit(self, work: LeasedGroup, result: Result) -> None:
        await self._weights.prover.proven()
        work.committing = True
        outcome = await self._queue.commit(work.lease, result)
        work.stored = outcome is CommitOutcome.STORED
        self._totals.committed(outcome)

    async def _update(self) -> None:
        while True:
            update = await self._weights.next_update()
            self._changed.set()
            for work in self._works.values():
                trains = work.prompt.lane == TRAIN_LANE
                if trains and self._max_span is not None and work.outlived(update.version, self._max_span):
                    work.stale = True
                    work.cancel()

    async def _extend(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / EXTENSIONS)
            held = list(self._works.values())
            lost = await self._queue.extend([work.lease for work in held]) if held else set()
            for work in held:
                if work.lease.lease_id in lost:
                    work.cancel()

    async def _report(self) -> None:
        while True:
            self._obey(Order(await self._queue.heartbeat(self.status())))
            if self._times:
                started = [work for work in self._works.values() if work.version]
                begun = sum(work.num_generating - work.num_waiting for work in started)
                tokens, draining = self._engine.tokens_generated, self._weights.draining
                self._watch.check(self._clock.now(), begun, tokens, draining=draining)
                await self._weights.check()
            await self._clock.sleep(deadlines.BETWEEN_HEARTBEATS_S)

    async def _leave(self) -> None:
        """Wait for the leased groups; after a stop, cancel them and give them back."""
        while self._works and self._order is not Order.STOP:
            await self._change()
        left = list(self._works.values())
        for work in left:
            work.cancel()
        if tasks := [work.task for work in left if work.task]:
            await asyncio.wait(tasks)
            await self._queue.give_back([work.lease for work in left if not work.committing])

    def status(self) -> ActorStatus:
        """The actor's status for its next heartbeat."""
        state = self._order.value if self._times else "starting"
        now = heartbeat.of_process(self.name, self._clock.wall(), state, self._metrics, self._weights.damaged)
        if self._times is None:
            return now
        self._note_times()
        episodes = self._episodes.counts() if self._episodes else {}
        return heartbeat.with_engine(
            now, self._engine, self._weights, self._scorer, self._totals, self._times, self._peak, episodes
        )

    def _failure(self, work: LeasedGroup, cause: str, detail: str) -> Failure:
        return Failure(prompt=work.prompt, cause=cause, detail=detail, actor=self.name, num_tokens=work.num_tokens)

    def _obey(self, order: Order) -> None:
        if not self._order.final or order is Order.STOP:
            self._order = order
            self._changed.set()

    def _note_change(self) -> None:
        """A sequence or a group came, moved on or ended. All changes of one turn of the loop are noted at its end."""
        if self._noting is None:
            self._noting = asyncio.get_running_loop().call_soon(self._note_times)
        self._changed.set()

    def _note_times(self) -> None:
        self._noting = None
        if self._times is not None:
            room = slots(self._engine.load(), config.KV_HEADROOM)
            self._times.note(self._clock.now(), self._works.values(), room)

    async def _change(self) -> None:
        """Wait until a sequence or a group ends or a command comes, at most one heartbeat interval."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadlines.BETWEEN_HEARTBEATS_S):
                await self._changed.wait()
