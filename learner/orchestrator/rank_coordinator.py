"""The orchestrator's side of the learner's ranks: their work, their deadlines and their reports.

A rank asks for a step and gets its shard of the batch, a `Save` or a `Stop`.
"""

from __future__ import annotations

from olmorl.config import Config
from olmorl.learner.batching.batch import Batch
from olmorl.learner.orchestrator.draws import Draws
from olmorl.learner.orchestrator.run_control import RunControl
from olmorl.learner.waits import Waits
from olmorl.messages import STOP_ASKED, Owner, Save, Shard, Stage, Stop, Work

_QUESTION, _END = "the learner to ask for a step", "the learner's end, its export included"


class RankCoordinator:
    """All ranks get the same work for a step, in the same order, and each phase of the learner has a deadline.

    The work for a step is decided when the first rank gets it. The deadlines are rank 0's: it reports only after
    the others have taken the step too.
    """

    def __init__(
        self, config: Config, draws: Draws, control: RunControl, waits: Waits, num_ranks: int, replay_to: int
    ) -> None:
        """The steps up to `replay_to` come from the journal."""
        self._config = config
        self._draws = draws
        self._control = control
        self._waits = waits
        self._num_ranks = num_ranks
        self._decided: dict[int, Batch | Stop] = {}
        self._asked: dict[int, int] = {}
        """The last step that each rank asked for."""
        self._save_before: int | None = None
        self._told_to_save: set[int] = set()
        self._shares: dict[int, set[int]] = {}
        """Ranks that have written their shares of a checkpoint, by its step, until it is complete."""
        self._last_to_publish = replay_to
        """The newest version that the work handed out so far publishes."""
        self._end: tuple[int, Stop] | None = None
        """The last step, and why no further one comes."""

    # --- work for a step ----------------------------------------------------------------------------

    async def next(self, rank: int, step: int) -> Work:
        """Wait for the work for `step`. A repeated call gets the same answer, but a `Save` comes only once.

        Raises:
            DeadlinePassed: no batch within `learner.batch_deadline_s`.
            OlmoRLError: the error that ended the orchestrator.
        """
        if rank == 0:
            self._waits.end(_QUESTION)
        self._asked[rank] = step
        self._forget_finished()
        await self._waits.until(
            lambda: self._must_save(rank, step) or self._decision(step) is not None,
            f"the batch of step {step}",
            Owner.ORCHESTRATOR,
            self._config.learner.batch_deadline_s,
            Stage.BATCH,
        )
        work = self._hand_out(rank, step)
        if rank == 0 and isinstance(work, Shard):
            self._expect(_report_of(work.step), Stage.TRAINING)
        elif rank == 0 and isinstance(work, Save):
            self._expect(_QUESTION, Stage.ASKING)
        return work

    def batch(self, step: int) -> Batch:
        """The batch that was handed out for `step`."""
        batch = self._decided[step]
        assert isinstance(batch, Batch)
        return batch

    def _must_save(self, rank: int, step: int) -> bool:
        return step == self._save_before and rank not in self._told_to_save

    def _decision(self, step: int) -> Batch | Stop | None:
        """The work for `step` as far as it is known; changes nothing."""
        if step in self._decided:
            return self._decided[step]
        if self._control.stopping:
            return Stop(reason=STOP_ASKED)
        if step > (steps := self._config.schedule.steps):
            return Stop(reason=f"all {steps} steps are done", export=True)
        batch = self._draws.batch(step)
        if batch is None and self._draws.over:
            return Stop(reason=f"the data ended after {step - 1} steps", export=True)
        return batch

    def _hand_out(self, rank: int, step: int) -> Work:
        if self._must_save(rank, step):
            self._told_to_save.add(rank)
            return Save()
        decision = self._decision(step)
        assert decision is not None
        if step not in self._decided:
            self._decided[step] = decision
            if isinstance(decision, Batch):
                self._draws.take_batch(step)
                self._last_to_publish = step if decision.publishes else self._last_to_publish
        return decision.shards[rank] if isinstance(decision, Batch) else decision

    def _forget_finished(self) -> None:
        if len(self._asked) == self._num_ranks:
            oldest = min(self._asked.values())
            self._decided = {step: decision for step, decision in self._decided.items() if step >= oldest}

    # --- reports ------------------------------------------------------------------------------------

    def expect_question(self) -> None:
        """Begin the deadline for the next question: the learner starts, or has the answer to its report."""
        self._expect(_QUESTION, Stage.ASKING)

    def reported(self, step: int) -> None:
        """End the deadline for the report of `step`. None runs until its answer, which may wait for the disk."""
        self._waits.end(_report_of(step))

    @property
    def all_published(self) -> bool:
        """Whether actors can fetch the newest version that the work handed out so far publishes."""
        published = self._draws.published
        return published is not None and published.number == self._last_to_publish

    def end_before(self, step: int, stop: Stop) -> None:
        """Begin the deadline for the learner's end: it was told to stop, or gave up `step`."""
        self._end = step - 1, stop
        self._waits.end(_report_of(step))
        self._expect(_END)

    @property
    def finished(self) -> Stop | None:
        """Why the run is over, once the last step is recorded and its checkpoint is complete."""
        # A rank may be told to stop before rank 0 has reported the last step.
        if self._end is not None and self._end[0] == self._draws.done == self._draws.saved:
            return self._end[1]
        return None

    def _expect(self, what: str, stage: Stage | None = None) -> None:
        self._waits.begin(what, Owner.LEARNER, self._config.supervision.deadlines.step_s, stage=stage)

    # --- checkpoints --------------------------------------------------------------------------------

    def request_save(self) -> int:
        """Have every rank save after the work that it was handed; returns the step that will be saved."""
        if self._draws.saved == (done := self._draws.done):
            return done
        if self._save_before is None or len(self._told_to_save) == self._num_ranks:
            handed_out = [step for step, work in self._decided.items() if isinstance(work, Batch)]
            self._save_before, self._told_to_save = max([done, *handed_out]) + 1, set()
        return self._save_before - 1

    def has_saved(self, step: int) -> bool:
        """Whether a checkpoint of `step` or a later one is complete."""
        return self._draws.saved is not None and self._draws.saved >= step

    def share_written(self, rank: int, step: int) -> bool:
        """Note that a rank's share of a checkpoint is on disk; returns whether it was the last one of `step`."""
        ranks = self._shares.setdefault(step, set())
        ranks.add(rank)
        what = f"all shares of the checkpoint of step {step}"
        if len(ranks) < self._num_ranks:
            # Only for the list of waits: each rank ends its own write at this deadline.
            self._waits.begin(what, Owner.LEARNER_RANKS, self._config.supervision.deadlines.checkpoint_s)
            return False
        self._waits.end(what)
        del self._shares[step]
        return True


def _report_of(step: int) -> str:
    return f"the report of step {step}"
