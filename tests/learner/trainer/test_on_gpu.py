"""What only a GPU has: the flash kernel over packed rows, logits in fp32 from bfloat16, pinned memory, GPU memory."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from olmorl import config
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import pack, row_arrays
from olmorl.learner.trainer import packed_attention
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.memory import rank_memory
from olmorl.learner.trainer.packed_attention import layout, packed_flash_4, packed_sdpa, packed_varlen
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Sample
from tests.learner.conftest import _free_port

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda", 0)
VOCABULARY, ROW = 4096, 1024


def relative(got: Tensor, wanted: Tensor) -> float:
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("prefixes", [(), (0, 130, 130, 0)])
@pytest.mark.parametrize(
    ("kernel", "head_dim", "window"),
    [
        *(("varlen", head_dim, window) for head_dim in (32, 128, 256) for window in (None, 1, 2, 64, 1000)),
        *(("flash_attention_4", head_dim, window) for head_dim in (64, 128) for window in (None, 2, 64)),
    ],
)
def test_the_flash_kernels_keep_samples_windows_and_prompts_apart(
    kernel: str, head_dim: int, window: int | None, prefixes: tuple[int, ...]
) -> None:
    if kernel == "flash_attention_4":
        pytest.importorskip("flash_attn.cute", reason="the package flash-attn-4 is missing")
    torch.manual_seed(0)
    lengths = (257, 3, 512, 130) if not prefixes else (300, 40, 511, 77)
    heads = (8, 2, 2)
    exact = [torch.randn(1, number, sum(lengths), head_dim, dtype=torch.float64, device=GPU) for number in heads]
    inputs = [states.to(torch.bfloat16).requires_grad_() for states in exact]
    wide = [states.detach().double().requires_grad_() for states in inputs]
    options: dict[str, Any] = {
        "scaling": head_dim**-0.5,
        "sliding_window": window,
        **layout(lengths, GPU, prefixes=prefixes),
    }
    module = torch.nn.Identity()
    attend = {"varlen": packed_varlen, "flash_attention_4": packed_flash_4}[kernel]
    got, _ = attend(module, *inputs, None, **options)
    wanted, _ = packed_sdpa(module, *wide, None, **options)
    assert relative(got, wanted) < 0.01
    direction = torch.randn_like(wanted)
    exact_grads = torch.autograd.grad(wanted, wide, direction)
    largest = max(float(grad.norm()) for grad in exact_grads)
    for left, right in zip(torch.autograd.grad(got, inputs, direction.to(got.dtype)), exact_grads, strict=True):
        # With a window of one token the gradients of queries and keys are 0.
        assert (left.double() - right).norm() < 0.02 * right.norm() + 1e-5 * largest


def model_in(folder: Path) -> config.Model:
    shape = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=ROW,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
    return config.Model(path=str(folder), fp32_head=True)


def trainer_of(model: config.Model, **learner: Any) -> DeepSpeedTrainer:
    return DeepSpeedTrainer(
        model,
        config.Learner(device="cuda", learning_rate=1e-3, **learner),
        resolve(config.Objective(), ROW),
        temperature=1.0,
        steps=10,
        seed=0,
        ranks=Ranks(0, 1, f"127.0.0.1:{_free_port()}"),
    )


def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, VOCABULARY, 64).astype(np.int32)
    return [
        Sample(
            draw_id=0,
            prompt_ids=prompt,
            completion_ids=rng.integers(0, VOCABULARY, size).astype(np.int32),
            behaviour_logprobs=rng.normal(-8.3, 0.1, size).astype(np.float32),
            loss_mask=np.ones(size, np.bool_),
            lags=np.zeros(size, np.int32),
            advantage=float(rng.normal()),
        )
        for size in (960, 300, 17, 420)
    ]


def weights_after_a_step(trainer: DeepSpeedTrainer) -> tuple[Tensor, float]:
    """The log-probabilities after one step, and the norm of its gradient."""
    try:
        shard = pack([samples()], step=1, num_ranks=1, num_minibatches=1, row_tokens=ROW)[0]
        values = asyncio.run(trainer.train(shard))
        assert values is not None
        return trainer.score(row_arrays(samples()[:1])).cpu(), values["grad_norm"]
    finally:
        trainer.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> config.Model:
    return model_in(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def simplest(model: config.Model) -> tuple[Tensor, float]:
    return weights_after_a_step(trainer_of(model, zero_stage=0, attention="eager"))


@pytest.mark.parametrize(
    "learner",
    [
        {"zero_stage": 0},
        {"zero_stage": 1, "attention": "sdpa"},
        {"zero_stage": 2, "gradient_checkpointing": True, "mlp_tiles": 4},
        {"zero_stage": 2, "offload_optimizer": True, "gradient_checkpointing": "offload"},
        {"zero_stage": 3},
    ],
    ids=lambda learner: " ".join(f"{key}={value}" for key, value in learner.items()),
)
def test_every_way_to_train_takes_the_step_of_the_simplest_one(
    model: config.Model, simplest: tuple[Tensor, float], learner: dict[str, Any]
) -> None:
    trainer = trainer_of(model, **learner)
    wanted = {"sdpa": "olmorl_sdpa"}.get(learner.get("attention", ""), "olmorl_varlen")  # its heads have 64 values
    assert trainer._model.config._attn_implementation == wanted
    logprobs, grad_norm = weights_after_a_step(trainer)
    assert grad_norm == pytest.approx(simplest[1], rel=0.02)
    assert (logprobs - simplest[0])[64:].abs().mean() < 0.03


def test_a_snapshot_holds_the_weights(model: config.Model) -> None:
    trainer = trainer_of(model, zero_stage=2)
    try:
        assert trainer._snapshot._memory.is_pinned()
        weights = dict(trainer._model.named_parameters())
        buffers = {buffer.name: buffer for buffer in trainer.snapshot()}
        assert set(buffers) == set(weights)
        for name, weight in weights.items():
            copied = torch.frombuffer(bytearray(buffers[name].data), dtype=torch.bfloat16)
            assert torch.equal(copied, weight.detach().cpu().flatten()), name
    finally:
        trainer.close()


@pytest.mark.parametrize("learner", [{"zero_stage": 2}, {"zero_stage": 3, "gradient_checkpointing": True}])
def test_the_plan_is_near_the_peak(tmp_path: Path, learner: dict[str, Any]) -> None:
    gc.collect()
    others = torch.cuda.memory_allocated()  # of earlier tests
    model = model_in(tmp_path)
    planned = rank_memory(model, config.Learner(device="cuda", **learner), 1, ROW, on_gpu=True).peak
    trainer = trainer_of(model, **learner)
    try:
        one = [samples()[0]]
        shard = pack([one], step=1, num_ranks=1, num_minibatches=1, row_tokens=ROW)[0]
        torch.cuda.reset_peak_memory_stats()
        asyncio.run(trainer.train(shard))
        assert torch.cuda.max_memory_allocated() - others == pytest.approx(planned, rel=0.1)
    finally:
        trainer.close()


def test_auto_is_a_flash_kernel() -> None:
    name = packed_attention.implementation("auto", GPU, torch.bfloat16, Qwen3Config())
    assert name in ("olmorl_varlen", "olmorl_attention_4")
