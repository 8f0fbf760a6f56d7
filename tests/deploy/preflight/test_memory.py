"""The memory plan of the shipped recipes at true width, its refusals, and the checks of GPUs and object stores."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from olmorl import codec, config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.launch import main
from olmorl.deploy.preflight import checks, memory, memory_fixes
from olmorl.deploy.preflight.memory import MemoryPlan
from olmorl.deploy.preflight.memory_places import GIB, MemoryPlace
from olmorl.errors import ConfigError, ResourceError
from olmorl.learner.storage import rollout_record
from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Completion, Group, Prompt, Span, Version
from tests.deploy.folders import OLMO3, olmo3
from tests.deploy.hub_settings import use_hub

ROOT = Path(__file__).resolve().parents[3]
RECIPES, PAGE = ROOT / "deploy" / "recipes", ROOT / "docs" / "cluster.md"
SHIPPED = {
    "olmo3-32b-think": ("32b", 32_233_522_176, 34_816),
    "olmo3-7b-think": ("7b", 7_298_011_136, 34_816),
    "olmo3-7b-instruct": ("7b", 7_298_011_136, 10_240),
    "olmo3-7b-rl-zero": ("7b", 7_298_011_136, 18_432),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def shipped(models: Path, recipe: str, *changes: tuple[str, str]) -> config.Config:
    path = olmo3(models, SHIPPED[recipe][0])
    return config.load(RECIPES / f"{recipe}.toml", [("model.path", json.dumps(str(path))), *changes])


def of(place: MemoryPlace) -> dict[str, float]:
    return {part.what: part.num_bytes / GIB for part in place.parts}


@pytest.mark.parametrize("recipe", SHIPPED)
def test_a_shipped_recipe_fits_gpus_of_80_gb(models: Path, recipe: str) -> None:
    _, parameters, row_tokens = SHIPPED[recipe]
    settings = shipped(models, recipe)
    assert settings.row_tokens == row_tokens
    plan = memory.memory_plan(settings)
    assert plan.overfull is None
    learner, engine, *_ = plan.places
    assert learner.limit == 80e9 and learner.needed < 0.8 * learner.limit
    ranks = settings.learner.nodes * settings.learner.ranks_per_node
    parts = of(learner)
    assert parts["weights"] == pytest.approx(2 * parameters / ranks / GIB)
    assert parts["optimizer"] == pytest.approx(12 * parameters / ranks / GIB)
    assert parts["gradients"] == pytest.approx(4 * parameters / ranks / GIB)
    # Of each layer the backward pass needs at least the bf16 input.
    architecture = OLMO3[SHIPPED[recipe][0]]
    assert parts["activations"] > 2 * row_tokens * architecture["hidden_size"] * architecture["num_hidden_layers"] / GIB
    assert of(engine)["weights"] == pytest.approx(2 * parameters / settings.actors.tensor_parallel / GIB)


@pytest.mark.parametrize("recipe", SHIPPED)
def test_publishing_costs_the_learner_of_a_shipped_recipe_at_most_two_percent(models: Path, recipe: str) -> None:
    """Of a step with the speed of the published 32B run: 125 s on 64 GPUs for 1,024 answers of up to 32,768 tokens."""
    settings, parameters = shipped(models, recipe), SHIPPED[recipe][1]
    found = memory.memory_plan(settings).publishing
    work = parameters * settings.schedule.prompts_per_step * settings.sampling.group_size * settings.sampling.max_tokens
    published = SHIPPED["olmo3-32b-think"][1] * 1024 * 32_768
    step_s = 125 * work / published * 64 / (settings.learner.nodes * settings.learner.ranks_per_node)
    assert 0 < found.share(step_s) < 0.02
    assert found.background_s < step_s


def test_32b_at_34816_tokens_part_by_part(models: Path) -> None:
    """Worked by hand, but for the activations inside of a layer and of the head."""
    places = {place.name: of(place) for place in memory.memory_plan(shipped(models, "olmo3-32b-think")).places}
    learner = places["a learner GPU"]
    kept = 64 * 34_816 * 5120 * 2 / GIB  # the input of each layer
    assert 21 < kept < learner["activations"] < 2 * kept
    whole_head = 100_278 * 5120 * 4 / GIB  # its gradient in fp32
    assert whole_head < learner["logits"] < 3 * whole_head
    assert learner["weights gathered from other ranks"] == pytest.approx(1.05e9 * 2 / GIB)
    # Keys and values of 8 heads of 128 numbers, 7 copies of a prompt, in one layer; and their gradients.
    assert learner["copied keys of prompts"] == pytest.approx(2 * 7 * 2048 * 2 * 8 * 128 * 2 / GIB)
    unshared = memory.memory_plan(shipped(models, "olmo3-32b-think", ("learner.attention", "flash_attention_2")))
    assert "copied keys of prompts" not in of(unshared.places[0])
    weights = 2 * SHIPPED["olmo3-32b-think"][1] / GIB
    assert places["a host of engines"] == pytest.approx(
        {"shared memory": 2 * weights, "object store": 3 * weights, "processes": 8 * 4}
    )
    hosts = shipped(models, "olmo3-32b-think").learner.nodes
    assert places["a host of the learner"]["object store"] == pytest.approx(3 * weights / hosts)
    # 16 full and 48 sliding layers, one key head on each of 8 GPUs, keys and values of 128 numbers.
    one = (16 * 34_816 + 48 * 4096) * 2 * 128 * 2 / GIB
    plan = memory.memory_plan(shipped(models, "olmo3-32b-think"))
    [cache] = [part for part in plan.places[1].parts if part.what == "KV cache"]
    assert cache.note.startswith(f"{cache.num_bytes / GIB / one:.1f} sequences of 34,816")


def test_shared_rows_tiles_and_activations_on_the_host(models: Path) -> None:
    """Each makes room on a GPU; what is offloaded is counted on the host in pinned blocks, for its eight ranks."""

    def planned(*changes: tuple[str, str]) -> MemoryPlan:
        return memory.memory_plan(shipped(models, "olmo3-32b-think", *changes))

    whole, shared, tiled, offloaded = (
        planned(*changes)
        for changes in (
            (),
            (("learner.sequence_parallel", "8"),),
            (("learner.mlp_tiles", "8"),),
            (("learner.gradient_checkpointing", "offload"),),
        )
    )
    activations = [of(plan.places[0])["activations"] for plan in (whole, shared, tiled, offloaded)]
    assert activations[1] == pytest.approx(activations[0] / 8, rel=0.15)
    mlp = 34_816 * 27_648 * 2 / GIB  # one inner tensor of a row
    assert 3 * mlp < activations[0] - activations[2] < 6 * mlp
    inputs = 64 * 34_816 * 5120 * 2 / GIB
    assert activations[0] - activations[3] == pytest.approx(inputs, rel=0.1)
    host = {place.name: of(place) for place in offloaded.places}["a host of the learner"]
    blocks = 64 * 512 / 1024  # of the 340 MiB of each input
    assert 8 * blocks < host["offloaded activations"] < 1.2 * 8 * blocks
    assert host["kept for shorter rows"] == host["offloaded activations"]
    assert "a row of 34,816 tokens on 8 ranks" in {part.note for part in shared.places[0].parts}


def test_the_page_has_the_plan_of_each_shipped_recipe(models: Path) -> None:
    rows: dict[str, list[str]] = {}
    for recipe in SHIPPED:
        for place in memory.memory_plan(shipped(models, recipe)).places[:2]:
            sizes = [(part.what, part.num_bytes) for part in place.parts]
            for what, num_bytes in (*sizes, ("at the peak", place.needed)):
                rows.setdefault(f"{place.name}: {what}", []).append(f"{num_bytes / GIB:.1f}")
    columns = (
        "| GiB for each GPU | 32B Think | 7B Think | 7B Instruct | 7B RL-Zero |\n| --- | --- | --- | --- | --- |\n"
    )
    table = PAGE.read_text(encoding="utf-8").partition(columns)[2].partition("\n\n")[0]
    assert table.splitlines() == [f"| {' | '.join((name, *sizes))} |" for name, sizes in rows.items()]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_critic_takes_what_the_policy_takes_but_the_activations(models: Path) -> None:
    plain, ppo = (
        memory.memory_plan(shipped(models, "olmo3-7b-think", *changes))
        for changes in ((), (("objective.preset", '"ppo"'),))
    )
    parts = of(plain.places[0])
    standing = sum(parts[what] for what in ("weights", "optimizer", "gradients", "buffers of the gradients' sum"))
    assert of(ppo.places[0])["critic"] == pytest.approx(standing)
    assert (ppo.places[0].needed - plain.places[0].needed) / GIB == pytest.approx(standing)
    saved, of_both = ({part.what: part.num_bytes for part in each.disk}["a checkpoint"] for each in (plain, ppo))
    assert of_both == 2 * saved
    copy, of_both = (
        next(part.num_bytes for place in each.places for part in place.parts if part.what == "copy for a checkpoint")
        for each in (plain, ppo)
    )
    assert of_both == 2 * copy


@pytest.mark.parametrize("nodes", [1, 4])
def test_critic_and_policy_in_turns_need_the_memory_of_one(models: Path, nodes: int) -> None:
    changes = (("objective.preset", '"ppo"'), ("learner.nodes", str(nodes)))
    beside, turns = (
        memory.memory_plan(shipped(models, "olmo3-7b-think", *changes, *more))
        for more in ((), (("learner.offload_critic", "true"),))
    )
    parts = of(beside.places[0])
    moved = parts["weights"] + parts["optimizer"]
    assert (beside.places[0].needed - turns.places[0].needed) / GIB == pytest.approx(moved)
    assert of(turns.places[0])["critic"] == pytest.approx(parts["critic"] - moved)
    [held] = [part for place in turns.places for part in place.parts if part.what == "policy and critic in turns"]
    assert held.num_bytes / GIB == pytest.approx(2 * 8 * moved), "of the eight ranks of a node"
    assert moved == pytest.approx((2 + 12) * SHIPPED["olmo3-7b-think"][1] / (8 * nodes) / GIB)


def test_turns_are_proposed_where_policy_and_critic_do_not_fit_together(models: Path) -> None:
    changes = (("objective.preset", '"ppo"'), ("learner.nodes", "1"), ("learner.gradient_checkpointing", "true"))
    settings = shipped(models, "olmo3-7b-think", *changes, ("learner.zero_stage", "3"))
    needed = memory.memory_plan(settings).places[0].needed
    smaller = config.with_key(settings, "cluster.gpu_memory_gib", needed / GIB - 5)
    with pytest.raises(ResourceError, match=r"set learner\.offload_critic = true \(then "):
        memory.refuse_too_little(smaller, memory.memory_plan(smaller))


@pytest.mark.parametrize("nodes", [1, 4])
def test_an_offloaded_reference_leaves_the_device_for_the_host(models: Path, nodes: int) -> None:
    """Critic and reference of a 7B on one node and on several, with all three in turns on the same GPUs."""
    changes = (("objective.preset", '"ppo"'), ("objective.kl_beta", "0.01"), ("learner.nodes", str(nodes)))
    offloads = ("learner.offload_reference", "true")
    beside, away, refreshed = (
        memory.memory_plan(shipped(models, "olmo3-7b-think", *changes, *more))
        for more in ((), (offloads,), (offloads, ("objective.kl_refresh_every", "10")))
    )
    ranks, parameters = 8 * nodes, SHIPPED["olmo3-7b-think"][1]
    parts = of(beside.places[0])
    assert parts["reference model"] == parts["weights"]
    assert "reference model" not in of(away.places[0]) and "critic" in of(away.places[0])
    assert beside.places[0].needed - away.places[0].needed == beside.places[0].parts[0].num_bytes
    [held] = [part for place in away.places for part in place.parts if part.what == "offloaded reference"]
    share = 8 * parameters // ranks  # of a host, with the fp32 weights of the policy while the reference computes
    assert held.num_bytes == 2 * share + 4 * share
    kept, more = ({part.what: part.num_bytes for part in each.disk}["a checkpoint"] for each in (away, refreshed))
    assert (kept, more) == (2 * 12 * parameters, (2 * 12 + 2) * parameters)


def test_adapters_are_all_that_is_published_and_saved_and_has_an_optimizer(models: Path) -> None:
    alone = (("learner.nodes", "1"), ("learner.ranks_per_node", "1"), ("learner.zero_stage", "2"))
    changes = (*alone, ("learner.compile", "false"), ("model.lora.rank", "32"), ("objective.kl_beta", "0.1"))
    plan = memory.memory_plan(shipped(models, "olmo3-7b-think", *changes))
    inner, hidden, layers = 11008, 4096, 32
    adapters = 32 * layers * (4 * (hidden + hidden) + 3 * (hidden + inner))  # rank x (inputs + outputs)
    parts, disk = of(plan.places[0]), {part.what: part.num_bytes for part in plan.disk}
    assert parts["weights"] == pytest.approx(2 * (SHIPPED["olmo3-7b-think"][1] + adapters) / GIB)
    assert parts["optimizer"] == pytest.approx(12 * adapters / GIB)
    assert parts["gradients"] == pytest.approx(4 * adapters / GIB)
    assert "reference model" not in parts, "it is the policy without its adapters"
    assert disk["a checkpoint"] == 12 * adapters
    assert plan.publishing.copy_s == pytest.approx(2 * adapters / 20e9)
    [shared] = [part for place in plan.places for part in place.parts if part.what == "shared memory"]
    assert shared.num_bytes == 2 * 2 * adapters
    assert plan.overfull is None


def test_a_row_too_long_for_a_gpu_is_refused_with_ranks_to_share_it(models: Path) -> None:
    tried = (("learner.offload_optimizer", "true"),)
    settings = shipped(models, "olmo3-32b-think", ("sampling.max_tokens", "129024"), *tried)
    assert settings.row_tokens == 131_072
    with pytest.raises(ResourceError, match=r"a learner GPU needs .* set learner.sequence_parallel = 4 \(then"):
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    shared = config.with_key(settings, "learner.sequence_parallel", 4)
    assert memory.memory_plan(shared).places[0].fits


def test_a_host_of_the_learner_has_the_shards_of_its_ranks_and_with_deltas_a_copy(models: Path) -> None:
    weights = 2 * SHIPPED["olmo3-32b-think"][1] / GIB / shipped(models, "olmo3-32b-think").learner.nodes
    for change, expected in ((), None), ((("weights.full_every", "10"),), weights):
        settings = shipped(models, "olmo3-32b-think", *change)
        places = {place.name: of(place) for place in memory.memory_plan(settings).places}
        host = places["a host of the learner"]
        assert 0.9 < weights / 8 < 1 and host["snapshot for publishing"] == 8, "a pinned block of 1 GiB for each rank"
        assert host.get("copy for the deltas") == (expected and pytest.approx(expected))
        assert host["export"] == pytest.approx(weights * settings.learner.nodes), "the whole model"


def test_two_versions_and_the_present_weights_are_counted_on_the_host(models: Path) -> None:
    parameters = SHIPPED["olmo3-7b-rl-zero"][1]
    plain, kept = (
        of(memory.memory_plan(shipped(models, "olmo3-7b-rl-zero", *changes)).places[2])
        for changes in ((), (("objective.rho_kind", '"two_factor"'), ("schedule.max_lag", "1")))
    )
    assert kept.get("earlier weights") == pytest.approx((2 * 2 + 4) * parameters / GIB)
    assert "earlier weights" not in plain


def test_what_deepspeed_offloads_is_counted_with_its_gradients(models: Path) -> None:
    """Master copy and moments in ordinary memory, two pinned copies of the gradients."""
    settings = shipped(models, "olmo3-7b-rl-zero", ("learner.offload_optimizer", "true"))
    gpu, host = (of(memory.memory_plan(settings).places[number]) for number in (0, 2))
    assert not {"optimizer", "gradients"} & set(gpu)
    assert host["offloaded optimizer"] == pytest.approx((12 + 4 + 4) * 7_298_011_136 / GIB)
    assert host["copy for a checkpoint"] == pytest.approx(12 * 7_298_011_136 / GIB), "too large to be rounded"


@pytest.mark.parametrize(
    ("vllm", "key", "weights"),
    [
        ({}, 2, 2 * 7_298_011_136),
        ({"kv_cache_dtype": "fp8", "quantization": "fp8"}, 1, 7_298_011_136 + 2 * 100_278 * 4096),
        ({"kv_cache_dtype": "fp8_e5m2"}, 1, 2 * 7_298_011_136),
        ({"kv_cache_dtype": "nvfp4", "quantization": "unheard_of"}, 2, 2 * 7_298_011_136),
    ],
)
def test_an_engine_has_the_bytes_of_its_formats(models: Path, vllm: dict[str, str], key: int, weights: int) -> None:
    """Embedding and head, of 100,278 x 4,096 each, stay in bf16. A format that is not known counts as the model's."""
    settings = config.with_key(shipped(models, "olmo3-7b-rl-zero"), "actors.vllm", vllm)
    engine = memory.memory_plan(settings).places[1]
    assert of(engine)["weights"] == weights / GIB
    [cache] = [part for part in engine.parts if part.what == "KV cache"]
    one = (8 * 18_432 + 24 * 4096) * 2 * 4096 * key
    assert cache.note == f"{cache.num_bytes / one:.1f} sequences of 18,432 tokens"


def test_a_store_of_files_has_its_versions_on_the_disk(models: Path) -> None:
    def disk(*changes: tuple[str, str]) -> dict[str, tuple[int, str]]:
        plan = memory.memory_plan(shipped(models, "olmo3-7b-think", *changes))
        return {part.what: (part.num_bytes, part.note) for part in plan.disk}

    three = 3 * 2 * SHIPPED["olmo3-7b-think"][1]
    assert disk(("weights.directory", '"/shared/w"'))["published versions"] == (three, "in /shared/w")
    own = disk(("weights.store", '"file"'))["published versions"]
    assert own == (three, "in runs/olmo3-7b-think/weights")
    assert "published versions" not in disk()


def test_what_does_not_fit_is_refused_with_the_key_that_mends_it(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("--learner.gradient_checkpointing", "false", "--model.path", str(olmo3(models, "7b")))
    assert main([str(RECIPES / "olmo3-7b-think.toml"), *wrong, "--dry-run"]) == 2
    said = capsys.readouterr()
    assert "memory and disk" in said.out and "rollouts a step" in said.out
    assert "a learner GPU needs" in said.err and "set learner.gradient_checkpointing = true (then" in said.err


def test_a_change_that_the_recipe_does_not_allow_is_not_proposed(models: Path) -> None:
    """Shorter answers contradict the buffer, and two GPUs for each of eight engines are more than a node has."""
    buffer = ("objective.overlong_buffer", "16384"), ("objective.preset", '"dapo"')
    full = ("actors.gpu_memory_utilization", "0.2"), ("actors.engines_per_node", "8")
    settings = shipped(models, "olmo3-7b-rl-zero", *buffer, *full)
    with pytest.raises(ResourceError, match=r"set actors.gpu_memory_utilization = 0.95"):
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    place = memory.memory_plan(settings).places[1]
    proposed = [
        change for change in memory_fixes.changes(settings, place.name) if change[0] == "actors.tensor_parallel"
    ]
    assert proposed == []
    assert memory._with(settings, [("sampling.max_tokens", 1024)], place) is None


def test_an_engine_has_gpus_that_divide_the_heads(models: Path) -> None:
    settings = shipped(models, "olmo3-7b-rl-zero", ("actors.tensor_parallel", "3"), ("actors.engines_per_node", "1"))
    with pytest.raises(ConfigError, match=r"= 3 does not divide the 32 attention heads of .*: set it to 2"):
        memory.memory_plan(settings)


def test_an_engine_of_two_nodes_has_the_memory_of_both(models: Path) -> None:
    """On GPUs of 1.8 GiB the weights of 7B do not fit the eight of a node."""
    small = [("cluster.gpu_memory_gib", "1.8"), ("cluster.address", '"auto"'), ("sampling.max_tokens", "256")]
    one = [*small, ("actors.engines_per_node", "1"), ("actors.tensor_parallel", "8"), ("actors.max_running", "4")]
    settings = shipped(models, "olmo3-7b-rl-zero", *one, ("actors.vllm.max_num_batched_tokens", "1024"))
    [engine] = [place for place in memory.memory_plan(settings).places if place.name == "an engine GPU"]
    assert not engine.fits
    assert "give an engine several (actors.nodes_per_engine, and " in memory._fix(settings, engine)
    two = [*one, ("actors.vllm.max_num_batched_tokens", "1024"), ("actors.nodes_per_engine", "2")]
    settings = shipped(models, "olmo3-7b-rl-zero", *two, ("actors.tensor_parallel", "16"))
    found = {place.name: place for place in memory.memory_plan(settings).places}
    assert found["an engine GPU"].fits
    assert of(found["an engine GPU"])["weights"] == pytest.approx(2 * 7_298_011_136 / 16 / GIB)
    [processes] = [part for part in found["a host of engines"].parts if part.what == "processes"]
    assert processes.note.startswith("8 with a GPU")


@pytest.mark.parametrize(
    ("changes", "fix"),
    [
        ((("learner.zero_stage", "1"),), "learner.zero_stage = 3"),
        ((("actors.gpu_memory_utilization", "0.2"),), "actors.gpu_memory_utilization = 0.95"),
        (
            (("actors.gpu_memory_utilization", "0.2"), ("actors.engines_per_node", "4")),
            "actors.tensor_parallel = 2",
        ),
        (
            (("learner.gradient_checkpointing", "false"), ("learner.zero_stage", "1")),
            "learner.gradient_checkpointing = true and learner.zero_stage = 3",
        ),
    ],
)
def test_the_plan_with_the_named_change_fits(models: Path, changes: tuple[tuple[str, str], ...], fix: str) -> None:
    settings = shipped(models, "olmo3-7b-rl-zero", *changes)
    with pytest.raises(ResourceError, match=fix):
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    for change in fix.split(" and "):
        key, value = change.split(" = ")
        settings = config.with_key(settings, key, json.loads(value))
    assert "KV cache" in of(memory.memory_plan(settings).places[1])
    fixed = {place.name: place.fits for place in memory.memory_plan(settings).places}
    assert fixed["a learner GPU" if "learner" in fix else "an engine GPU"]


def test_a_single_gpu_holds_learner_and_engine(models: Path) -> None:
    one = [("actors.nodes", "1"), ("actors.engines_per_node", "1"), ("learner.ranks_per_node", "1")]
    given = [("cluster.gpus_per_node", "1"), ("cluster.gpu_memory_gib", "180"), ("learner.device", '"cuda"')]
    settings = shipped(models, "olmo3-7b-rl-zero", ("learner.nodes", "1"), *one, *given)
    assert plan(settings).shares_gpu
    places = {place.name: place for place in memory.memory_plan(settings).places}
    both = places["the GPU of learner and engine"]
    assert of(both)["learner"] == places["a learner GPU"].needed / GIB
    assert of(both)["engine"] == pytest.approx(0.9 * 180)
    with pytest.raises(
        ResourceError, match=r"the GPU of learner and engine needs .* of 180\.0 GiB .*gpu_memory_util"
    ) as no:
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    key, _, value = str(no.value).partition("set ")[2].partition(" (then")[0].partition(" = ")
    mended = config.with_key(settings, key, json.loads(value))
    assert memory.memory_plan(mended).overfull is None
    two = config.with_key(settings, "cluster.gpus_per_node", 2)
    assert "the GPU of learner and engine" not in {place.name for place in memory.memory_plan(two).places}


OFFLOADED = (("learner.offload_optimizer", "true"), ("learner.gradient_checkpointing", "offload"))


@pytest.mark.parametrize("recipe", SHIPPED)
def test_a_shipped_recipe_fits_hosts_of_one_and_a_half_terabytes(models: Path, recipe: str) -> None:
    settings = shipped(models, recipe, ("cluster.host_memory_gib", str(1.5e12 / GIB)))
    plan = memory.memory_plan(settings)
    assert plan.overfull is None
    assert {place.name for place in plan.hosts.places} == {"a host of the learner", "a host of engines"}
    assert all(place.limit == pytest.approx(1.5e12) and place.needed < 0.5e12 for place in plan.hosts.places)


def test_what_is_offloaded_has_to_fit_the_host(models: Path) -> None:
    few = shipped(models, "olmo3-7b-rl-zero", *OFFLOADED, ("cluster.host_memory_gib", "320"))
    with pytest.raises(
        ResourceError,
        match=r"host of the learner needs .* of 320.0 GiB \(cluster.host_memory_gib\): set learner.gradient_check",
    ):
        memory.refuse_too_little(few, memory.memory_plan(few))
    enough = config.with_key(few, "cluster.host_memory_gib", 1400)
    assert memory.memory_plan(enough).overfull is None


def test_a_host_of_engines_without_room_for_pulled_versions_is_told_to_use_files(models: Path) -> None:
    settings = shipped(models, "olmo3-32b-think", ("cluster.host_memory_gib", "256"))
    with pytest.raises(ResourceError, match=r'a host of engines needs .*: set weights.store = "file" \(then'):
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    assert memory.memory_plan(config.with_key(settings, "weights.store", "file")).overfull is None


def test_offloading_is_not_proposed_where_the_host_has_no_room_for_it(models: Path) -> None:
    long = (("sampling.max_tokens", "57344"), ("cluster.gpu_memory_gib", "44"))
    settings = shipped(models, "olmo3-7b-think", *long, ("actors.max_running", "64"))
    gpu = memory.memory_plan(settings).places[0]
    assert not gpu.fits
    change = [("learner.gradient_checkpointing", "offload")]
    assert memory._with(settings, change, gpu) is not None
    little = config.with_key(settings, "cluster.host_memory_gib", 150)
    assert memory.memory_plan(little).hosts.overfull is None
    assert memory._with(little, change, gpu) is None


def test_the_plan_says_that_the_memory_of_a_host_is_not_known(models: Path) -> None:
    plan = memory.memory_plan(shipped(models, "olmo3-7b-rl-zero"))
    said = [row[2] for row in plan.rows() if row[1] == "at the peak"]
    assert [place.limit for place in plan.hosts.places] == [None, None]
    assert [text.partition("  ")[2] for text in said[-2:]] == [
        "(the limit is not known here: cluster.host_memory_gib)"
    ] * 2


def test_learner_and_engines_on_one_host_share_its_memory(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs here the run starts elsewhere. With GPUs this machine's memory counts."""
    one = [("actors.nodes", "1"), ("actors.engines_per_node", "4"), ("learner.ranks_per_node", "4")]
    settings = shipped(models, "olmo3-7b-rl-zero", *one)
    parts = {}
    for gpus, limit in ((0, None), (8, 100 * GIB)):
        monkeypatch.setattr(memory.hardware, "gpus_here", lambda gpus=gpus: gpus)
        monkeypatch.setattr(memory, "host_memory", lambda: 100 * GIB)
        [host] = memory.memory_plan(settings).hosts.places
        assert (host.name, host.limit) == ("this host", limit)
        parts = of(host)
    assert parts["processes"] == 8 * 4 and "snapshot for publishing" in parts and "shared memory" in parts
    with pytest.raises(ResourceError, match=r"this host needs .* of 100.0 GiB: "):
        memory.refuse_too_little(settings, memory.memory_plan(settings))
    joined = config.with_key(settings, "cluster.address", "auto")
    [host] = memory.memory_plan(joined).hosts.places
    assert host.name == "the host of learner and engines" and host.limit is None
    assert [part.note for part in host.parts if part.what == "object store"] == ["3 published versions"]
    whole = [("actors.nodes", "1"), ("cluster.address", '"auto"')]
    hosts = memory.memory_plan(shipped(models, "olmo3-7b-rl-zero", *whole)).hosts.places
    assert len(hosts) == 2, "16 GPUs are not on one host of 8"


def test_a_host_with_less_memory_than_planned_is_named(models: Path) -> None:
    settings = shipped(models, "olmo3-7b-rl-zero", *OFFLOADED)
    assert checks.host_memory(settings, 2000 * GIB).startswith("2000.0 GiB, ")
    with pytest.raises(
        ResourceError, match=r"a host of the learner needs .* of 200.0 GiB .*set learner.gradient_checkpointing"
    ):
        checks.host_memory(settings, 200 * GIB)
    planned = config.with_key(settings, "cluster.host_memory_gib", 1400)
    with pytest.raises(ResourceError, match=r"this host has 1000.0 GiB.*set cluster.host_memory_gib = 1000"):
        checks.host_memory(planned, 1000 * GIB)
    absent = config.with_key(settings, "model.path", "no/model-here")
    assert "not known before the model is here" in checks.host_memory(absent, 2000 * GIB)


def test_a_model_that_is_not_here_costs_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patched:
        use_hub(patched, tmp_path)
        assert main([str(RECIPES / "olmo3-7b-think.toml"), "--dry-run"]) == 0
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory:")]
        assert "allenai/Olmo-3-7B-Think-DPO has no config.json" in line
        snapshot = tmp_path / "hub" / "models--allenai--Olmo-3-7B-Think-DPO" / "snapshots"
        snapshot.mkdir(parents=True)
        olmo3(snapshot, "7b")
        found = memory.known(config.load(RECIPES / "olmo3-7b-think.toml"))
    assert found is not None and found.model.path == str(snapshot / "7b")


def test_on_the_cpu_everything_is_in_the_memory_of_one_host(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = olmo3(models, "7b")
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}
    tree = json.loads((path / "config.json").read_text()) | sizes
    tree |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 512}
    tree["layer_types"] = tree["layer_types"][:4]
    small = models / "small"
    small.mkdir()
    (small / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    settings = config.build({"model": {"path": str(small)}, "sampling": {"max_tokens": 256}})
    monkeypatch.setattr(memory, "host_memory", lambda: 8 * GIB)
    [place] = memory.memory_plan(settings).places
    assert place.name == "this host" and place.limit == 8 * GIB and GIB < place.needed < 2 * GIB
    assert "engine: KV cache" in of(place)
    monkeypatch.setattr(memory, "host_memory", lambda: GIB)
    with pytest.raises(ResourceError, match=r"this host needs .* set actors.kv_cache_gib = 0.25"):
        memory.refuse_too_little(settings, memory.memory_plan(settings))


def test_host_memory_is_no_more_than_this_machine_has() -> None:
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert 0 < memory.host_memory() <= kib * 1024 * 1.01


def test_disk_use_is_worked_out_by_hand(models: Path) -> None:
    plan = memory.memory_plan(shipped(models, "olmo3-7b-think"))
    found = {part.what: part.num_bytes for part in plan.disk}
    tokens = 64 * 8 * 32_768
    assert found == {
        "rollouts a step": 8 * tokens,
        "journal": 13 * tokens * 25,
        "a checkpoint": 12 * 7_298_011_136,
        "checkpoints": 4 * 12 * 7_298_011_136,
        "export": 2 * 7_298_011_136,
    }


def test_a_token_takes_the_disk_that_the_plan_says() -> None:
    """Tokens and words of Zipf distributions, log-probabilities as of a trained policy."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = ["".join(rng.choice(letters, length)) for length in rng.integers(2, 9, 5000)]
    size = 4000
    completions = tuple(
        Completion(
            index=index,
            token_ids=np.minimum(rng.zipf(1.15, size), 100_000).astype(np.int32),
            logprobs=-rng.exponential(0.3, size).astype(np.float32),
            spans=(Span(Version(1, 0), 0, size),),
            finish_reason="stop",
            text=" ".join(words[number % 5000] for number in rng.zipf(1.3, size * 3 // 4)),
        )
        for index in range(4)
    )
    prompt = Prompt(
        draw_id=0,
        row="a:1",
        messages="?",
        token_ids=np.zeros(9, np.int32),
        datasets=("math",),
        ground_truths=("1",),
        group_size=4,
        min_version=Version(1, 0),
    )
    group = Group(prompt=prompt, completions=completions, actor="a", started_at=0.0, finished_at=1.0)
    written = len(zstandard.compress(rollout_record.line(Ended(group, Outcome.TRAINED, 1, ""))))
    assert 0.7 < written / (4 * size) / memory.ROLLOUT_BYTES <= 1
    assert 0.7 < len(codec.encode(group)) / (4 * size) / memory.JOURNAL_BYTES <= 1


def test_gpus_smaller_than_planned_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = config.build({"cluster": {"gpu_memory_gib": 70}})
    assert checks.gpu_memory(settings).startswith("not known")
    for mib, passes in ((81559, True), (40960, False)):
        tool.write_text(f"#!/bin/sh\necho 81559\necho {mib}\n")
        tool.chmod(0o755)
        if passes:
            assert checks.gpu_memory(settings) == "79.6 GiB, 70.0 GiB planned"
        else:
            with pytest.raises(ResourceError, match=r"40.0 GiB.*cluster.gpu_memory_gib = 40"):
                checks.gpu_memory(settings)


def test_an_object_store_too_small_for_the_versions_is_named(models: Path) -> None:
    settings = config.with_key(shipped(models, "olmo3-7b-think"), "cluster.address", "auto")
    needed = 3 * 2 * SHIPPED["olmo3-7b-think"][1]
    assert "needed" in checks.object_store(settings, float(needed))
    with pytest.raises(ResourceError, match=f"ray start --object-store-memory {needed}"):
        checks.object_store(settings, needed - 1.0)


def test_a_plan_has_no_heavy_library_until_it_is_made() -> None:
    code = (
        "import sys; from olmorl.deploy.preflight import memory; "
        "assert not {'torch', 'transformers', 'deepspeed'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_peak_is_never_more_than_the_parts(models: Path) -> None:
    plan: MemoryPlan = memory.memory_plan(shipped(models, "olmo3-32b-think"))
    for place in plan.places:
        assert place.needed <= sum(part.num_bytes for part in place.parts)
        assert replace(place, limit=place.needed).fits and not replace(place, limit=place.needed - 1).fits
