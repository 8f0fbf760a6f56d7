"""An engine and a scorer without a model: times from `Simulation`, in real or in simulated time.

It batches continuously, applies updates between two steps and labels each token, as the real one does. Time jumps
from one finish to the next instead of ticking token by token, so hundreds of engines cost little. The timers
belong to the running event loop, which simulates time.

Convention: the last token of a completion is `RIGHT` or `WRONG`; all others are `FILLER`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import attrgetter

import msgspec
import numpy as np

from olmorl.actors.fake_answers import FakeAnswers, RandomAnswers
from olmorl.config import Config
from olmorl.errors import PromptRefused
from olmorl.messages import (
    REFERENCE,
    TEACHER,
    TRAIN_LANE,
    Completion,
    Floats,
    Probe,
    Prompt,
    Span,
    TokenIds,
    Verdict,
    Version,
)
from olmorl.ports import EngineLoad, EngineUse, Sampling, StagedWeights, Update
from olmorl.simulation import Simulation

WRONG, RIGHT, FILLER = 0, 1, 2
LOGPROB = -0.5
TAUGHT = np.array([-3.0, -0.1, LOGPROB], np.float32)
"""Log-probability of each token under the teacher."""


@dataclass(eq=False, slots=True)
class _Sequence:
    """A request in the engine; ordered by the step that samples its last token."""

    num_tokens: int
    prompt_tokens: int
    priority: int
    done: asyncio.Future[int]
    """Gets the step before the first token."""
    last_step: int = 0

    def __lt__(self, other: _Sequence) -> bool:
        return self.last_step < other.last_step


class FakeEngine:
    """All running sequences gain one token a step; a step gets slower with each of them."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        max_running: int,
        max_model_len: int,
        kv_tokens: int | None = None,
        answers: FakeAnswers | None = None,
        recompute: bool = False,
    ) -> None:
        """`answers` are random ones by default. With `recompute` an update computes the KV cache again."""
        self._simulation = simulation
        self._answers = answers or RandomAnswers(simulation)
        self._max_running = max_running
        self._max_model_len = max_model_len
        self._kv_tokens = kv_tokens or max_running * max_model_len
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._step = 0
        self._step_at = 0.0
        self._cached_tokens = 0
        self._generated = 0
        self._aborted = 0
        self._busy_s = 0.0
        self._running_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at: float | None = None
        self._recompute = recompute
        self._updating = False
        self._held = False
        """Whether waiting sequences may not begin."""
        self._empty = asyncio.Event()
        """Set when no sequence runs, while they are held."""
        self._since: list[int] = [0]
        self._versions: list[Version] = [Version(0, 0)]
        self._probe: Probe | None = None

    async def start(self, weights: StagedWeights | None) -> None:
        if weights:
            self._versions, self._probe = [weights.manifest.version], weights.manifest.probe
        self._step_at = _now()

    async def stop(self) -> None:
        for sequence in (*self._running, *self._waiting):
            sequence.done.cancel()
        self._running, self._cached_tokens = [], 0
        self._waiting.clear()
        self._set_timer()

    @property
    def version(self) -> Version:
        return self._versions[-1]

    @property
    def tokens_generated(self) -> int:
        self._advance()
        return self._generated

    @property
    def tokens_aborted(self) -> int:
        return self._aborted

    def use(self) -> EngineUse:
        self._advance()
        return EngineUse(self._busy_s, self._running_s)

    def load(self) -> EngineLoad:
        self._advance()
        kv_used = min(1.0, self._cached_tokens / self._kv_tokens)
        return EngineLoad(len(self._running), len(self._waiting), kv_used, self._max_running)

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> Completion:
        """The answer comes from `answers`; the version of its first token may decide whether it is right."""
        if len(prompt) >= self._max_model_len:
            raise PromptRefused(f"prompt of {len(prompt)} tokens, the context has {self._max_model_len}")
        answer = self._answers.sample(request_id, prompt, sampling)
        limit = min(sampling.max_tokens, self._max_model_len - len(prompt))
        wanted = max(1, sampling.min_tokens, answer.num_tokens)
        num_tokens = min(wanted, limit)
        sequence = _Sequence(num_tokens, len(prompt), priority, asyncio.get_running_loop().create_future())
        self._advance()
        insort(self._waiting, sequence, key=attrgetter("priority"))
        self._fill()
        try:
            first_step = await sequence.done
        except asyncio.CancelledError:
            self._abort(sequence)
            raise
        spans = self._spans(first_step, num_tokens)
        right = wanted <= limit and answer.is_right(spans[0].version)
        return Completion(
            index=0,
            token_ids=np.array([FILLER] * (num_tokens - 1) + [RIGHT if right else WRONG], np.int32),
            logprobs=np.full(num_tokens, LOGPROB, np.float32),
            spans=spans,
            finish_reason="stop" if wanted <= limit else "length",
            text="right" if right else "wrong",
        )

    async def update(self, staged: StagedWeights) -> Update:
        """The current step starts again after the stall, and is the first of the new version."""
        self._advance()
        self._updating = True
        self._set_timer()
        started = _now()
        recomputed = self._cached_tokens if self._recompute else 0
        try:
            await asyncio.sleep(self._simulation.update_s + recomputed / self._simulation.recompute_tokens_per_s)
            self._since.append(self._step)
            self._versions.append(staged.manifest.version)
            self._probe = staged.manifest.probe
        finally:
            self._updating, self._step_at = False, _now()
            self._fill()
        return Update(staged.manifest.version, _now() - started)

    @asynccontextmanager
    async def drained(self) -> AsyncIterator[None]:
        self._held = True
        self._empty.clear()
        self._fill()
        try:
            await self._empty.wait()
            yield
        finally:
            self._held = False
            self._fill()

    async def score(self, token_ids: Sequence[int]) -> Floats:
        """The learner's own values for the version in use: there is no model to compute others."""
        assert self._probe is not None and tuple(token_ids) == self._probe.token_ids
        return np.array(self._probe.logprobs, np.float32)

    @property
    def _step_s(self) -> float:
        slowdown = 1 + self._simulation.batch_slowdown * (len(self._running) - 1)
        return slowdown / self._simulation.tokens_per_s

    def _advance(self) -> None:
        """Make all steps that have ended by now, up to the next finish."""
        if self._updating or not self._running:
            self._step_at = max(self._step_at, _now())
            return
        step_s = self._step_s
        steps = min(int((_now() - self._step_at) / step_s + 1e-6), self._running[0].last_step - self._step)
        self._step += steps
        self._step_at += steps * step_s
        self._generated += steps * len(self._running)
        self._busy_s += steps * step_s
        self._running_s += steps * step_s * len(self._running)
        self._cached_tokens += steps * len(self._running)

    def _on_timer(self) -> None:
        self._timer = self._rings_at = None
        self._advance()
        while self._running and self._running[0].last_step <= self._step:
            sequence = heappop(self._running)
            self._cached_tokens -= sequence.prompt_tokens + sequence.num_tokens
            if not sequence.done.done():
                sequence.done.set_result(self._step - sequence.num_tokens)
        self._fill()

    def _fill(self) -> None:
        """Let waiting sequences run while there is a slot and their prompt fits the KV cache."""
        if self._held and not self._running:
            self._empty.set()
        while not self._held and self._waiting and len(self._running) < self._max_running:
            cached = self._cached_tokens + self._waiting[0].prompt_tokens
            if self._running and cached > self._kv_tokens:
                break
            sequence = self._waiting.popleft()
            sequence.last_step = self._step + sequence.num_tokens
            self._cached_tokens = cached
            heappush(self._running, sequence)
        self._set_timer()

    def _abort(self, sequence: _Sequence) -> None:
        self._advance()
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            made = sequence.num_tokens - (sequence.last_step - self._step)
            self._aborted += made
            self._cached_tokens -= sequence.prompt_tokens + made
            self._running.remove(sequence)
            heapify(self._running)
        elif sequence.done.done() and not sequence.done.cancelled():
            self._aborted += sequence.num_tokens
        self._fill()

    def _set_timer(self) -> None:
        rings_at = None
        if self._running and not self._updating:
            steps = self._running[0].last_step - self._step
            rings_at = self._step_at + steps * self._step_s
        if rings_at == self._rings_at:
            return
        self._rings_at = rings_at
        if self._timer:
            self._timer.cancel()
        self._timer = None if rings_at is None else asyncio.get_running_loop().call_at(rings_at, self._on_timer)

    def _spans(self, first_step: int, num_tokens: int) -> tuple[Span, ...]:
        spans = []
        start = 0
        first = bisect_right(self._since, first_step) - 1
        for i in range(first, len(self._versions)):
            end = self._since[i + 1] - first_step if i + 1 < len(self._since) else num_tokens
            end = min(end, num_tokens)
            if end > start:
                spans.append(Span(self._versions[i], start, end))
                start = end
        return tuple(spans)


def _now() -> float:
    return asyncio.get_running_loop().time()


class FakeFollower:
    """Another node of an engine. There is nothing to do on it."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class FakeScorer:
    """Reads the last token: `RIGHT` is 1, all else 0. A verdict takes `verify_s` seconds.

    Each of the `token_scorers`, by the names of their verdicts, finds `RIGHT` likely and `WRONG` not.
    """

    def __init__(self, verify_s: float = 0.0, *, token_scorers: Sequence[str] = ()) -> None:
        self._verify_s = verify_s
        self._token_scorers = token_scorers
        self._num_checks = 0

    async def start(self) -> None: ...

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        if self._verify_s:
            await asyncio.sleep(self._verify_s)
        reward = float(completion.token_ids[-1] == RIGHT)
        self._num_checks += 1
        verdicts = {name: Verdict(reward=reward, method="last_token") for name in prompt.datasets}
        for name in self._token_scorers if prompt.lane == TRAIN_LANE else ():
            logprobs = TAUGHT[completion.token_ids]
            verdicts[name] = Verdict(reward=None, method="last_token", token_logprobs=logprobs)
        return verdicts

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        right = [bool(completion.token_ids[-1] == RIGHT) for completion in completions]
        pairs = zip(completions, right, strict=True)
        return tuple(msgspec.structs.replace(one, reward=float(solved), solved=solved) for one, solved in pairs)

    def counts(self) -> dict[str, dict[str, float]]:
        counts = dict.fromkeys(("seconds", "kills", "starts", "queue_depth"), 0.0)
        return {"rules": {"checks": self._num_checks, "outcomes.done": self._num_checks, **counts}}

    async def stop(self) -> None: ...


def simulated_scorer(settings: Config) -> FakeScorer:
    """A scorer with the verdicts that the groups of the recipe need."""
    asked = {TEACHER: settings.distillation.teachers, REFERENCE: settings.objective.kl_reference}
    return FakeScorer(settings.simulation.verify_s, token_scorers=[name for name in asked if asked[name]])
