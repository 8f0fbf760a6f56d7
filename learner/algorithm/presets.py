"""The switches of the objective, and the published objectives as presets of them. Imports no torch.

A preset is a complete set of switches. A switch that the recipe sets overrides the preset. `objective` and `advantage`
say what each switch does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Literal

from olmorl.config import Config, Objective
from olmorl.errors import ConfigError

AdvantageKind = Literal["mean", "mean_std", "mean_sample_std", "leave_one_out", "whiten", "mean_whiten", "gdpo", "gae"]
Normalize = Literal["token", "sequence", "constant"]
RatioKind = Literal["token", "sequence"]
RhoKind = Literal["auto", "two_factor", "truncate", "mask", "sequence", "sequence_mask"]
Proximal = Literal["old", "behaviour"]
KlEstimator = Literal["k1", "k2", "k3"]
KlPlace = Literal["loss", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """A complete objective: every switch has a value."""

    advantage: AdvantageKind
    std_floor: float
    """Added to the standard deviation of rewards; presets alone set it."""
    normalize: Normalize
    constant_length: int
    """Divisor per sequence, used when `normalize` is `constant`."""
    ratio: RatioKind
    clip: str
    """`ppo`, `dual`, `cispo`, or the `module:function` of a surrogate."""
    eps_low: float
    eps_high: float
    rho: float | None
    """Cap of the importance weight; None: weight 1. `inf`: the weight, uncapped."""
    rho_kind: RhoKind
    proximal: Proximal
    kl_beta: float
    kl_estimator: KlEstimator
    kl_in: KlPlace
    kl_target: float | None
    """Divergence of an answer, in nats a token, that the weight of the KL reward adapts to; None: it stays."""
    gamma: float
    """Discount of later rewards; used if `advantage` is `gae`, like the next one."""
    lam: float
    reward_scale: float
    overlong_buffer: int
    """Tokens before the length limit over which the reward falls by 1; 0: off."""
    mask_truncated: bool
    kl_refresh_every: int | None = None
    """Steps after which the policy becomes the reference; None: never."""
    reference_is_served: bool = False
    """Whether a server has scored the tokens by the reference, and the learner has none."""
    teacher_coefficient: float | None = None
    """Factor of the teachers' part of the advantages; None: there are no teachers."""
    uses_rewards: bool = True
    """Whether rewards have a part in the advantages."""

    @property
    def needs_anchor(self) -> bool:
        """Whether earlier weights must be kept, for one more forward pass."""
        return self.rho_kind == "two_factor" and self.rho is not None

    @property
    def needs_reference(self) -> bool:
        """Whether the reference's log-probabilities are needed."""
        return self.kl_beta > 0

    @property
    def has_kl_reward(self) -> bool:
        """Whether the divergence from the reference is a part of the reward of each token."""
        return self.needs_reference and self.kl_in == "reward"

    @property
    def whitens_tokens(self) -> bool:
        """Whether advantages that differ from token to token are normalized over the batch."""
        return self.has_critic or (self.has_kl_reward and self.advantage in ("whiten", "mean_whiten"))

    @property
    def has_critic(self) -> bool:
        """Whether a critic gives the advantages."""
        return self.advantage == "gae"

    @property
    def splits_rewards(self) -> bool:
        """Whether rewards of tokens act at their tokens. Otherwise their sum is the reward of the answer."""
        is_over_batch = self.advantage in ("whiten", "mean_whiten")
        return self.advantage != "gdpo" and not (is_over_batch and self.teacher_coefficient is not None)

    @property
    def has_group_baseline(self) -> bool:
        """Whether a group with equal rewards has no advantage."""
        return self.advantage not in ("whiten", "gae")


_OLMORL: Final[dict[str, Any]] = {
    # Olmo 3 (arXiv 2512.13961): GRPO without the standard deviation (Dr. GRPO), with the token-level loss and the
    # higher upper clip of DAPO, no KL, and truncated importance sampling between engine and learner. For answers
    # without stale tokens `auto` is that, `truncate`; in others it also sees the rest of the answer.
    "advantage": "mean",
    "std_floor": 1e-6,
    "normalize": "token",
    "ratio": "token",
    "clip": "ppo",
    "eps_low": 0.2,
    "eps_high": 0.272,
    "rho": 2.0,
    "rho_kind": "auto",
    "proximal": "old",
    "kl_beta": 0.0,
    "kl_estimator": "k3",
    "kl_in": "loss",
    "overlong_share": 0.0,
}

_SAMPLE_STD: Final[dict[str, Any]] = {"advantage": "mean_sample_std", "eps_high": 0.2}

# Most papers below sample from pi_old, so their `rho` is off, and with max_lag > 0 nothing corrects for staleness
# unless the recipe sets `rho`. Decoupled PPO and TRL weigh by pi_old / pi_engine.
_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "olmorl": _OLMORL,
    # DeepSeekMath (arXiv 2402.03300): mean per sequence, KL to a reference by the k3 estimate.
    "grpo": _OLMORL | {"advantage": "mean_std", "normalize": "sequence", "eps_high": 0.2, "rho": None, "kl_beta": 0.04},
    # Understanding R1-Zero-Like Training (arXiv 2503.20783): neither standard deviation nor division by own length.
    "dr_grpo": _OLMORL | {"normalize": "constant", "eps_high": 0.2, "rho": None},
    # DAPO (arXiv 2503.14476): token-level, a higher upper clip; 4,096 of its 20,480 tokens are the overlong buffer.
    "dapo": _OLMORL | {"advantage": "mean_std", "eps_high": 0.28, "rho": None, "overlong_share": 0.2},
    # Group Sequence Policy Optimization (arXiv 2507.18071): ratio and clip of whole sequences, so a much closer range.
    "gspo": _OLMORL
    | {
        "advantage": "mean_std",
        "normalize": "sequence",
        "ratio": "sequence",
        "eps_low": 3e-4,
        "eps_high": 4e-4,
        "rho": None,
    },
    # MiniMax-M1 (arXiv 2506.13585), equations 4 and 5, without a lower bound as it says; it names no upper one, so the
    # cap of 5 is from the range that ScaleRL (arXiv 2510.13786) found insensitive.
    "cispo": _OLMORL | {"advantage": "mean_std", "clip": "cispo", "eps_low": 1.0, "eps_high": 4.0, "rho": None},
    # Batch size-invariance for policy optimization (arXiv 2110.00641), as AReaL (arXiv 2505.24298) trains with it: the
    # weight from behaviour to proximal policy is not capped.
    "ppo_decoupled": _OLMORL | {"advantage": "mean_std", "eps_high": 0.2, "rho": inf},
    # Back to Basics (arXiv 2402.14740): the baseline is the mean of the others; with PPO's clip.
    "rloo": _OLMORL | {"advantage": "leave_one_out", "eps_high": 0.2, "rho": None},
    # REINFORCE++ (arXiv 2501.03262): normalized over the batch, with the group's mean as baseline or without.
    "reinforce_pp": _OLMORL | {"advantage": "whiten", "eps_high": 0.2, "rho": None},
    "reinforce_pp_baseline": _OLMORL | {"advantage": "mean_whiten", "eps_high": 0.2, "rho": None},
    # GDPO (arXiv 2601.05242): each reward is normalized in its group before the weighted sum, which is over the batch.
    "gdpo": _OLMORL | {"advantage": "gdpo", "std_floor": 1e-4, "eps_high": 0.2, "rho": None},
    # PPO (arXiv 1707.06347) with a critic.
    "ppo": _OLMORL | {"advantage": "gae", "eps_high": 0.2, "rho": None},
    # The defaults of TRL's GRPOTrainer (1.0) and of verl's GRPO (0.7).
    "trl": _OLMORL | _SAMPLE_STD | {"std_floor": 1e-4, "rho": 3.0, "rho_kind": "sequence_mask"},
    "verl": _OLMORL | _SAMPLE_STD | {"clip": "dual", "rho": None},
}

_SWITCHES: Final = tuple(key for key in _OLMORL if key not in ("rho", "overlong_share", "std_floor"))

_CAPS: Final[dict[str, float | None]] = {"off": None, "uncapped": inf}


def resolve(objective: Objective, max_tokens: int) -> Switches:
    """The preset, overridden by the switches of the recipe.

    Args:
        max_tokens: `sampling.max_tokens`, on which the default constant length and overlong buffer depend.

    Raises:
        ConfigError: a switch without effect, or a mask that would mask everything.
    """
    chosen = dict(_PRESETS[objective.preset])
    overlong_share = chosen.pop("overlong_share")
    chosen |= {key: value for key in _SWITCHES if (value := getattr(objective, key)) is not None}
    if objective.rho is not None:
        chosen["rho"] = _CAPS[objective.rho] if isinstance(objective.rho, str) else objective.rho
    if chosen["rho"] == inf and objective.rho_kind is None:
        chosen["rho_kind"] = "truncate"  # without a cap one weight of many factors could be as large as any number
    if chosen["kl_in"] == "reward" and objective.kl_estimator is None:
        chosen["kl_estimator"] = "k1"  # the reward takes the divergence itself; k3 is for gradients
    switches = Switches(
        **chosen,
        kl_target=objective.kl_target,
        kl_refresh_every=objective.kl_refresh_every,
        reference_is_served=objective.kl_reference is not None,
        constant_length=objective.constant_length or max_tokens,
        gamma=objective.gamma,
        lam=objective.lam,
        reward_scale=objective.reward_scale,
        overlong_buffer=round(overlong_share * max_tokens),
        mask_truncated=objective.mask_truncated,
    )
    if objective.overlong_buffer is not None:
        switches = replace(switches, overlong_buffer=objective.overlong_buffer)
    _refuse_idle_switches(objective, switches)
    return switches


def with_teachers(settings: Config) -> Switches:
    """The objective of a recipe with its teachers.

    Raises:
        ConfigError: as `resolve`, or the advantages of teachers do not fit the objective.
    """
    switches = resolve(settings.objective, settings.longest_answer)
    distillation = settings.distillation
    if not distillation.teachers:
        return switches
    if switches.whitens_tokens:
        raise ConfigError(
            "distillation.teachers with a critic, or with a KL reward that is whitened: both take the advantages of "
            'tokens as rewards; choose another objective.advantage, or objective.kl_in = "loss"'
        )
    return replace(switches, teacher_coefficient=distillation.coefficient, uses_rewards=distillation.with_rewards)


def has_reference_weights(settings: Config) -> bool:
    """Whether the learner holds weights of a reference policy. With adapters, it is the policy without them."""
    switches = resolve(settings.objective, settings.longest_answer)
    return switches.needs_reference and not switches.reference_is_served and not settings.model.lora.rank


def staleness_warning(objective: Objective, max_lag: int) -> str:
    """Says that nothing corrects for stale tokens; empty if something does, or if there are none."""
    switches = resolve(objective, max_tokens=1)
    if max_lag == 0 or switches.rho is not None or switches.proximal == "behaviour":
        return ""
    return (
        f'nothing corrects for stale tokens: schedule.max_lag = {max_lag} with objective.rho = "off", so answers teach '
        "what the policy no longer is; set objective.rho = 2.0, or schedule.max_lag = 0"
    )


def spelled_out(objective: Objective, max_tokens: int) -> Objective:
    """The same objective with every switch that has an effect written out, as a recipe would write it.

    Raises:
        ConfigError: as `resolve`.
    """
    switches = resolve(objective, max_tokens)
    written: dict[str, Any] = {key: getattr(switches, key) for key in _SWITCHES}
    written["rho"] = "off" if switches.rho is None else "uncapped" if switches.rho == inf else switches.rho
    written["overlong_buffer"] = switches.overlong_buffer
    if switches.normalize == "constant":
        written["constant_length"] = switches.constant_length
    without = not switches.needs_reference
    idle = {"rho_kind": switches.rho is None, "kl_estimator": without, "kl_in": without}
    return objective.model_copy(update={key: value for key, value in written.items() if not idle.get(key)})


def _refuse_idle_switches(objective: Objective, switches: Switches) -> None:
    if objective.rho_kind is not None and switches.rho is None:
        raise ConfigError("objective.rho_kind needs a cap: set objective.rho, for instance to 2.0")
    if switches.rho_kind == "two_factor" and switches.proximal == "behaviour":
        raise ConfigError(
            'rho_kind = "two_factor" has no effect with proximal = "behaviour": set objective.proximal = "old"'
        )
    if switches.rho_kind == "mask" and switches.rho is not None and switches.rho < 1:
        raise ConfigError(
            f"objective.rho = {switches.rho} with rho_kind = 'mask' keeps the weights in [1/rho, rho], which is empty: "
            "set rho to 1 or more"
        )
    for key in ("kl_estimator", "kl_in", "kl_refresh_every", "kl_reference"):
        if getattr(objective, key) is not None and not switches.needs_reference:
            raise ConfigError(f"objective.{key} needs a KL term: set objective.kl_beta over 0, for instance to 0.001")
    if objective.kl_target is not None and not switches.has_kl_reward:
        raise ConfigError('objective.kl_target adapts the KL reward: set objective.kl_in = "reward" and kl_beta over 0')
    if not switches.has_critic and (objective.gamma, objective.lam) != (1.0, 1.0):
        raise ConfigError('objective.gamma and lam are of a critic: set objective.advantage = "gae", or leave them out')
    if objective.constant_length is not None and switches.normalize != "constant":
        raise ConfigError('objective.constant_length needs objective.normalize = "constant"')
