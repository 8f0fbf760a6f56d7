"""The DeepSpeed trainer: one rank of the policy being trained. Only this file and sequence_parallel run DeepSpeed.

    train(shard) ── for each minibatch ── for each row: forward, loss, backward ── one optimizer step

Gradients are plain sums: a row's loss is already divided by the global normaliser of its minibatch, and the mean that
DeepSpeed takes over ranks is undone here. So the gradient is the same on every layout. Ranks that share a row each add
the gradient of their own part of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from itertools import chain, product
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import save_on_cpu
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from olmorl import config
from olmorl.environment import variables_set
from olmorl.errors import Diverged
from olmorl.learner.algorithm.objective import (
    NUM_STATS,
    LossInputs,
    next_threshold,
    policy_loss,
    step_metrics,
)
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.packing import RowArrays, prompt_blocks, row_arrays
from olmorl.learner.trainer import compat, deepspeed_config, malloc
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.compiled import compile_policy, is_compiled
from olmorl.learner.trainer.lr_schedule import learning_rate
from olmorl.learner.trainer.optimizer_state import TrainingState
from olmorl.learner.trainer.policy import (
    TOKEN_STRIDE,
    PackedPolicy,
    PolicyRow,
    policy_row,
    refuse_cuts,
    refuse_leaks,
    refuse_sharing,
)
from olmorl.learner.trainer.process_group import Ranks, join, training_device
from olmorl.learner.trainer.rms_norm import recompute_norms
from olmorl.learner.trainer.sequence_parallel import SequenceGroup, form_group, refuse_heads
from olmorl.learner.trainer.tiled_mlp import tile_mlps
from olmorl.learner.trainer.weight_snapshot import WeightSnapshot, model_tensors
from olmorl.messages import PROBE_TOKENS, Probe, Shard
from olmorl.model_cost import BACKWARD, VALUE_BYTES, DevicePeak, model_cost
from olmorl.ports import NamedBuffer
from olmorl.seeds import derive

_log = logging.getLogger(__name__)


class DeepSpeedTrainer:
    """Every rank makes the same calls in the same order. A rank with fewer rows runs empty ones with weight zero."""

    def __init__(
        self,
        model: config.Model,
        learner: config.Learner,
        switches: Switches,
        *,
        temperature: float,
        steps: int,
        seed: int,
        ranks: Ranks,
        peak: DevicePeak | None = None,
    ) -> None:
        """Join the other ranks, unless the process group exists, and load the starting policy.

        Args:
            temperature: of sampling; the policy is the tempered distribution.
            steps: of the whole run, for the learning rate.
            peak: of the device of a rank.

        Raises:
            ModelError: the model cannot be loaded, or its packed samples would see each other.
            ConfigError: a dtype that cannot be trained in.
            DeadlinePassed: the other ranks did not come.
        """
        self._model_settings, self._learner, self._switches = model, learner, switches
        self._steps, self._ranks = steps, ranks
        self._device = training_device(learner.device)
        settings = deepspeed_config.settings(model, learner, self._device)
        self._stage: int = settings["zero_optimization"]["stage"]
        torch.set_num_threads(learner.threads)
        torch.manual_seed(derive(seed, "learner", ranks.rank))
        self._made_group = not dist.is_initialized()
        if self._made_group:
            join(ranks, self._device)
        self._deepspeed = _import_deepspeed(self._device)
        disable_progress_bar()
        # One thread for all training: the event loop of the rank stays free, and the device is set once.
        self._thread = ThreadPoolExecutor(1, "train", self._enter_device)
        self._enter_device()
        self._group = self._form_group()
        policy = self._load(settings, temperature)
        policy.model.train()
        if every := learner.recomputed_every(on_gpu=self._device.type == "cuda"):
            policy.model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)
        self._cost = model_cost(policy.model.config.get_text_config(), _shapes(policy.model), VALUE_BYTES[model.dtype])
        self._peak = peak or DevicePeak()
        self._grad_norm = 0.0
        self._interrupted = threading.Event()
        self._engine = self._build_engine(settings, policy)
        if self._compiles():
            self._compile(policy, "policy")
        self._state = TrainingState(self._engine, self._model, self._stage, ranks, self._device)
        refuse_leaks(self._engine, self._model, self._device)
        if learner.shares_prompts:
            refuse_sharing(self._engine, self._model, self._device)
        if self._group:
            refuse_cuts(self._engine, self._model, self._device)
        self._reference = self._build_reference(settings, temperature) if switches.needs_reference else None
        self._snapshot = WeightSnapshot(self._model, pinned=self._device.type == "cuda")

    # --- one step

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """Take the step in a thread, so that the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._train, shard)

    def interrupt(self) -> None:
        self._interrupted.set()

    def _train(self, shard: Shard) -> dict[str, float] | None:
        rows = [
            [row_arrays(row, share_prompts=self._learner.shares_prompts) for row in minibatch]
            for minibatch in shard.minibatches
        ]
        updates = list(product(range(self._learner.epochs), range(len(rows))))
        old = _score(self._engine, rows, self._device) if len(updates) > 1 else None
        reference = _score(self._reference, rows, self._device) if self._reference else None
        rate = learning_rate(shard.step, self._learner, self._steps)
        stats_S = torch.zeros(NUM_STATS, dtype=torch.float64, device=self._device)
        grad_norms: list[float] = []
        backward_s = optimizer_s = 0.0
        for _, index in updates:
            began_at = time.perf_counter()
            for number, row in enumerate(rows[index]):
                if not grad_norms and self._given_up():
                    return None
                stats_S += self._backward(
                    row,
                    old[index][number] if old else None,
                    reference[index][number] if reference else None,
                    shard.loss_tokens[index],
                    shard.num_sequences[index],
                )
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the optimizer waits for the passes anyway
            passed_at = time.perf_counter()
            grad_norms.append(self._update(rate))
            backward_s += passed_at - began_at
            optimizer_s += time.perf_counter() - passed_at
            if not isfinite(grad_norms[-1]):
                raise Diverged(
                    f"step {shard.step}: the norm of the gradient is {grad_norms[-1]}; nothing of it was published. "
                    "Go back to an earlier checkpoint (--resume --from-step N) with a lower learning rate"
                )
        passes = self._learner.epochs * (1 + BACKWARD) + (old is not None) + (reference is not None)
        stats_S, flops = self._of_all_ranks(stats_S, passes * self._forward_flops(shard))
        if self._device.type == "cpu":
            malloc.give_back()
        values = step_metrics(stats_S, len(updates))
        threshold = next_threshold(stats_S, self._state.outlier_threshold)
        values["outlier_threshold"] = self._state.outlier_threshold = threshold
        if reference is None:
            del values["kl_ref_mean"]
        values |= {"learner_forward_backward_s": backward_s, "learner_optimizer_s": optimizer_s}
        if self._cost is not None:
            values["learner_flops"] = flops
        if self._peak.flops_per_s is not None:
            values["learner_peak_flops_per_s"] = self._peak.flops_per_s * self._ranks.world
        return values | {"grad_norm": sum(grad_norms) / len(grad_norms), "lr": rate}

    def _of_all_ranks(self, stats_S: Tensor, flops: float) -> tuple[Tensor, float]:
        """Sums over all ranks. Ranks that share their rows count once."""
        sums = torch.cat([stats_S, stats_S.new_tensor([flops])])
        if self._group and self._group.rank > 0:
            sums.zero_()
        dist.all_reduce(sums)
        return sums[:-1], float(sums[-1])

    def _forward_flops(self, shard: Shard) -> float:
        """Operations of a forward pass over the samples of the shard that feed the loss, without padding.

        A prompt that several answers share counts once.
        """
        if self._cost is None:
            return 0.0
        flops = 0.0
        for row in chain.from_iterable(shard.minibatches):
            for block in prompt_blocks(row, self._learner.shares_prompts):
                prompt = len(block[0].prompt_ids)
                trained = [sample for sample in block if sample.loss_mask.any()]
                flops += self._cost.forward_flops(0, prompt, 0) if trained else 0.0
                for sample in trained:
                    end, logits = prompt + len(sample.completion_ids), int(sample.loss_mask.sum())
                    flops += self._cost.forward_flops(prompt, end, logits)
        return flops

    def _given_up(self) -> bool:
        """Whether any rank was interrupted. All ranks learn it between the same two micro-batches."""
        interrupted = torch.tensor(float(self._interrupted.is_set()), device=self._device)
        if self._ranks.world > 1:
            dist.all_reduce(interrupted, op=dist.ReduceOp.MAX)
        return bool(interrupted)

    def _backward(
        self, row: RowArrays, old_T: Tensor | None, reference_T: Tensor | None, loss_tokens: float, num_sequences: int
    ) -> Tensor:
        """Add the gradient of one row; returns its statistics."""
        logprobs_T, entropy_T = self._engine(policy_row(row, self._device), with_entropy=True)

        def batch(values: Any) -> Tensor:
            return torch.as_tensor(values, device=self._device)[None]

        inputs = LossInputs(
            logprobs_BT=logprobs_T[None],
            old_logprobs_BT=(logprobs_T.detach() if old_T is None else old_T)[None],
            behaviour_logprobs_BT=batch(row.behaviour_logprobs_T),
            advantages_BT=batch(row.advantages_T),
            loss_mask_BT=batch(row.loss_mask_T),
            sequence_ids_BT=batch(row.sequence_ids_T),
            lags_BT=batch(row.lags_T),
            outlier_threshold=self._state.outlier_threshold,
            loss_tokens=loss_tokens,
            num_sequences=num_sequences,
            ref_logprobs_BT=None if reference_T is None else reference_T[None],
            entropy_BT=entropy_T[None],
        )
        loss, stats_S = policy_loss(inputs, self._switches)
        # DeepSpeed takes the mean over ranks, but the objective is a sum.
        self._engine.backward(loss * self._ranks.world)
        return stats_S

    def _update(self, rate: float) -> float:
        """Take an optimizer step with the summed gradients; returns their norm before clipping."""
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        if self._stage > 0:
            self._grad_norm = float(self._engine.get_global_grad_norm())
        return self._grad_norm

    def score(self, row: RowArrays) -> Tensor:
        """logprobs_T of a row by the present policy, without a gradient. All ranks call this together."""
        return _score(self._engine, [[row]], self._device)[0][0]

    # --- weights

    def snapshot(self) -> list[NamedBuffer]:
        """This rank's shard of the weights, copied without the other ranks.

        It is its fp32 master weights rounded to the model's dtype: DeepSpeed writes those back after each step.
        """
        return self._snapshot.copy(self._state.masters())

    def probe(self) -> Probe | None:
        vocabulary: int = self._model.config.get_text_config().vocab_size
        tokens = [(1 + TOKEN_STRIDE * number) % vocabulary for number in range(PROBE_TOKENS)]
        predicted_P = torch.arange(1, PROBE_TOKENS, device=self._device)
        row = PolicyRow(torch.tensor(tokens, device=self._device), (PROBE_TOKENS,), predicted_P)
        with torch.no_grad():
            logprobs_T, _ = self._engine(row, tempered=False)
        if self._ranks.rank != 0:
            return None
        return Probe(tuple(tokens), tuple(logprobs_T[1:].tolist()))

    def export(self, folder: Path, sampling: config.SamplingSettings) -> None:
        """Write a Hugging Face folder that transformers and vLLM load, from rank 0."""
        tensors = dict(self._whole_weights())
        if self._ranks.rank == 0:
            models.export(self._model, tensors, self._model_settings, sampling, folder)
        dist.barrier()

    def _whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight once, tied ones under their first name, copied to the host of rank 0. Gathers one at a time."""
        tensors = self._model.state_dict(keep_vars=True)
        for name in model_tensors(self._model):
            tensor = tensors[name]
            with self._deepspeed.zero.GatheredParameters([tensor], enabled=hasattr(tensor, "ds_id")):
                if self._ranks.rank == 0:
                    yield name, tensor.detach().to("cpu", copy=True)

    @property
    def _model(self) -> PreTrainedModel:
        model: PreTrainedModel = self._engine.module.model
        return model

    # --- checkpoints

    def save(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy the state. The learning rate is not saved: it follows from the step."""
        return self._state.save(folder)

    def restore(self, folder: Path) -> None:
        """Load the state of a checkpoint with any number of ranks and any ZeRO stage.

        Raises:
            ConfigError: there is no checkpoint, or it is of another model.
            ResourceError: it is damaged.
        """
        self._state.restore(folder)

    def close(self) -> None:
        """Leave the process group, if this trainer made it."""
        self._thread.shutdown()
        self._state.close()
        self._engine.destroy()
        if self._group:
            self._group.leave()
        if self._made_group:
            dist.destroy_process_group()

    # --- setting up

    def _enter_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def _form_group(self) -> SequenceGroup | None:
        """The ranks that share each row with this one."""
        size = self._learner.sequence_parallel
        if size == 1:
            return None
        refuse_heads(*models.attention_heads(models.read_config(self._model_settings).get_text_config()), size)
        return form_group(self._ranks.rank, size, self._ranks.timeout_s)

    def _saving(self) -> AbstractContextManager[Any]:
        """The context that holds the inputs of checkpointed layers."""
        if not self._learner.offload_activations:
            return nullcontext()
        return save_on_cpu(pin_memory=self._device.type == "cuda")

    def _load(self, settings: dict[str, Any], temperature: float) -> PackedPolicy:
        build = partial(models.load, self._model_settings, self._learner.attention, self._device)
        model = deepspeed_config.load(build, settings)
        if self._learner.mlp_tiles > 1:
            tile_mlps(model, self._learner.mlp_tiles)
        if self._learner.recompute_norms:
            recompute_norms(model)
        chunk, fp32_head = self._learner.logprob_chunk, self._model_settings.fp32_head
        return PackedPolicy(model, temperature, chunk, fp32_head, self._group, self._saving)

    def _compiles(self) -> bool:
        return is_compiled(self._learner, on_gpu=self._device.type == "cuda")

    def _compile(self, policy: PackedPolicy, name: str) -> None:
        if why := compile_policy(policy, self._device):
            _log.warning("the %s runs without compiled layers, which is slower: %s", name, why)

    def _build_engine(self, settings: dict[str, Any], policy: PackedPolicy) -> Any:
        learner = self._learner
        optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=learner.learning_rate,
            betas=learner.betas,
            eps=learner.eps,
            weight_decay=learner.weight_decay,
            fused=True,
        )
        if self._stage == 0:
            optimizer.register_step_pre_hook(self._clip)
        engine, *_ = self._deepspeed.initialize(
            model=policy, optimizer=optimizer, config=settings, dist_init_required=False
        )
        return engine

    def _clip(self, *_: Any) -> None:
        """Clip without DeepSpeed: at stage 0 it would not return the norm."""
        norm = torch.nn.utils.clip_grad_norm_(self._engine.module.parameters(), self._learner.max_grad_norm)
        self._grad_norm = float(norm)

    def _build_reference(self, settings: dict[str, Any], temperature: float) -> Any:
        """The starting policy, frozen. Under ZeRO-3 it is sharded like the trained one."""
        policy = self._load(settings, temperature).requires_grad_(False)
        if self._stage < 3:
            policy = policy.to(self._device)
            if self._compiles():
                self._compile(policy, "reference model")
            return policy
        return self._deepspeed.initialize(model=policy, config=settings, dist_init_required=False)[0]


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Returns the whole shape of every weight: under ZeRO-3 a rank has a share. Tied weights come once."""
    return {name: tuple(getattr(weight, "ds_shape", weight.shape)) for name, weight in model.named_parameters()}


def _score(policy: Callable[..., Any], rows: Sequence[Sequence[RowArrays]], device: torch.device) -> list[list[Tensor]]:
    """logprobs_T of every row of every minibatch, without gradient."""
    with torch.no_grad():
        return [[policy(policy_row(row, device))[0] for row in minibatch] for minibatch in rows]


def _import_deepspeed(device: torch.device) -> ModuleType:
    """Import deepspeed after the environment is set: the import selects the accelerator and the GPU."""
    os.environ["DS_ACCELERATOR"] = device.type
    os.environ["LOCAL_RANK"] = "0"
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed = import_module("deepspeed")
    # `initialize` imports Muon, which is not used here. Its torch.compile would load the compiler, for seconds.
    with variables_set({"TORCHDYNAMO_DISABLE": "1"}):
        import_module("deepspeed.runtime.zero.muon.original_muon")
    compat.set_up_deepspeed(deepspeed)
    return deepspeed
