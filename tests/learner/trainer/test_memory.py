"""The memory plan of a rank against the profile of torch's allocator, on small models that really train on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.trainer import memory
from olmorl.learner.trainer.memory import LiveBytes, RankMemory, RowSettings
from olmorl.learner.trainer.pinned_memory import pinned_bytes

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MIB = 2**20
CLOSE = 0.1
LAYERS = 9
"""Over two periods, so that the plan extrapolates."""
BUCKET = 1_000_000
"""Fewer gradients than the models have, as in a run of size."""


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Random models of 5 to 10 million parameters: wide enough that neither part of the memory vanishes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 4096,
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    special = {"olmo3": {"sliding_window": 256}, "qwen2": {"tie_word_embeddings": True}, "llama": {}}
    folders = {}
    for name, more in special.items():
        folder = tmp_path_factory.mktemp("small") / name
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **shape, **more)).save_pretrained(folder)
        folders[name] = str(folder)
    return folders


def job(
    model: str, dtype: str, stage: int, checkpointing: bool = True, row_tokens: int = 512, rank: int = 0, **learner: Any
) -> dict[str, Any]:
    return {
        "kind": "memory",
        "model": {"path": model, "dtype": dtype, "lora": {"rank": rank}},
        "learner": {
            "zero_stage": stage,
            "gradient_checkpointing": checkpointing,
            "deepspeed": {"zero_optimization": {"reduce_bucket_size": BUCKET}},
            **learner,
        },
        "row_tokens": row_tokens,
    }


def jobs(llama: str, olmo: str, tied: str) -> tuple[Jobs, Jobs]:
    """For one rank and for two, by name."""
    alone = {
        "float32, stage 0": job(llama, "float32", 0, False),
        "bfloat16, stage 2, a longer row": job(llama, "bfloat16", 2, row_tokens=1024),
        "bfloat16, stage 3, sliding windows": job(olmo, "bfloat16", 3),
        "bfloat16, stage 3, offloaded": job(llama, "bfloat16", 3, offload_optimizer=True),
        "bfloat16, stage 2, adapters": job(llama, "bfloat16", 2, rank=8),
        "float32, stage 0, adapters": job(llama, "float32", 0, False, rank=8),
        "float32, stage 0, in tiles": job(llama, "float32", 0, False, 1024, mlp_tiles=4),
    }
    pair = {
        "bfloat16, stage 1": job(llama, "bfloat16", 1),
        "bfloat16, stage 2, offloaded": job(llama, "bfloat16", 2, offload_optimizer=True),
        "float32, stage 3, tied": job(tied, "float32", 3, False, row_tokens=1024),
        "bfloat16, stage 3, adapters": job(llama, "bfloat16", 3, rank=8),
        "float32, stage 3, adapters": job(llama, "float32", 3, False, rank=8),
        "float32, stage 0, a shared row": job(llama, "float32", 0, False, 2048, sequence_parallel=2),
        "bfloat16, stage 2, a shared row in tiles": job(
            olmo, "bfloat16", 2, True, 4096, sequence_parallel=2, mlp_tiles=4
        ),
    }
    return alone, pair


ALONE, PAIR = jobs("", "", "")


class Compared(NamedTuple):
    """Bytes of a rank: planned, and measured over two steps of two rows each."""

    plan: RankMemory
    peak: int
    standing: int
    """Between two steps."""
    gradients: int
    """That stay between two backward passes."""
    activations: int
    """Above what was there before a backward pass that adds to gradients."""


@pytest.fixture(scope="module")
def compared(
    run_ranks: Callable[[int, Jobs], Results], small_models: dict[str, str]
) -> Callable[[str], list[Compared]]:
    """Gives the ranks of a job by its name."""
    alone, pair = jobs(*(small_models[name] for name in ("llama", "olmo3", "qwen2")))

    @cache
    def run(name: str) -> list[Compared]:
        world, asked = (1, alone[name]) if name in alone else (2, pair[name])
        # Each in processes of its own: what a job before leaves, and frees late, would count.
        ranks = run_ranks(world, {name: asked})[name]
        model, learner = config.Model(**asked["model"]), config.Learner(**asked["learner"])
        plan = memory.rank_memory(model, learner, world, asked["row_tokens"], on_gpu=False)
        return [Compared(plan, *(rank[key] for key in Compared._fields[1:])) for rank in ranks]

    return run


def in_mib(part: NamedTuple) -> dict[str, float]:
    return {key: round(value / MIB, 1) for key, value in part._asdict().items() if isinstance(value, int)}


@pytest.mark.parametrize("name", [*ALONE, *PAIR])
def test_the_planned_peak_is_within_a_tenth_of_the_measured_one(
    compared: Callable[[str], list[Compared]], name: str
) -> None:
    for rank in compared(name):
        planned = rank.plan.peak + rank.plan.offloaded  # on the CPU both are in the memory of the host
        said = f"{in_mib(rank)}, {planned / MIB:.1f} planned: {in_mib(rank.plan.states)}, {in_mib(rank.plan)}"
        print(name, said)
        assert planned == pytest.approx(rank.peak, rel=CLOSE), said


@pytest.mark.parametrize(
    "name", [name for name in (*ALONE, *PAIR) if "stage 3" not in name and "offloaded" not in name]
)
def test_weights_optimizer_gradients_and_activations_are_each_within_a_tenth(
    compared: Callable[[str], list[Compared]], name: str
) -> None:
    """Under ZeRO-3 they share buffers with gathered weights, so that only their sum can be measured."""
    for rank in compared(name):
        states, row = rank.plan.states, rank.plan.activations
        assert row is not None
        print(name, in_mib(rank), in_mib(states), in_mib(row))
        assert row.peak == pytest.approx(rank.activations, rel=CLOSE)
        planned = states.weights + states.optimizer + states.gradients + states.buckets
        assert planned == pytest.approx(rank.standing + rank.gradients, rel=CLOSE)
        if name in ALONE:
            assert states.weights + states.optimizer == pytest.approx(rank.standing, rel=CLOSE)
            # The buffers of a sum are gone between two backward passes.
            assert states.gradients == pytest.approx(rank.gradients, rel=CLOSE)


@pytest.mark.parametrize(("stage", "ranks"), [(2, 1), (2, 2), (3, 2)])
def test_in_turns_the_one_that_sleeps_gives_its_memory_back(
    run_ranks: Callable[[int, Jobs], Results], small_models: dict[str, str], stage: int, ranks: int
) -> None:
    whole = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
    learner = {"zero_stage": stage, "offload_critic": True, "deepspeed": whole if stage == 3 else {}}
    policy, critic = config.Model(path=small_models["llama"]), config.Model(path=small_models["olmo3"])
    asked = {
        "kind": "turns",
        "model": {"path": policy.path},
        "learner": learner,
        "objective": {"preset": "ppo"},
        "critic": {"path": critic.path},
    }
    plan = memory.rank_memory(policy, config.Learner(**learner), ranks, 512, on_gpu=False, critic=critic)
    assert plan.critic is not None
    for rank in run_ranks(ranks, {"turns": asked})["turns"]:
        (taken, freed), (taken_by_critic, freed_by_critic) = rank["policy"], rank["critic"]
        print(stage, ranks, *(f"{each / MIB:.1f} MiB" for each in (taken, taken_by_critic)))
        assert (taken, taken_by_critic) == (-freed, -freed_by_critic)
        assert taken == pytest.approx(plan.movable, rel=CLOSE)
        # It is counted with the head of a policy, a sixth of this model.
        assert 0.8 * plan.critic.movable < taken_by_critic < 0.9 * plan.critic.movable
    apart = memory.rank_memory(policy, config.Learner(zero_stage=stage), ranks, 512, on_gpu=False, critic=critic)
    assert apart.peak - plan.peak == min(plan.movable, plan.critic.movable)
    assert (plan.asleep, apart.asleep) == ((plan.movable, plan.critic.movable), ())


def test_a_deep_model_is_extrapolated(small_models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = config.Model(path=small_models["olmo3"])
    row = RowSettings(512, False, 2, 1, True, 2, True, True)
    extrapolated = memory.activations(model, row)
    assert extrapolated is not None
    monkeypatch.setattr(memory, "SHALLOW", LAYERS)
    memory.activations.cache_clear()
    whole = memory.activations(model, row)
    memory.activations.cache_clear()
    assert whole is not None
    assert tuple(extrapolated) == pytest.approx(tuple(whole), rel=0.05)


def test_offloaded_activations_are_on_the_host(small_models: dict[str, str]) -> None:
    """Of each layer its input is moved, into a pinned block: tokens x hidden size, in bf16. The norm before the head
    saves some more."""
    model = config.Model(path=small_models["llama"], dtype="bfloat16")
    row = RowSettings(1024, False, 1, 1, False, 1, False, True)
    there, moved = (memory.activations(model, row._replace(offload_activations=moved)) for moved in (False, True))
    assert there is not None and moved is not None
    inputs = LAYERS * pinned_bytes(1024 * 192 * 2)
    assert there.host == 0 and inputs <= moved.host < 2 * inputs
    assert moved.kept < 0.2 * there.kept and moved.peak < there.peak
    assert there.kept - moved.kept <= moved.host, "a tensor that is saved twice is copied twice"
    kept, on_cpu = (
        memory.activations(model, row._replace(offload_activations=moved, on_gpu=False)) for moved in (False, True)
    )
    assert on_cpu == kept, "on the CPU there is no other memory to go to"


def test_every_second_layer_is_half_way_between_none_and_all(small_models: dict[str, str]) -> None:
    model = config.Model(path=small_models["llama"], dtype="bfloat16")
    row = RowSettings(1024, False, 1, 1, False, 1, False, True)
    none, every, second = (memory.activations(model, row._replace(recomputed_every=n)) for n in (0, 1, 2))
    assert none is not None and every is not None and second is not None
    assert second.kept == pytest.approx((none.kept + every.kept) / 2, rel=0.1)


def test_two_ranks_hold_half_of_a_row_each(small_models: dict[str, str]) -> None:
    model = config.Model(path=small_models["llama"], dtype="bfloat16")
    row = RowSettings(1024, False, 1, 1, False, 1, False, True)
    whole, half = (memory.activations(model, row._replace(sequence_parallel=size)) for size in (1, 2))
    assert whole is not None and half is not None
    assert half.kept == pytest.approx(whole.kept / 2, rel=0.02)
    assert half.layers < 0.6 * whole.layers
    with pytest.raises(ModelError, match=r"sequence_parallel = 4 does not fit .* set it to 2"):
        memory.activations(model, row._replace(sequence_parallel=4))


def test_a_model_whose_shapes_depend_on_its_data_has_no_known_activations(
    small_models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    def routed(self: Any, hidden: Any) -> Any:
        return hidden * float(hidden.detach().sum())

    monkeypatch.setattr(LlamaMLP, "forward", routed)
    memory.activations.cache_clear()
    model, learner = config.Model(path=small_models["llama"]), config.Learner()
    plan = memory.rank_memory(model, learner, 1, 128, on_gpu=False)
    memory.activations.cache_clear()
    assert plan.activations is None and plan.peak > 12 * plan.parameters


def test_live_bytes_counts_storages_once_and_forgets_them() -> None:
    import torch

    with LiveBytes() as live:
        whole = torch.zeros(1000, dtype=torch.float32)
        part = whole[:10].view(2, 5)
        assert live.now == live.peak == 4000
        other = part + 1
        assert live.now == 4040
        del whole, part
        assert live.now == 40
        del other
    assert (live.now, live.peak) == (0, 4040)
