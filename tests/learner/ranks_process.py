"""One learner rank as a process: `python ranks_process.py JOBS_FILE RANK WORLD ADDRESS`.

DeepSpeed keeps its state in globals, so trainers are tested outside of pytest's own process, many to a process. The
jobs file maps names to `{"kind", "model", "learner", ...}`; a job's result is saved in its folder as `NAME.RANK.pt`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

from olmorl import config
from olmorl.errors import Diverged
from olmorl.learner.algorithm.advantage import teacher_advantages
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import pack, row_arrays
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer, _import_deepspeed
from olmorl.learner.trainer.logprobs import PLAIN
from olmorl.learner.trainer.policy import PackedPolicy, policy_row
from olmorl.learner.trainer.process_group import Ranks, join
from olmorl.learner.trainer.sequence_parallel import form_group
from olmorl.learner.trainer.token_credit import ScoredRow
from olmorl.messages import Sample, Shard, Version
from olmorl.ports import NamedBuffer, WeightStore
from olmorl.queues.weights.store import store_in_files

STEPS = 8
VOCABULARY = 40
SETTLE_S = 0.005
"""Within it gloo's thread drops the tensors of a collective that is done."""


def make_groups(seed: int, num_groups: int = 4, one_prompt: bool = False, max_lag: int = 1) -> list[list[Sample]]:
    """Samples of 2 to 32 tokens, some tokens masked, some stale, engine a little off the learner; 13 in four groups.

    Each sample has another prompt, so that no two share one, unless the groups have `one_prompt` each.
    """
    rng = np.random.default_rng(seed)
    groups = [[_sample(rng, draw, max_lag) for _ in range(4 if draw == 0 else 3)] for draw in range(num_groups)]
    if not one_prompt:
        return groups
    return [[replace(sample, prompt_ids=group[0].prompt_ids) for sample in group] for group in groups]


def with_teacher(sample: Sample) -> Sample:
    """The sample with the advantages of a teacher that gives random log-probabilities."""
    rng = np.random.default_rng(sample.completion_ids.tolist())
    teacher_T = rng.normal(-3.0, 1.0, len(sample.completion_ids))
    advantages_T = teacher_advantages(teacher_T, sample.behaviour_logprobs, 0.7).astype(np.float32)
    return replace(sample, token_advantages=advantages_T)


def with_reference(sample: Sample) -> Sample:
    """The sample with random log-probabilities of a served reference."""
    rng = np.random.default_rng(sample.completion_ids.tolist())
    return replace(sample, reference_logprobs=rng.normal(-3.7, 0.5, len(sample.completion_ids)).astype(np.float32))


def _without_times(values: dict[str, float] | None) -> dict[str, float] | None:
    """What a step says of the policy. Its times differ from run to run."""
    return values and {name: value for name, value in values.items() if not name.endswith("_s")}


def _sample(rng: np.random.Generator, draw: int, max_lag: int) -> Sample:
    num_prompt, num_tokens = int(rng.integers(1, 9)), int(rng.integers(1, 25))
    return Sample(
        draw_id=draw,
        prompt_ids=rng.integers(0, VOCABULARY, num_prompt).astype(np.int32),
        completion_ids=rng.integers(0, VOCABULARY, num_tokens).astype(np.int32),
        behaviour_logprobs=rng.normal(-3.7, 0.5, num_tokens).astype(np.float32),
        loss_mask=rng.random(num_tokens) > 0.2,
        lags=rng.integers(0, max_lag + 1, num_tokens).astype(np.int32),
        advantage=float(rng.normal()),
    )


class StoppedMidway(DeepSpeedTrainer):
    """From now on rank 1, or the only one, hears of a stop in the middle of its first micro-batch."""

    num_rows: int | None = None

    def _backward(self, *args: Any) -> torch.Tensor:
        stats_S = super()._backward(*args)
        if self.num_rows is not None and self._ranks.rank == self._ranks.world - 1:
            self.num_rows += 1
            if self.num_rows == 1:
                self.interrupt()
        return stats_S


class Compiled(DeepSpeedTrainer):
    """Checks that it has compiled its policy."""

    def _compile(self, policy: PackedPolicy, name: str) -> None:
        super()._compile(policy, name)
        assert policy.head.passes is not PLAIN and not torch._dynamo.config.disable, "it is compiled"
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 4


class Rank:
    """All jobs of one process run in the one group of ranks it joined."""

    def __init__(self, rank: int, world: int, address: str) -> None:
        self.ranks = Ranks(rank, world, address, timeout_s=120)
        join(self.ranks, torch.device("cpu"))

    def run(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        kinds: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
            "gradient": self.gradient,
            "steps": self.steps,
            "resume": self.resume,
            "changed_rate": self.changed_rate,
            "stopped": self.stopped,
            "diverged": self.diverged,
            "weights": self.weights,
            "keep": self.keep,
            "take": self.take,
            "memory": self.memory,
            "turns": self.turns,
            "shared_row": self.shared_row,
            "anchor": self.anchor,
        }
        return kinds[job["kind"]](job, folder)

    def trainer(self, job: dict[str, Any], kind: type[DeepSpeedTrainer] = DeepSpeedTrainer) -> DeepSpeedTrainer:
        return (Compiled if job["learner"].get("compile") else kind)(
            config.Model(**job["model"]),
            config.Learner(device="cpu", **{"learning_rate": 1e-3, **job["learner"]}),
            resolve(config.Objective(**job.get("objective", {})), max_tokens=24),
            temperature=job.get("temperature", 1.0),
            steps=STEPS,
            seed=0,
            ranks=self.ranks,
            critic=config.Critic(**job.get("critic", {})),
            max_lag=job.get("max_lag", 1),
        )

    def shard(self, job: dict[str, Any], step: int) -> Shard:
        groups = make_groups(step, job.get("groups", 4), job.get("one_prompt", False), job.get("max_lag", 1))
        if job.get("own_draws"):  # samples of different draws never share a prompt
            numbers = count()
            groups = [[replace(sample, draw_id=next(numbers)) for sample in group] for group in groups]
        if job.get("teacher"):
            groups = [[with_teacher(sample) for sample in group] for group in groups]
        if job.get("reference"):
            groups = [[with_reference(sample) for sample in group] for group in groups]
        shards = pack(
            groups,
            step=step,
            num_ranks=self.ranks.world,
            num_minibatches=job["learner"].get("minibatches", 1),
            row_tokens=job.get("row_tokens", 64),
            sequence_parallel=job["learner"].get("sequence_parallel", 1),
            share_prompts=job.get("one_prompt", False) and config.Learner(**job["learner"]).has_own_attention,
        )
        return shards[self.ranks.rank]

    def train(self, trainer: DeepSpeedTrainer, job: dict[str, Any], steps: Sequence[int]) -> list[Any]:
        return [_without_times(asyncio.run(trainer.train(self.shard(job, step)))) for step in steps]

    def gradient(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The gradient of the first optimizer step: Adam's first moment divided by (1 - beta1)."""
        trainer = self.trainer(job)
        shard = self.shard(job, 1)
        values = _without_times(asyncio.run(trainer.train(shard)))
        gradients = {
            name: moment / (1 - trainer._learner.betas[0]) for name, moment in moments(trainer, "exp_avg").items()
        }
        whole = sum(weight.numel() for weight in trainer._model.parameters())  # a sharded weight has no values here
        group = trainer._engine.seq_data_parallel_group
        options = group._get_backend(torch.device("cpu")).options
        trainer.close()
        rows, limit_s = [len(row) for row in shard.minibatches[0]], options._timeout.total_seconds()
        has_compiler = "torch._inductor.compile_fx" in sys.modules
        return {
            "gradients": gradients,
            "values": values,
            "rows": rows,
            "whole": whole,
            "limit_s": limit_s,
            "has_compiler": has_compiler,
            "one_group": group is dist.group.WORLD,
        }

    def steps(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        trainer = self.trainer(job)
        values = self.train(trainer, job, range(1, 4))
        weights = snapshot_tensors(trainer)
        held = trainer._reference.parameters() if isinstance(trainer._reference, PackedPolicy) else None
        reference_bytes = sum(part.nbytes for part in held or trainer._held_reference or ())
        trainer.close()
        return {"values": values, "weights": weights, "reference_bytes": reference_bytes}

    def resume(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Two steps, a checkpoint, two more; then the last two again in a new trainer."""
        first = self.trainer(job)
        self.train(first, job, (1, 2))
        random = torch.get_rng_state()
        write(first.save(folder))
        first_values = self.train(first, job, (3, 4))
        straight = snapshot_tensors(first)
        first.close()
        second = self.trainer(job)
        torch.manual_seed(99)
        second.restore(folder)
        random_restored = torch.equal(random, torch.get_rng_state())
        second_values = self.train(second, job, (3, 4))
        resumed = snapshot_tensors(second)
        second.close()
        return {
            "straight": straight,
            "resumed": resumed,
            "values": [first_values, second_values],
            "random_restored": random_restored,
        }

    def changed_rate(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """The rates of all steps of AdamW: a new one for step 2; after a checkpoint steps 2 and 3 in a new trainer."""
        rates: list[set[float]] = []

        def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            rates.append({float(group["lr"]) for group in optimizer.param_groups})

        def train(trainer: DeepSpeedTrainer, step: int, rate: float | None) -> float:
            values = asyncio.run(trainer.train(replace(self.shard(job, step), learning_rate=rate)))
            assert values is not None
            return values["lr"]

        hook = register_optimizer_step_pre_hook(note)
        first = self.trainer(job)
        said = [train(first, 1, None)]
        write(first.save(folder))
        said.append(train(first, 2, 5e-5))
        before = snapshot_tensors(first)
        first.close()
        second = self.trainer(job)
        second.restore(folder)
        said.append(train(second, 2, 5e-5))
        after = snapshot_tensors(second)
        said.append(train(second, 3, 2e-4))
        second.close()
        hook.remove()
        return {"rates": rates, "said": said, "before": before, "after": after}

    def stopped(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """A step, another that is given up midway, a checkpoint; then that step again in a new trainer."""
        straight = self.trainer(job)
        self.train(straight, job, (1, 2))
        wanted = snapshot_tensors(straight)
        straight.close()
        first = self.trainer(job, StoppedMidway)
        assert isinstance(first, StoppedMidway)
        self.train(first, job, (1,))
        before, first.num_rows = snapshot_tensors(first), 0
        values = self.train(first, job, (2,))
        after = snapshot_tensors(first)
        write(first.save(folder))
        first.close()
        second = self.trainer(job)
        second.restore(folder)
        self.train(second, job, (2,))
        resumed = snapshot_tensors(second)
        second.close()
        return {"values": values, "before": before, "after": after, "wanted": wanted, "resumed": resumed}

    def anchor(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Log-probabilities by the starting weights, before and after two steps; then a third step without those."""
        first = self.trainer(job)
        rows = [row_arrays(row) for minibatch in self.shard(job, 3).minibatches for row in minibatch]
        started = [first.score(row) for row in rows]
        self.train(first, job, (1, 2))
        write(first.save(folder))
        before, moved = (snapshot_tensors(first), masters(first)), [first.score(row) for row in rows]
        anchor = first._score_anchor(3, rows)
        assert anchor is not None
        after, moved_again = (snapshot_tensors(first), masters(first)), [first.score(row) for row in rows]
        first.close()
        result = {"started": started, "moved": moved, "moved_again": moved_again, "before": before, "after": after}
        for kind in ("two_factor", "auto"):
            resumed = self.trainer(job | {"objective": {"rho_kind": kind}})
            resumed.restore(folder)
            with said() as lines:
                values = self.train(resumed, job, (3,))
            result[kind] = {"values": values, "weights": snapshot_tensors(resumed), "said": lines}
            resumed.close()
        return result | {"age": anchor[0], "scored": anchor[1]}

    def diverged(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """A step on weights of which one is not a number, of the policy or of its critic."""
        trainer = self.trainer(job)
        model = trainer._critic._trained.engine.module.model if trainer._critic else trainer._model
        first = next(model.parameters())
        with torch.no_grad():
            getattr(first, "ds_tensor", first).view(-1)[0] = float("nan")
        try:
            self.train(trainer, job, (1,))
        except Diverged as error:
            return {"error": str(error)}
        finally:
            trainer.close()
        return {"error": None}

    def weights(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """A snapshot after a step, the master weights themselves, an export and a checkpoint."""
        trainer = self.trainer(job)
        self.train(trainer, job, (1,))
        places = [[address(buffer) for buffer in trainer.snapshot()] for _ in range(2)]
        result = {"snapshot": snapshot_tensors(trainer), "masters": masters(trainer), "probe": trainer.probe()}
        result["places"] = places
        result["held"] = sum(buffer.data.nbytes for buffer in trainer.snapshot())
        trainer.export(folder, config.SamplingSettings())
        write(trainer.save(folder / "shares"))
        result["changed"] = self.changed(trainer, job)
        trainer.close()
        return result

    def changed(self, trainer: DeepSpeedTrainer, job: dict[str, Any]) -> dict[str, Any]:
        """What a reader gets of a version that is published as its changes, and the master weights."""
        with shared_store(self.ranks, full_every=2) as store:
            fetched(store, trainer.snapshot(), self.ranks, Version(1, 1))
            self.train(trainer, job, (2,))
            found = fetched(store, trainer.snapshot(), self.ranks, Version(1, 2))
            deltas = [shard.delta is not None for shard in store.fetch(Version(1, 2)).manifest.shards]
            dist.barrier()
        return {"found": found, "masters": masters(trainer), "deltas": deltas}

    def keep(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Two steps and a checkpoint that is written only after the third."""
        trainer = self.trainer(job)
        self.train(trainer, job, (1, 2))
        state = {"master": masters(trainer)} | {kind: moments(trainer, kind) for kind in ("exp_avg", "exp_avg_sq")}
        writing = trainer.save(folder)
        values = self.train(trainer, job, (3,))
        write(writing)
        weights = masters(trainer)
        trainer.close()
        return {"state": state, "values": values, "weights": weights}

    def take(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Restores the checkpoint of another layout, saves it again, and takes the third step."""
        trainer = self.trainer(job)
        trainer.restore(Path(job["checkpoint"]))
        snapshot = snapshot_tensors(trainer)
        write(trainer.save(folder))
        values = self.train(trainer, job, (3,))
        weights = masters(trainer)
        trainer.close()
        return {"snapshot": snapshot, "values": values, "weights": weights}

    def shared_row(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Log-probabilities, entropies and gradients of single rows in float64, by the policy without DeepSpeed."""
        _import_deepspeed(torch.device("cpu"))
        size = job.get("sequence_parallel", 1)
        group = form_group(self.ranks.rank, size, self.ranks.timeout_s) if size > 1 else None
        model = models.load(config.Model(path=job["model"], dtype="float32"), "sdpa", torch.device("cpu")).double()
        policy = PackedPolicy(model, 0.7, chunk=4, group=group)
        one_prompt = job.get("one_prompt", False)
        samples = [sample for group in make_groups(1, one_prompt=one_prompt) for sample in group]
        result: dict[str, Any] = {"logprobs": [], "entropies": [], "gradients": []}
        for row in ([], samples[:1], samples[1:3], samples[3:6], samples[6:10]):
            arrays = row_arrays(row, share_prompts=one_prompt)
            logprobs_T, entropy_T = policy(policy_row(arrays, torch.device("cpu")), with_entropy=True)
            model.zero_grad()
            (logprobs_T * torch.linspace(-1, 1, len(logprobs_T), dtype=torch.float64)).sum().backward()
            gradient = torch.cat([weight.grad.flatten() for weight in policy.parameters() if weight.grad is not None])
            torch.distributed.all_reduce(gradient)
            result["logprobs"].append(logprobs_T.detach())
            result["entropies"].append(entropy_T)
            result["gradients"].append(gradient)
        if group:
            group.leave()
        return result

    def memory(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Bytes by the profile of torch's allocator: of all phases of two steps, with two rows of one sample each."""
        gc.collect()  # what the job before has left is not counted
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # the profile does not see what other threads allocate
        for name in ("all_to_all_single", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
            setattr(dist, name, settled(getattr(dist, name)))
        live, _, trainer = measured(lambda: self.trainer(job))
        tokens, vocabulary = job["row_tokens"], trainer._model.config.vocab_size
        rng = np.random.default_rng(0)
        sample = Sample(
            draw_id=0,
            prompt_ids=rng.integers(0, vocabulary, 1).astype(np.int32),
            completion_ids=rng.integers(0, vocabulary, tokens - 1).astype(np.int32),
            behaviour_logprobs=np.full(tokens - 1, -8, np.float32),
            loss_mask=np.ones(tokens - 1, np.bool_),
            lags=np.zeros(tokens - 1, np.int32),
            advantage=1.0,
        )
        row = row_arrays([sample])
        peak = standing = gradients = activations = 0
        for _ in range(2):
            standing = live
            for _ in range(2):
                grown, above, _ = measured(lambda: trainer._backward(ScoredRow(row), float(tokens), 1))
                peak, live = max(peak, live + above), live + grown
                activations = above - grown
            gradients = live - standing
            grown, above, _ = measured(lambda: trainer._trained.update(1e-5))
            peak, live = max(peak, live + above), live + grown
        trainer.close()
        return {"peak": peak, "standing": standing, "gradients": gradients, "activations": activations}

    def turns(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Bytes by the profile of torch's allocator: what policy and critic give back in each other's turn."""
        trainer = self.trainer(job)
        self.train(trainer, job, (1,))
        assert trainer._critic is not None
        turns = trainer._critic._turn.__self__
        turns._first.sleep()  # the profile does not see it: it knows only what came under it
        critic, policy = (
            [measured(act)[0] for act in (each.wake, each.sleep)] for each in (turns._second, turns._first)
        )
        turns._first.wake()
        trainer.close()
        return {"policy": policy, "critic": critic}


def settled(collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective after which gloo's thread holds no tensor. What that thread frees is not in the profile."""

    def call(*tensors: Any, **options: Any) -> Any:
        work = collective(*tensors, **options)
        time.sleep(SETTLE_S)
        return work

    return call


def measured(run: Callable[[], Any]) -> tuple[int, int, Any]:
    """Bytes that `run` leaves, bytes at its peak, both more than before, and its result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = run()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    running = list(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))
    return (running[-1], max(0, *running), result) if running else (0, 0, result)


@contextmanager
def said() -> Iterator[list[str]]:
    """The lines that the trainer logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("olmorl.learner.trainer.deepspeed_trainer")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def write(writing: Callable[[], Awaitable[None]]) -> None:
    async def wait() -> None:
        await writing()

    asyncio.run(wait())


def trained(trainer: DeepSpeedTrainer) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, weight) for name, weight in trainer._model.named_parameters() if weight.requires_grad]


def moments(trainer: DeepSpeedTrainer, kind: str) -> dict[str, torch.Tensor]:
    from deepspeed.utils import safe_get_full_optimizer_state

    named = trained(trainer)
    if trainer._stage == 0:
        return {name: trainer._engine.optimizer.state[weight][kind].clone() for name, weight in named}
    return {name: safe_get_full_optimizer_state(weight, kind).clone() for name, weight in named}


def masters(trainer: DeepSpeedTrainer) -> dict[str, torch.Tensor]:
    from deepspeed.utils import safe_get_full_fp32_param

    named = trained(trainer)
    if trainer._stage == 0:
        return {name: weight.detach().clone() for name, weight in named}
    return {name: safe_get_full_fp32_param(weight).clone() for name, weight in named}


def address(buffer: NamedBuffer) -> int:
    """Of its bytes in memory; 0 for an empty piece."""
    return np.frombuffer(buffer.data, np.uint8).ctypes.data if len(buffer.data) else 0


def snapshot_tensors(trainer: DeepSpeedTrainer) -> dict[str, torch.Tensor]:
    """The weights as a reader gets them: every rank publishes its shard. All ranks call this together."""
    with shared_store(trainer._ranks) as store:
        return fetched(store, trainer.snapshot(), trainer._ranks, Version(1, 1))


@contextmanager
def shared_store(ranks: Ranks, full_every: int = 1) -> Iterator[WeightStore]:
    """A store in a folder that all ranks see, each on a host of its own. All ranks call this together."""
    run = [uuid.uuid4().hex]
    dist.broadcast_object_list(run)
    with tempfile.TemporaryDirectory() as host:
        store = store_in_files(run[0], Path(tempfile.gettempdir()), 1000, Path(host), full_every)
        yield store
        dist.barrier()
        if ranks.rank == 0:
            store.sweep()


def fetched(store: WeightStore, shard: list[NamedBuffer], ranks: Ranks, version: Version) -> dict[str, torch.Tensor]:
    """What a reader gets of a version, to which every rank gives its shard. All ranks call this together."""
    store.publish(version, shard, None, ranks.rank, ranks.world)
    while ranks.rank == 0 and store.complete(version):
        time.sleep(0.001)
    dist.barrier()
    assert store.latest() == version
    staged = store.fetch(version)
    data = bytearray(staged.path.read_bytes())
    dist.barrier()
    return {
        one.name: torch.frombuffer(
            data[one.offset : one.offset + one.num_bytes], dtype=getattr(torch, one.dtype)
        ).reshape(one.shape)
        for one in staged.manifest.buffers
    }


def main() -> None:
    jobs_file, rank, world, address = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    process = Rank(rank, world, address)
    for name, job in json.loads(jobs_file.read_text()).items():
        result = process.run(job, jobs_file.parent / name)
        made = (job.get("groups", 4), job.get("one_prompt", False), job.get("max_lag", 1))
        result["groups"] = {step: make_groups(step, *made) for step in range(1, STEPS)}
        torch.save(result, jobs_file.parent / f"{name}.{rank}.pt")


if __name__ == "__main__":
    main()
