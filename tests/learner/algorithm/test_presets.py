"""Presets, and the switches that win over them."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from typing import Any, get_args

import pytest

from olmorl.config import Objective, Preset
from olmorl.errors import ConfigError
from olmorl.learner.algorithm.presets import Switches, resolve, spelled_out


def resolved(max_tokens: int = 2048, **keys: Any) -> Switches:
    return resolve(Objective.model_validate(keys), max_tokens)


def test_the_default_is_the_recipe_of_olmo_3() -> None:
    switches = resolved()
    assert (switches.advantage, switches.normalize, switches.ratio, switches.clip) == ("mean", "token", "token", "ppo")
    assert (switches.eps_low, switches.eps_high, switches.rho, switches.rho_kind) == (0.2, 0.272, 2.0, "auto")
    assert not switches.needs_reference


def test_the_kl_reward_takes_the_divergence_itself_unless_asked() -> None:
    assert resolved(preset="grpo", kl_in="reward").kl_estimator == "k1"
    assert resolved(preset="grpo", kl_in="reward", kl_estimator="k3").kl_estimator == "k3"
    assert resolved(preset="grpo").kl_estimator == "k3"


@pytest.mark.parametrize(
    ("preset", "differs_from_olmorl"),
    [
        ("olmorl", {}),
        (
            "grpo",
            {"advantage": "mean_std", "normalize": "sequence", "eps_high": 0.2, "rho": None, "kl_beta": 0.04},
        ),
        ("dr_grpo", {"normalize": "constant", "eps_high": 0.2, "rho": None}),
        ("dapo", {"advantage": "mean_std", "eps_high": 0.28, "rho": None, "overlong_buffer": 4096}),
        (
            "gspo",
            {
                "advantage": "mean_std",
                "normalize": "sequence",
                "ratio": "sequence",
                "eps_low": 3e-4,
                "eps_high": 4e-4,
                "rho": None,
            },
        ),
        ("cispo", {"advantage": "mean_std", "clip": "cispo", "eps_low": 1.0, "eps_high": 4.0, "rho": None}),
        ("ppo_decoupled", {"advantage": "mean_std", "eps_high": 0.2, "rho": inf, "rho_kind": "truncate"}),
        ("rloo", {"advantage": "leave_one_out", "eps_high": 0.2, "rho": None}),
        ("reinforce_pp", {"advantage": "whiten", "eps_high": 0.2, "rho": None}),
        ("reinforce_pp_baseline", {"advantage": "mean_whiten", "eps_high": 0.2, "rho": None}),
        ("ppo", {"advantage": "gae", "eps_high": 0.2, "rho": None}),
        ("gdpo", {"advantage": "gdpo", "std_floor": 1e-4, "eps_high": 0.2, "rho": None}),
        (
            "trl",
            {
                "advantage": "mean_sample_std",
                "std_floor": 1e-4,
                "eps_high": 0.2,
                "rho": 3.0,
                "rho_kind": "sequence_mask",
            },
        ),
        ("verl", {"advantage": "mean_sample_std", "clip": "dual", "eps_high": 0.2, "rho": None}),
    ],
)
def test_presets(preset: str, differs_from_olmorl: dict[str, Any]) -> None:
    base = resolved(20_480)
    switches = resolved(20_480, preset=preset)
    found = {
        name: getattr(switches, name) for name in Switches.__slots__ if getattr(switches, name) != getattr(base, name)
    }
    assert found == differs_from_olmorl


def test_an_explicit_switch_wins_even_when_it_is_zero_or_off() -> None:
    switches = resolved(preset="grpo", kl_beta=0.0, eps_low=0.0, rho=3.0, rho_kind="sequence", advantage="mean")
    assert (switches.kl_beta, switches.eps_low, switches.rho) == (0.0, 0.0, 3.0)
    assert (switches.rho_kind, switches.advantage, switches.normalize) == ("sequence", "mean", "sequence")
    assert resolved(rho="off").rho is None
    assert resolved(preset="gspo", rho=2.0).rho_kind == "auto"
    assert resolved(rho="uncapped").rho_kind == "truncate", "the product over an answer without a cap has no bound"
    assert resolved(rho="uncapped", rho_kind="auto").rho_kind == "auto"
    assert resolved(rho_kind="two_factor").needs_anchor
    assert not resolved().needs_anchor
    assert resolved(preset="dapo", overlong_buffer=0).overlong_buffer == 0
    assert resolved(preset="dr_grpo", constant_length=7).constant_length == 7
    assert resolved(preset="dr_grpo", max_tokens=99).constant_length == 99


@pytest.mark.parametrize(
    ("keys", "fix"),
    [
        ({"preset": "grpo", "rho_kind": "mask"}, "set objective.rho"),
        ({"kl_in": "reward"}, "set objective.kl_beta over 0"),
        ({"lam": 0.9}, 'set objective.advantage = "gae"'),
        ({"preset": "grpo", "kl_target": 0.1}, 'set objective.kl_in = "reward"'),
        ({"rho": 0.5, "rho_kind": "mask"}, "set rho to 1 or more"),
        ({"proximal": "behaviour", "rho_kind": "two_factor"}, 'set objective.proximal = "old"'),
        ({"kl_estimator": "k1"}, "set objective.kl_beta"),
        ({"constant_length": 100}, 'needs objective.normalize = "constant"'),
    ],
)
def test_a_switch_without_effect_is_refused_with_the_fix(keys: dict[str, Any], fix: str) -> None:
    with pytest.raises(ConfigError, match=fix):
        resolved(**keys)


def test_resolving_a_preset_does_not_import_torch() -> None:
    code = "import sys, olmorl.learner.algorithm.presets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


SWITCHES_OF_RECIPES: list[dict[str, Any]] = [
    {},
    {"rho": "off"},
    {"rho": "uncapped"},
    {"rho": 3.0, "rho_kind": "mask"},
    {"kl_beta": 0.1, "kl_estimator": "k1"},
    {"kl_beta": 0.1, "kl_in": "reward", "kl_target": 0.01, "advantage": "whiten"},
    {"normalize": "constant", "constant_length": 7},
    {"rho": 3.0, "rho_kind": "truncate"},
    {"overlong_buffer": 5, "eps_low": 0.0, "mask_truncated": True},
    {"ratio": "sequence", "clip": "cispo", "proximal": "behaviour", "advantage": "mean_std", "reward_scale": 10.0},
]


@pytest.mark.parametrize("preset", get_args(Preset))
@pytest.mark.parametrize("switches", SWITCHES_OF_RECIPES, ids=str)
def test_an_objective_that_is_spelled_out_is_the_same_objective(preset: Any, switches: dict[str, Any]) -> None:
    objective = Objective(preset=preset, **switches)
    written = spelled_out(objective, 100)
    assert resolve(written, 100) == resolve(objective, 100)
    assert resolve(written, 999).overlong_buffer == resolve(objective, 100).overlong_buffer, "no share is left"
    assert spelled_out(written, 100) == written
    assert Objective.model_validate(written.model_dump()) == written, "within the bounds of a recipe"
    assert written.eps_high is not None and written.rho is not None and written.kl_beta is not None
