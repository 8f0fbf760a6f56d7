"""Adapters: their gradients, versions and exports, against weights that are merged by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from olmorl import config
from olmorl.errors import ConfigError, ModelError
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.trainer import export
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.adapters import Adapters, attach
from olmorl.learner.trainer.compiled import compile_policy
from olmorl.learner.trainer.memory import rank_memory
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow, policy_row
from olmorl.learner.trainer.rms_norm import recompute_norms
from olmorl.learner.trainer.tiled_mlp import tile_mlps
from tests.learner.trainer.test_deepspeed_trainer import (
    EIGHT_ROWS,
    NO_CLIPPING,
    SHARDED,
    SINGLES,
    TEMPERATURE,
    distance,
    reference_gradient,
    sample_logprobs,
)
from tests.learner.trainer.test_shared_prompts import make_row
from tests.models.families import FAMILIES, build

Jobs = dict[str, dict[str, Any]]
Results = dict[str, list[dict[str, Any]]]
CPU = torch.device("cpu")
LORA = config.Lora(rank=4, alpha=8)
SCALE = 2.0
KEYS = {"rank": 4, "alpha": 8.0}
TARGETS = 7 * 4
"""Layers of a tiny model that get an adapter."""


def adapted(path: str, dtype: str = "float32", lora: config.Lora = LORA) -> tuple[PackedPolicy, Adapters]:
    model = models.load(config.Model(path=path, dtype=dtype), "sdpa", CPU)
    adapters = attach(model, lora)
    assert adapters is not None
    return PackedPolicy(model, TEMPERATURE, chunk=16), adapters


def changed(policy: PackedPolicy, adapters: Adapters) -> None:
    """Give the adapters other values, so that no gradient is 0."""
    torch.manual_seed(1)
    weights = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name in adapters.published:
            weights[name].copy_(torch.randn(weights[name].shape) / 4)


def merged_by_hand(path: str, policy: PackedPolicy) -> Any:
    """Plain transformers in float64, with W + scale B A in place of each W."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64, attn_implementation="eager")
    weights = dict(policy.model.named_parameters())
    with torch.no_grad():
        for name, weight in model.named_parameters():
            stem = name.removesuffix(".weight")
            if (a := weights.get(f"{stem}.lora_A.default.weight")) is not None:
                weight += SCALE * weights[f"{stem}.lora_B.default.weight"].double() @ a.double()
    return model


def of_adapters(gradients: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The chain rule: W = W0 + s B A, so dA = s B' dW and dB = s dW A'."""
    found = {}
    for name, weight in weights.items():
        stem, part, _ = name.rpartition(".lora_A.") if ".lora_A." in name else name.rpartition(".lora_B.")
        other = weights[name.replace("lora_A", "lora_B") if "A" in part else name.replace("lora_B", "lora_A")]
        dw = gradients[f"{stem}.weight"].double()
        found[name] = SCALE * (other.double().T @ dw if "A" in part else dw @ other.double().T)
        assert found[name].shape == weight.shape
    return found


def test_the_part_of_an_adapter_by_hand(tiny_models: dict[str, str]) -> None:
    """Rank 1, alpha 3: 3 B (A x) is added to a layer."""
    policy, _ = adapted(tiny_models["llama"], lora=config.Lora(rank=1, alpha=3, target_modules=("o_proj",)))
    layer: Any = policy.model.model.layers[2].self_attn.o_proj
    x = torch.zeros(32)
    x[:2] = torch.tensor([2.0, -1.0])
    plain = layer.base_layer(x)
    assert torch.equal(layer(x), plain), "B is 0 at the start"
    with torch.no_grad():
        layer.lora_A["default"].weight[0, :2] = torch.tensor([1.0, 4.0])  # A x = 2 - 4 = -2
        layer.lora_B["default"].weight[5, 0] = 0.5  # 3 * 0.5 * -2 = -3
    moved = layer(x) - plain
    assert moved[5].item() == pytest.approx(-3, abs=1e-5) and moved.count_nonzero() == 1


@pytest.mark.parametrize("how", ["packed", "shared prompts", "recomputed", "tiled"])
@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_logprobs_and_gradients_are_those_of_merged_weights_in_float64(
    tiny_models: dict[str, str], name: str, how: str
) -> None:
    policy, adapters = adapted(tiny_models[name])
    changed(policy, adapters)
    policy.double().train()
    if how == "recomputed":
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    if how == "tiled":
        tile_mlps(policy.model, 3)
        recompute_norms(policy.model)
    samples = make_row()
    row = policy_row(row_arrays(samples, share_prompts=how == "shared prompts"), CPU)
    logprobs_P = policy(row)[0][row.predicted_P]
    logprobs_P.dot(torch.linspace(-1, 1, len(logprobs_P), dtype=torch.float64)).backward()
    got = {name: weight.grad for name, weight in policy.model.named_parameters() if weight.grad is not None}
    assert got.keys() == adapters.published.keys() and len(got) == 2 * TARGETS

    plain = merged_by_hand(tiny_models[name], policy)
    masked = []
    for sample in samples:
        tokens = torch.tensor([*sample.prompt_ids, *sample.completion_ids]).long()
        logits = plain(tokens[None]).logits[0, len(sample.prompt_ids) - 1 : -1] / TEMPERATURE
        picked = logits.log_softmax(-1).gather(1, tokens[len(sample.prompt_ids) :, None])[:, 0]
        masked.append(picked[torch.tensor(sample.loss_mask)])
    wanted_P = torch.cat(masked)
    wanted_P.dot(torch.linspace(-1, 1, len(wanted_P), dtype=torch.float64)).backward()
    dw = {name: weight.grad for name, weight in plain.named_parameters()}
    weights = {name: weight.detach() for name, weight in policy.model.named_parameters() if weight.requires_grad}
    torch.testing.assert_close(logprobs_P, wanted_P, rtol=0, atol=1e-5)
    assert distance(got, of_adapters(dw, weights)) < 1e-5  # norms of transformers compute in fp32


def test_without_its_adapters_the_policy_is_the_model_it_began_with(tiny_models: dict[str, str]) -> None:
    policy, adapters = adapted(tiny_models["olmo3"])
    row = PolicyRow(torch.arange(20) * 7 % 40, (12, 8), torch.arange(1, 20))
    started = policy(row)[0].detach()
    changed(policy, adapters)
    moved = policy(row)[0].detach()
    assert (moved - started).abs().max() > 0.1
    with torch.no_grad():
        assert torch.equal(adapters.without(policy, row)[0], started)
    assert torch.equal(policy(row)[0], moved) and all(
        weight.requires_grad is (name in adapters.published) for name, weight in policy.model.named_parameters()
    )


@pytest.mark.parametrize("family", ["OLMoE", "Qwen 3 MoE"])
def test_a_model_with_experts_is_refused_by_name(tmp_path: Path, family: str) -> None:
    build(FAMILIES[family], tmp_path)
    model = config.Model(path=str(tmp_path), dtype="float32", lora=LORA)
    with pytest.raises(ModelError, match=r"oeForCausalLM has experts .* set model\.lora\.rank = 0"):
        attach(models.load(model, "eager", CPU), LORA)
    with pytest.raises(ModelError, match="has experts"):  # the memory plan, before Ray starts
        rank_memory(model, config.Learner(), 1, 64, on_gpu=False)


@pytest.mark.parametrize("missing", ["lm_head", "embed_tokens", "c_attn"])
def test_layers_that_get_no_adapter_are_named_with_those_that_do(tiny_models: dict[str, str], missing: str) -> None:
    lora = config.Lora(rank=2, target_modules=("q_proj", missing))
    with pytest.raises(ModelError, match=rf"no linear layers called {missing}; it has down_proj, gate_proj, k_proj, o"):
        adapted(tiny_models["llama"], lora=lora)


def test_a_family_with_fused_projections_takes_their_names(tmp_path: Path) -> None:
    build(FAMILIES["Phi 3"], tmp_path)
    with pytest.raises(ModelError, match="it has down_proj, gate_up_proj, o_proj, qkv_proj"):
        adapted(str(tmp_path))
    _, adapters = adapted(str(tmp_path), lora=config.Lora(rank=2, target_modules=("qkv_proj", "down_proj")))
    assert len(adapters.published) == 2 * 2 * 4


def test_keys_of_adapters_need_a_rank() -> None:
    with pytest.raises(ConfigError, match=r"model\.lora\.alpha has no effect without adapters"):
        config.build({"model": {"lora": {"alpha": 16}}})
    assert config.build({"model": {"lora": {"rank": 8, "alpha": 16}}}).model.lora.scale == 2
    assert config.Config().model.lora.scale == 0


@pytest.mark.slow
def test_the_compiled_policy_has_the_gradients_of_the_plain_one(tiny_models: dict[str, str]) -> None:
    samples = make_row()
    row = policy_row(row_arrays(samples, share_prompts=True), CPU)
    found = []
    for compiled in (False, True):
        policy, adapters = adapted(tiny_models["olmo3"])
        changed(policy, adapters)
        policy.train()
        if compiled:
            assert compile_policy(policy, CPU) is None
        logprobs_T = policy(row)[0]
        logprobs_T.sum().backward()
        found.append({name: weight.grad for name, weight in policy.model.named_parameters() if weight.grad is not None})
        with torch.no_grad():
            started = adapters.without(policy, row)[0]
        assert (started - logprobs_T).abs().max() > 0.1
    torch._dynamo.reset()
    assert distance(found[1], found[0]) < 1e-5


# --- through the trainer


def job(kind: str, path: str, dtype: str, stage: int, objective: dict[str, Any] | None = None, **learner: Any) -> Any:
    settings = {"zero_stage": stage} | NO_CLIPPING | learner
    model = {"path": path, "dtype": dtype, "lora": KEYS}
    made = {"kind": kind, "model": model, "learner": settings, "row_tokens": EIGHT_ROWS, "temperature": TEMPERATURE}
    return made | ({"objective": objective} if objective else {})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="session")
def results(run_ranks: Callable[..., Results], tiny_models: dict[str, str], folder: Path) -> Results:
    olmo, tied = tiny_models["olmo3"], tiny_models["qwen2"]
    alone: Jobs = {f"gradient-z{stage}-1": job("gradient", olmo, "float32", stage) for stage in range(4)}
    alone["gradient-recomputed-1"] = job("gradient", olmo, "float32", 1, gradient_checkpointing=True)
    alone["gradient-tiled-1"] = job("gradient", olmo, "float32", 1, mlp_tiles=2)
    alone["gradient-offload-1"] = job("gradient", olmo, "float32", 2, offload_optimizer=True)
    alone["weights-bf16-z1-1"] = job("weights", tied, "bfloat16", 1)
    alone["weights-fp32-z0-1"] = job("weights", olmo, "float32", 0, learning_rate=0.02)
    alone["resume-z0-1"] = job("resume", olmo, "float32", 0)
    alone["resume-bf16-1"] = job("resume", olmo, "bfloat16", 1)
    alone["steps-kl-1"] = job("steps", olmo, "float32", 2, {"preset": "grpo"})
    alone["steps-critic-1"] = job("steps", olmo, "float32", 2, {"preset": "ppo"})
    alone["keep-1"] = job("keep", olmo, "float32", 1)
    done = run_ranks(1, alone, folder / "one")
    pair: Jobs = {f"gradient-z{stage}-2": job("gradient", olmo, "float32", stage, row_tokens=SINGLES) for stage in ()}
    pair |= {f"gradient-z{stage}-2": job("gradient", olmo, "float32", stage) for stage in (1, 2)}
    pair["gradient-z3-sharded-2"] = job("gradient", olmo, "float32", 3, **SHARDED)
    pair["gradient-shared-row-2"] = job("gradient", olmo, "float32", 1, sequence_parallel=2)
    pair["weights-bf16-z3-sharded-2"] = job("weights", tied, "bfloat16", 3, **SHARDED)
    pair["resume-z3-sharded-2"] = job("resume", olmo, "float32", 3, **SHARDED)
    pair["steps-kl-z3-sharded-2"] = job("steps", olmo, "float32", 3, {"preset": "grpo"}, **SHARDED)
    pair["take-2"] = job("take", olmo, "float32", 3, **SHARDED) | {"checkpoint": str(folder / "one" / "keep-1")}
    return done | run_ranks(2, pair, folder / "two")


def names(results: Results, kind: str) -> list[str]:
    return [name for name in results if name.startswith(kind)]


@pytest.mark.slow
class TestTrainer:
    def test_the_gradient_is_that_of_plain_pytorch_on_every_layout(
        self, results: Results, tiny_models: dict[str, str]
    ) -> None:
        policy, adapters = adapted(tiny_models["olmo3"])
        weights = {name: dict(policy.model.named_parameters())[name].detach() for name in adapters.published}
        for name in names(results, "gradient"):
            for rank in results[name]:
                wanted = of_adapters(reference_gradient(tiny_models["olmo3"], rank["groups"][1]), weights)
                assert all(gradient.count_nonzero() == 0 for key, gradient in wanted.items() if "lora_A" in key)
                assert distance(rank["gradients"], wanted) <= 1e-5, name

    @pytest.mark.parametrize("kind", ["resume-z0-1", "resume-bf16-1", "resume-z3-sharded-2"])
    def test_training_after_a_restore_is_bit_for_bit_the_same(self, results: Results, kind: str) -> None:
        first = results[kind][0]
        assert len(first["straight"]) == 2 * TARGETS
        assert all(torch.equal(first["straight"][key], first["resumed"][key]) for key in first["straight"])
        for rank in results[kind]:
            assert rank["values"][0] == rank["values"][1] and rank["random_restored"]

    def test_another_layout_takes_a_checkpoint_of_adapters_alone(self, results: Results, folder: Path) -> None:
        share = load_file(folder / "one" / "keep-1" / "share_0.safetensors")
        assert sum(name.startswith("master/") for name in share) == 2 * TARGETS
        kept, taken = results["keep-1"][0], results["take-2"][0]
        assert taken["weights"].keys() == kept["weights"].keys()
        assert distance(taken["weights"], kept["weights"]) < 1e-5

    @pytest.mark.parametrize("kind", ["weights-bf16-z1-1", "weights-fp32-z0-1", "weights-bf16-z3-sharded-2"])
    def test_a_version_has_the_adapters_under_the_names_of_the_checkpoint(self, results: Results, kind: str) -> None:
        for rank in results[kind]:
            snapshot, masters = rank["snapshot"], rank["masters"]
            assert "model.layers.3.mlp.down_proj.lora_A.weight" in snapshot and len(snapshot) == 2 * TARGETS
            for name, master in masters.items():
                assert torch.equal(
                    snapshot[name.replace(".default.", ".")],
                    master.to(snapshot["model.layers.0.self_attn.q_proj.lora_A.weight"].dtype),
                )
            assert rank["places"][0] == rank["places"][1], "a snapshot reuses its memory"
            found = rank["changed"]["found"]
            assert len(found) == 2 * TARGETS and any(rank["changed"]["deltas"])

    @pytest.mark.parametrize("kind", ["weights-bf16-z1-1", "weights-fp32-z0-1", "weights-bf16-z3-sharded-2"])
    def test_both_exports_load_and_have_the_policy(
        self, results: Results, tiny_models: dict[str, str], folder: Path, tmp_path: Path, kind: str
    ) -> None:
        out = folder / ("two" if kind.endswith("2") else "one") / kind
        base = tiny_models["qwen2" if "bf16" in kind else "olmo3"]
        probe, dtype = results[kind][0]["probe"], torch.bfloat16 if "bf16" in kind else torch.float32
        merged = AutoModelForCausalLM.from_pretrained(out, dtype=dtype)
        apart = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), out / "adapter")
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        tokens = torch.tensor([probe.token_ids])
        wanted = torch.tensor(probe.logprobs)
        away = []
        for model in (merged, apart, plain):
            with torch.no_grad():
                logprobs = model(tokens).logits[0, :-1].float().log_softmax(-1)
            away.append(float((logprobs.gather(1, tokens[0, 1:, None])[:, 0] - wanted).abs().mean()))
        bound = 0.1 if "bf16" in kind else 1e-3
        assert away[0] < bound and away[1] < bound
        if "fp32" in kind:
            assert away[2] > bound, "the adapters matter"
        adapter = json.loads((out / "adapter" / "adapter_config.json").read_text())
        assert (adapter["r"], adapter["lora_alpha"], adapter["peft_type"]) == (4, 8, "LORA")

        recipe = config.Config(model=config.Model(path=base, dtype=str(dtype).removeprefix("torch."), lora=LORA))
        export.write(out / "shares", recipe, tmp_path)
        again, first = (load_file(each / "model.safetensors") for each in (tmp_path, out))
        assert again.keys() == first.keys() and all(torch.equal(again[name], first[name]) for name in first)
        files = [load_file(each / "adapter" / "adapter_model.safetensors") for each in (tmp_path, out)]
        # A checkpoint holds the fp32 weights; the trainer exports those that it computes with.
        assert all(torch.equal(files[0][name], tensor) for name, tensor in files[1].items())

    def test_a_reference_is_the_model_without_its_adapters(self, results: Results) -> None:
        for name in names(results, "steps-kl"):
            for rank in results[name]:
                first, *later = rank["values"]
                assert first["kl_ref_mean"] == pytest.approx(0, abs=1e-9), "B is 0 at the start"
                assert all(values["kl_ref_mean"] > 1e-9 for values in later)

    def test_a_critic_trains_whole_beside_adapters(self, results: Results) -> None:
        values = results["steps-critic-1"][0]["values"]
        assert all(np.isfinite(one["critic_loss"]) and one["critic_grad_norm"] > 0 for one in values)
        assert len(results["steps-critic-1"][0]["weights"]) == 2 * TARGETS


def test_the_reference_of_these_tests_is_alone_for_each_sample(tiny_models: dict[str, str]) -> None:
    """`sample_logprobs` of the dense tests and the merged model agree before training: B is 0."""
    policy, _ = adapted(tiny_models["llama"])
    sample = make_row()[3]
    row = policy_row(row_arrays([sample]), CPU)
    plain = AutoModelForCausalLM.from_pretrained(tiny_models["llama"], dtype=torch.float32)
    with torch.no_grad():
        wanted = sample_logprobs(plain, sample, TEMPERATURE)[torch.tensor(sample.loss_mask)]
        torch.testing.assert_close(policy(row)[0][row.predicted_P], wanted, rtol=0, atol=1e-5)
