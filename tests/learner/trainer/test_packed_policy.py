"""Packed samples are isolated: log-probabilities and gradients equal those of each sample alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from olmorl import config
from olmorl.errors import ModelError
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.packed_attention import implementation
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow, policy_row, refuse_cuts, refuse_leaks
from olmorl.messages import Sample

CPU = torch.device("cpu")
LENGTHS = (3, 1, 17, 9)
"""Longer and shorter than the sliding window of 6, and one of a single token."""


def load(folder: str, attention: str, dtype: str = "float32") -> PackedPolicy:
    return PackedPolicy(models.load(config.Model(path=folder, dtype=dtype), attention, CPU), temperature=0.7, chunk=4)


def packed() -> tuple[torch.Tensor, torch.Tensor]:
    """A row of samples, and the indices of all its predicted tokens: every one but the first of a sample."""
    tokens_T = torch.randint(0, 40, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    starts = np.cumsum([0, *LENGTHS[:-1]])
    return tokens_T, torch.tensor([t for t in range(sum(LENGTHS)) if t not in starts])


def alone(policy: PackedPolicy) -> torch.Tensor:
    tokens_T, _ = packed()
    parts = []
    for part in tokens_T.split(list(LENGTHS)):
        if len(part) > 1:
            logits = policy.model(part[None]).logits[0, :-1].float() / 0.7
            parts.append(logits.log_softmax(-1).gather(1, part[1:, None])[:, 0])
    return torch.cat(parts)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_packed_equals_separate(tiny_models: dict[str, str], name: str, attention: str) -> None:
    policy = load(tiny_models[name], attention)
    single = PackedPolicy(
        AutoModelForCausalLM.from_pretrained(tiny_models[name], dtype=torch.float32, attn_implementation="eager"),
        0.7,
        4,
    )
    tokens_T, predicted_P = packed()
    got = policy(PolicyRow(tokens_T, LENGTHS, predicted_P))[0][predicted_P]
    wanted = alone(single)
    assert torch.allclose(got, wanted, atol=1e-5)
    weights = torch.linspace(-1, 1, len(got))
    (got * weights).sum().backward()
    (wanted * weights).sum().backward()
    for (key, left), right in zip(policy.named_parameters(), single.parameters(), strict=True):
        assert torch.allclose(left.grad, right.grad, atol=1e-4), key


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_changes_nothing(tiny_models: dict[str, str], attention: str) -> None:
    policy = load(tiny_models["olmo3"], attention)
    sample = Sample(
        draw_id=0,
        prompt_ids=np.array([3, 4], np.int32),
        completion_ids=np.arange(5, 17, dtype=np.int32),
        behaviour_logprobs=np.zeros(12, np.float32),
        loss_mask=np.ones(12, np.bool_),
        lags=np.zeros(12, np.int32),
        advantage=1.0,
    )
    bare, _ = policy(policy_row(row_arrays([sample]), CPU))
    padded, _ = policy(policy_row(row_arrays([sample], pad_to=32), CPU))
    assert padded.shape == (32,)
    assert torch.allclose(padded[:14], bare, atol=1e-6)
    assert not padded[14:].any()


def test_an_empty_row_runs_and_reaches_every_weight(tiny_models: dict[str, str]) -> None:
    policy = load(tiny_models["olmo3"], "sdpa")
    logprobs_T, _ = policy(policy_row(row_arrays([]), CPU))
    (logprobs_T.sum() * 0).backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in policy.parameters())


def test_sound_attention_passes_the_probe_and_a_leak_does_not(tiny_models: dict[str, str]) -> None:
    for attention in ("eager", "sdpa"):
        policy = load(tiny_models["olmo3"], attention, "bfloat16")
        refuse_leaks(policy, policy.model, CPU)
        with pytest.raises(ModelError, match="packed samples see each other"):
            refuse_leaks(lambda row, policy=policy: policy(row._replace(lengths=(16,))), policy.model, CPU)


def test_a_row_that_changes_when_it_is_shared_is_refused(tiny_models: dict[str, str]) -> None:
    """As with a layer that looks at the tokens before by other means than attention, and finds another rank's end."""
    policy = load(tiny_models["olmo3"], "sdpa")

    def cut(row: PolicyRow, shared: bool = True) -> tuple[torch.Tensor, None]:
        if not shared:
            return policy(row)[0], None
        halves = [part - 32 * number for number, part in enumerate(row.token_ids_T.split(32))]
        return policy(row._replace(token_ids_T=torch.cat(halves) % 40))[0], None

    refuse_cuts(lambda row, shared=True: policy(row), policy.model, CPU)
    with pytest.raises(ModelError, match=r"cannot share a row .* set learner\.sequence_parallel = 1"):
        refuse_cuts(cut, policy.model, CPU)


def test_recurrent_layers_are_refused() -> None:
    shape = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 4}
    hybrid = AutoConfig.for_model("olmo_hybrid", **shape, **heads, pad_token_id=0)
    model = AutoModelForCausalLM.from_config(
        hybrid, attn_implementation=implementation("sdpa", CPU, torch.float32, hybrid)
    )
    with pytest.raises(ModelError, match=r"OlmoHybrid.*packed samples see each other"):
        refuse_leaks(PackedPolicy(model, 1.0, 64), model, CPU)


def test_a_head_that_scales_its_logits_is_refused() -> None:
    capped = AutoConfig.for_model("gemma2", vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    with pytest.raises(ModelError, match="final_logit_softcapping"):
        PackedPolicy(AutoModelForCausalLM.from_config(capped), 1.0, 64)


@pytest.mark.parametrize("attention", ["varlen", "flash_attention_2", "flex_attention"])
def test_attention_for_gpus_is_refused_on_cpu(tiny_models: dict[str, str], attention: str) -> None:
    with pytest.raises(ModelError, match='on cpu set "sdpa" or "eager"'):
        load(tiny_models["olmo3"], attention)


def test_what_is_no_model_is_refused_with_the_fix(tmp_path: Path, tiny_models: dict[str, str]) -> None:
    def refusal(path: Path | str) -> str:
        with pytest.raises(ModelError) as error:
            models.load(config.Model(path=str(path), dtype="float32"), "sdpa", CPU)
        return str(error.value)

    (tmp_path / "empty").mkdir()
    assert "no config.json there" in refusal(tmp_path / "empty")
    assert "no such folder" in refusal(tmp_path / "nowhere")
    for name, text in {"odd": '{"model_type": "nonsense"}', "broken": "{", "vision": '{"model_type": "vit"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text, encoding="utf-8")
        assert f"model.path = {tmp_path / name}" in refusal(tmp_path / name)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_bytes((Path(tiny_models["llama"]) / "config.json").read_bytes())
    assert "cannot be loaded" in refusal(tmp_path / "bare")
    torch.save(load_file(Path(tiny_models["llama"], "model.safetensors")), tmp_path / "bare" / "pytorch_model.bin")
    assert "safetensors" in refusal(tmp_path / "bare"), "a pickle from a hub is not read"


def test_a_folder_that_lacks_weights_is_refused(tmp_path: Path, tiny_models: dict[str, str]) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_models["llama"])
    kept = {name: weight for name, weight in model.state_dict().items() if "layers.2.mlp" not in name}
    model.save_pretrained(tmp_path, state_dict=kept)
    with pytest.raises(ModelError, match=r"lacks 3 weights .* such as model\.layers\.2\.mlp"):
        models.load(config.Model(path=str(tmp_path), dtype="float32"), "sdpa", CPU)
