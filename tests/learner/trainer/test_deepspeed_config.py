"""The settings for DeepSpeed, and `[learner.deepspeed]` as DeepSpeed reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from olmorl import config
from olmorl.errors import ConfigError
from olmorl.learner.trainer import deepspeed_config

CPU = torch.device("cpu")


def learner(given: dict[str, Any], **more: Any) -> config.Learner:
    return config.Learner(zero_stage=3, deepspeed=given, **more)


def test_settings_are_merged_table_by_table() -> None:
    given = {"zero_optimization": {"stage3_param_persistence_threshold": 0}, "wall_clock_breakdown": True}
    made = deepspeed_config.settings(config.Model(), learner(given), CPU)
    assert made["zero_optimization"]["stage3_param_persistence_threshold"] == 0
    assert made["zero_optimization"]["stage"] == 3 and made["wall_clock_breakdown"] is True
    assert "communication_data_type" not in made
    fp32 = deepspeed_config.settings(config.Model(), learner({"communication_data_type": "fp32"}), CPU)
    assert fp32["communication_data_type"] == "fp32"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"zero_optimization": {"stage3_param_persistence_threshold": 0, "overlap_comm": False}},
        {"comms_logger": {"enabled": True}, "wall_clock_breakdown": True},
        {"activation_checkpointing": {"partition_activations": True}},
        {"compile": {"deepcompile": False}},
    ],
)
def test_deepspeed_takes_its_own_settings(given: dict[str, Any]) -> None:
    deepspeed_config.check(config.Model(), learner(given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"zero_optimization": {"nonsense": 1}}, r"learner\.deepspeed: DeepSpeed refuses it: .*nonsense"),
        ({"zero_optimization": {"overlap_comm": "x"}}, r"refuses it: .*overlap_comm"),
        ({"comms_logger": {"enabledd": True}}, r"refuses it: .*enabledd"),
        ({"nonsense": 1}, r"learner\.deepspeed\.nonsense: DeepSpeed has no such setting"),
        ({"activation_checkpointing": {"partition": True}}, r"activation_checkpointing\.partition: DeepSpeed has no"),
        ({"zero_optimization": {"stage": 1}}, r"zero_optimization\.stage cannot be set here: set learner\.zero_stage"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, r"set learner\.offload_optimizer"),
        ({"zero_optimization": {"cpu_offload": True}}, r"set learner\.offload_optimizer"),
        (
            {"zero_optimization": {"offload_param": {"device": "cpu"}}},
            r"offload_param\.device cannot .* learner\.nodes",
        ),
        ({"zero_optimization": {"cpu_offload_param": True}}, r"cpu_offload_param cannot .* learner\.nodes"),
        ({"zero_optimization": {"reduce_bucket_size": "auto"}}, r'reduce_bucket_size = "auto": .* give a value'),
        ({"zero_optimization.stage": 1}, r"zero_optimization\.stage cannot be set here"),
        ({"no.such": 1}, r"learner\.deepspeed\.no\.such: DeepSpeed has no such setting"),
        ({"bf16": {"enabled": False}}, r"learner\.deepspeed\.bf16\.enabled cannot be set here: set model\.dtype"),
    ],
)
def test_what_deepspeed_or_another_key_refuses_is_named(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        deepspeed_config.check(config.Model(), learner(given))
    assert refused.value.exit_code == 2
