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
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from itertools import chain, islice, product
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

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
    kl_estimate,
    next_threshold,
    policy_loss,
    step_metrics,
)
from olmorl.learner.algorithm.presets import Switches
from olmorl.learner.batching.packing import RowArrays, prompt_blocks, row_arrays
from olmorl.learner.trainer import compat, deepspeed_config, malloc
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.adapters import attach
from olmorl.learner.trainer.compiled import compile_policy
from olmorl.learner.trainer.critic import Critic, replace_head, value_policy
from olmorl.learner.trainer.lr_schedule import learning_rate
from olmorl.learner.trainer.optimizer_state import TrainingState
from olmorl.learner.trainer.policy import (
    LOGPROB_CHUNK,
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
from olmorl.learner.trainer.token_credit import Floats, ScoredRow, credit
from olmorl.learner.trainer.trained_module import TrainedModule
from olmorl.learner.trainer.turns import Turns
from olmorl.learner.trainer.weight_snapshot import WeightSnapshot, model_tensors
from olmorl.messages import PROBE_TOKENS, Probe, Shard
from olmorl.model_cost import BACKWARD, VALUE_BYTES, DevicePeak, model_cost
from olmorl.ports import NamedBuffer
from olmorl.seeds import derive

log = logging.getLogger(__name__)


class KeptVersion(NamedTuple):
    """The weights at the start of an earlier step."""

    step: int
    weights: list[Tensor]
    """This rank's part, in host memory."""


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
        critic: config.Critic | None = None,
        max_lag: int = 0,
    ) -> None:
        """Join the other ranks, unless the process group exists, and load the starting policy.

        Args:
            temperature: of sampling; the policy is the tempered distribution.
            steps: of the whole run, for the learning rate.
            peak: of the device of a rank.
            critic: used if the advantage is `gae`; None: the default.
            max_lag: the largest lag of a trained token.

        Raises:
            ModelError: the model cannot be loaded, or its packed samples would see each other.
            ConfigError: a dtype that cannot be trained in.
            DeadlinePassed: the other ranks did not come.
        """
        self._model_settings, self._learner, self._switches = model, learner, switches
        self._steps, self._ranks, self._max_lag = steps, ranks, max_lag
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
        self._recompute(policy)
        self._cost = model_cost(policy.model.config.get_text_config(), _shapes(policy.model), VALUE_BYTES[model.dtype])
        self._adapters = attach(policy.model, model.lora, seed)
        self._peak = peak or DevicePeak()
        self._interrupted = threading.Event()
        self._trained = TrainedModule(self._deepspeed, policy, settings, learner)
        self._engine = self._trained.engine
        if learner.compile is True:
            self._compile(policy, "policy")
        self._state = TrainingState(self._engine, self._model, self._stage, ranks, self._device)
        self._state.kl_beta = switches.kl_beta
        refuse_leaks(self._engine, self._model, self._device)
        if learner.has_own_attention:
            refuse_sharing(self._engine, self._model, self._device)
        if self._group:
            refuse_cuts(self._engine, self._model, self._device)
        self._reference: Any = None
        self._held_reference: list[Tensor] | None = None
        if switches.needs_reference and learner.offload_reference:
            self._held_reference = self._state.weights()
            self._state.reference = self._held_reference if switches.kl_refresh_every else None
        elif switches.needs_reference and not switches.reference_is_served:
            self._reference = self._build_reference(settings, temperature)
        self._critic_settings = critic or config.Critic()
        self._critic = self._build_critic(settings) if switches.has_critic else None
        published = self._adapters.published if self._adapters else None
        self._snapshot = WeightSnapshot(self._model, pinned=self._device.type == "cuda", published=published)
        if self._device.type == "cuda":
            self.snapshot()  # The first one pins its memory, which takes seconds.
        self._kept: deque[KeptVersion] = deque(maxlen=2)

    # --- one step

    async def train(self, shard: Shard) -> dict[str, float] | None:
        """Take the step in a thread, so that the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._train, shard)

    def interrupt(self) -> None:
        self._interrupted.set()

    def _train(self, shard: Shard) -> dict[str, float] | None:
        updates, beta = list(product(range(self._learner.epochs), range(len(shard.minibatches)))), self._state.kl_beta
        rows = self._scored(shard, len(updates))
        rate = self._rate(shard)
        stats_S = torch.zeros(NUM_STATS, dtype=torch.float64, device=self._device)
        grad_norms: list[float] = []
        backward_s = optimizer_s = 0.0
        for _, index in updates:
            began_at = time.perf_counter()
            for row in rows[index]:
                if not grad_norms and self._given_up():
                    return None
                stats_S += self._backward(row, shard.loss_tokens[index], shard.num_sequences[index])
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # the optimizer waits for the passes anyway
            passed_at = time.perf_counter()
            grad_norms.append(self._trained.update(rate))
            backward_s += passed_at - began_at
            optimizer_s += time.perf_counter() - passed_at
            if not isfinite(grad_norms[-1]):
                break  # the critic may be the cause: then its own gradient says so
        if self._critic:
            times = self._critic.train([(rows[index], shard.loss_tokens[index]) for _, index in updates])
            backward_s, optimizer_s = backward_s + times[0], optimizer_s + times[1]
        _refuse_divergence(shard.step, grad_norms[-1])
        if self._device.type == "cpu":
            malloc.give_back()
        values = self._step_values(shard, list(chain.from_iterable(rows)), stats_S, len(updates))
        if self._switches.needs_reference:
            values["kl_beta"] = beta
        if (every := self._switches.kl_refresh_every) and shard.step % every == 0:
            self._state.reference = self._held_reference = self._state.weights()
        values |= {"learner_forward_backward_s": backward_s, "learner_optimizer_s": optimizer_s}
        return values | {"grad_norm": sum(grad_norms) / len(grad_norms), "lr": rate}

    def _step_values(
        self, shard: Shard, rows: Sequence[ScoredRow], stats_S: Tensor, num_updates: int
    ) -> dict[str, float]:
        """The values of a step over all ranks, and the threshold of the next one."""
        *sums, flops = self._of_all_ranks([*stats_S.tolist(), self._passes(rows[0]) * self._forward_flops(shard)])
        stats_S = stats_S.new_tensor(sums)
        values = step_metrics(stats_S, num_updates)
        threshold = next_threshold(stats_S, self._state.outlier_threshold)
        values["outlier_threshold"] = self._state.outlier_threshold = threshold
        if not self._switches.needs_reference:
            del values["kl_ref_mean"]
        if self._critic:
            values |= self._critic.step_metrics(rows, self._of_all_ranks)
        if self._cost is not None:
            values["learner_flops"] = flops
        if self._peak.flops_per_s is not None:
            values["learner_peak_flops_per_s"] = self._peak.flops_per_s * self._ranks.world
        return values

    def _rate(self, shard: Shard) -> float:
        """The policy does not move while its critic warms up."""
        if self._critic is not None and shard.step <= self._critic_settings.warmup_steps:
            return 0.0
        changed = {} if shard.learning_rate is None else {"learning_rate": shard.learning_rate}
        return learning_rate(shard.step, self._learner.model_copy(update=changed), self._steps)

    def _scored(self, shard: Shard, updates: int) -> list[list[ScoredRow]]:
        """The rows of each minibatch as they are trained, with what is known of them before the first update."""
        minibatches = [
            [row_arrays(row, share_prompts=self._learner.has_own_attention) for row in minibatch]
            for minibatch in shard.minibatches
        ]
        rows, has_kl_reward = list(chain.from_iterable(minibatches)), self._switches.has_kl_reward
        blank: list[None] = [None] * len(rows)
        old = _score(self._engine, rows, self._device) if updates > 1 or has_kl_reward else blank
        reference = self._score_reference(rows) if self._switches.needs_reference else blank
        age, anchor = self._score_anchor(shard.step, rows) or (0, blank)
        values = self._critic.values(rows) if self._critic else []
        returns: list[Floats] = []
        if has_kl_reward or values:
            kl = [self._kl(*pair) for pair in zip(old, reference, strict=True)] if has_kl_reward else []
            made = credit(rows, kl, values, self._state.kl_beta, self._switches, self._of_all_ranks)
            rows, returns, self._state.kl_beta = made
        ages = [age] * len(rows)
        flat = zip(rows, old, reference, values or blank, returns or blank, anchor, ages, strict=True)
        scored = (ScoredRow(*each) for each in flat)
        return [list(islice(scored, len(minibatch))) for minibatch in minibatches]

    def _score_reference(self, rows: Sequence[RowArrays]) -> list[Tensor]:
        """Log-probabilities by the reference. One in host memory takes the place of the policy meanwhile."""
        if self._switches.reference_is_served:
            return [torch.as_tensor(row.reference_logprobs_T, device=self._device) for row in rows]
        if self._held_reference is None:
            return _score(self._reference, rows, self._device)
        with self._state.with_weights(self._held_reference):
            return _score(self._engine, rows, self._device)

    def _kl(self, old_T: Tensor | None, reference_T: Tensor | None) -> Floats:
        """kl_T of a row, in nats."""
        assert old_T is not None and reference_T is not None
        kl_T: Floats = kl_estimate(old_T.double(), reference_T.double(), self._switches.kl_estimator).cpu().numpy()
        return kl_T

    def _passes(self, row: ScoredRow) -> int:
        """Forward passes that the work on a row is worth."""
        # Weights that are not trained need no product in the backward pass.
        policy = 1 + (BACKWARD - 1 if self._adapters else BACKWARD)
        trained = self._learner.epochs * (policy + (1 + BACKWARD if self._critic else 0))
        reference_T = None if self._switches.reference_is_served else row.reference_T
        return trained + sum(each is not None for each in (row.old_T, reference_T, row.values_T, row.anchor_T))

    def _score_anchor(self, step: int, rows: Sequence[RowArrays]) -> tuple[int, list[Tensor]] | None:
        """Log-probabilities by the older of the kept versions, after its age in steps. None: there is none.

        A copy every `max_lag` steps is enough: the older of two is older than every trained token, and less than
        twice as old as the oldest may be.
        """
        kept = self._kept
        if not self._switches.needs_anchor or not self._max_lag:
            return None
        if not kept or step - kept[-1].step >= self._max_lag:
            kept.append(KeptVersion(step, self._state.weights()))
        age = step - kept[0].step
        if any((row.lags_T[row.loss_mask_T] > age).any() for row in rows):
            log.warning(
                'step %d: tokens of a lag above %d have the weights of rho_kind = "auto": older weights are not kept',
                step,
                age,
            )
        if age == 0:
            return None
        with self._state.with_weights(kept[0].weights):
            return age, _score(self._engine, rows, self._device)

    def _of_all_ranks(self, values: Sequence[float]) -> list[float]:
        """Sums over all ranks. Ranks that share their rows count once."""
        sums = torch.tensor(values, dtype=torch.float64, device=self._device)
        if self._group and self._group.rank > 0:
            sums.zero_()
        dist.all_reduce(sums)
        return sums.tolist()

    def _forward_flops(self, shard: Shard) -> float:
        """Operations of a forward pass over the samples of the shard that feed the loss, without padding.

        A prompt that several answers share counts once.
        """
        if self._cost is None:
            return 0.0
        flops = 0.0
        for row in chain.from_iterable(shard.minibatches):
            for block in prompt_blocks(row, self._learner.has_own_attention):
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

    def _backward(self, scored: ScoredRow, loss_tokens: float, num_sequences: int) -> Tensor:
        """Add the gradient of one row; returns its statistics."""
        row, old_T, reference_T, anchor_T = scored.row, scored.old_T, scored.reference_T, scored.anchor_T
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
        if anchor_T is not None:
            inputs = inputs._replace(anchor_age=scored.anchor_age, anchor_logprobs_BT=anchor_T[None])
        loss, stats_S = policy_loss(inputs, self._switches)
        # DeepSpeed takes the mean over ranks, but the objective is a sum.
        self._engine.backward(loss * self._ranks.world)
        return stats_S

    def score(self, row: RowArrays) -> Tensor:
        """logprobs_T of a row by the present policy, without a gradient. All ranks call this together."""
        return _score(self._engine, [row], self._device)[0]

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
            models.export(self._model, tensors, self._model_settings, sampling, folder, self._adapters)
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
        write = self._state.save(folder)
        if not self._critic:
            return write
        write_critic = self._critic.save(folder)

        async def write_both() -> None:
            await write()
            await write_critic()

        return write_both

    def restore(self, folder: Path) -> None:
        """Load the state of a checkpoint with any number of ranks and any ZeRO stage.

        Raises:
            ConfigError: there is no checkpoint, or it is of another model.
            ResourceError: it is damaged.
        """
        self._state.restore(folder)
        if self._critic:
            self._critic.restore(folder)
        if self._switches.kl_target is None:
            self._state.kl_beta = self._switches.kl_beta
        self._kept.clear()

    def close(self) -> None:
        """Leave the process group, if this trainer made it."""
        self._thread.shutdown()
        self._state.close()
        if self._critic:
            self._critic.close()
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

    def _load(self, settings: dict[str, Any], temperature: float, critic: config.Critic | None = None) -> PackedPolicy:
        path = (critic.path if critic else None) or self._model_settings.path
        model_settings = self._model_settings.model_copy(update={"path": path})
        build = partial(models.load, model_settings, self._learner.attention, self._device)
        model = deepspeed_config.load(build, settings)
        if critic:
            replace_head(model)
        if self._learner.mlp_tiles > 1:
            tile_mlps(model, self._learner.mlp_tiles)
            recompute_norms(model)
        fp32_head = self._model_settings.fp32_head
        return PackedPolicy(model, temperature, LOGPROB_CHUNK, fp32_head, self._group, self._saving)

    def _build_critic(self, settings: dict[str, Any]) -> Critic:
        """A copy of the policy's layers, or another model, with a head for values."""
        policy = value_policy(self._load(settings, 1.0, self._critic_settings))
        policy.model.train()
        self._recompute(policy)
        trained = TrainedModule(self._deepspeed, policy, settings, self._learner)
        state = TrainingState(trained.engine, policy.model, self._stage, self._ranks, self._device)
        turns = Turns(self._state.tensors, state.tensors, self._device) if self._learner.offload_critic else None
        return Critic(trained, state, self._critic_settings, self._device, self._ranks.world, turns)

    def _recompute(self, policy: PackedPolicy) -> None:
        """Recompute the layers in the backward pass that the recipe or the memory plan says."""
        if every := self._learner.recomputed_every(on_gpu=self._device.type == "cuda"):
            policy.model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=every)

    def _compile(self, policy: PackedPolicy, name: str) -> None:
        if why := compile_policy(policy, self._device):
            log.warning(
                "the %s runs without compiled layers, which is slower and takes more memory than planned: %s; "
                "if memory runs out, set learner.compile = false",
                name,
                why,
            )

    def _build_reference(self, settings: dict[str, Any], temperature: float) -> Any:
        """The starting policy, frozen. Under ZeRO-3 it is sharded like the trained one."""
        if self._adapters:
            return partial(self._adapters.without, self._engine)
        policy = self._load(settings, temperature).requires_grad_(False)
        if self._stage < 3:
            policy = policy.to(self._device)
            if self._learner.compile is True:
                self._compile(policy, "reference model")
            return policy
        return self._deepspeed.initialize(model=policy, config=settings, dist_init_required=False)[0]


def _refuse_divergence(step: int, grad_norm: float) -> None:
    if not isfinite(grad_norm):
        raise Diverged(
            f"step {step}: the norm of the gradient is {grad_norm}; nothing of it was published. "
            "Go back to an earlier checkpoint with a lower rate: "
            "--resume --from-step N --change --learner.learning_rate RATE"
        )


def _shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Returns the whole shape of every weight: under ZeRO-3 a rank has a share. Tied weights come once."""
    return {name: tuple(getattr(weight, "ds_shape", weight.shape)) for name, weight in model.named_parameters()}


def _score(policy: Callable[..., Any], rows: Sequence[RowArrays], device: torch.device) -> list[Tensor]:
    """logprobs_T of every row, without gradient."""
    with torch.no_grad():
        return [policy(policy_row(row, device))[0] for row in rows]


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
