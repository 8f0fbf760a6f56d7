"""The curves of a run, described once: for `olmorl-ctl RUN figure`, the report, the live view and Grafana."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, nan
from typing import Any, Final, Literal, NamedTuple

from olmorl.metrics import answered_by, evaluated_versions

Unit = Literal["", "s", "share", "tokens", "tokens/s", "versions", "nats"]


class Panel(NamedTuple):
    """Curves that share a scale."""

    title: str
    good: str
    """What a healthy run shows, as a sentence."""
    curves: Mapping[str, str]
    """Each field of the metric lines with its label. `*` stands for any text, and in the label for that text."""
    unit: Unit = ""

    @property
    def heading(self) -> str:
        """The title with the unit."""
        return self.title if self.unit in ("", "share") else f"{self.title}, {self.unit}"

    def labels(self, fields: Iterable[str]) -> dict[str, str]:
        """The labels of those fields that the panel draws."""
        found: dict[str, str] = {}
        for pattern, label in self.curves.items():
            is_curve = re.compile(re.escape(pattern).replace(r"\*", "(.+)"))
            for field in fields:
                if match := is_curve.fullmatch(field):
                    found[field] = label.replace("*", "{}").format(*match.groups())
        return found


def _by(part: str) -> Iterable[Panel]:
    """The panels of each verifier, or of each data source, apart from its reward."""
    fields = f"{part}_*_"
    yield Panel(f"Solve rate by {part}", "Between 20% and 80%.", {fields + "solve_rate_mean": "*"}, "share")
    yield Panel(f"Answer length by {part}", "Changes slowly.", {fields + "completion_tokens_mean": "*"}, "tokens")
    yield Panel(f"Truncated answers by {part}", "Below 25%.", {fields + "truncated_fraction": "*"}, "share")
    groups = {fields + "groups": "*", fields + "failed": "*: failed"}
    yield Panel(f"Groups by {part}", "In the proportions of the recipe's weights. Few fail.", groups)


SECTIONS: Final[Mapping[str, Sequence[Panel]]] = {
    "Learning": (
        Panel("Reward",
              "Rises, then levels off. Trained groups stay near the middle: solved and hopeless ones are filtered.",
              {"reward_mean": "all scored groups", "batch_reward_mean": "trained groups",
               "eval_*_reward_mean": "evaluation: *"}),
        Panel("Held-out accuracy", "Rises with the reward. If not, the policy exploits it.",
              {"eval_*_accuracy": "*"}, "share"),
        Panel("Solve rate", "Between 20% and 80%: there is something to learn.", {"solve_rate_mean": ""}, "share"),
        Panel("Spread of rewards", "Above 0: equal rewards teach nothing.", {"reward_std": ""}),
        Panel("Loss", "Stays small: it says little of progress. Look for jumps.", {"loss": ""}),
        Panel("Entropy", "Falls slowly. A sudden fall to zero ends exploration.", {"entropy_mean": ""}),
        Panel("Gradient norm", "Steady, mostly below the clipping bound. Spikes are rare.", {"grad_norm": ""}),
        Panel("Learning rate", "As the recipe says.", {"lr": ""}),
        Panel("KL to the reference", "Grows slowly: the policy stays near the reference.", {"kl_ref_mean": ""}),
        Panel("Divergence from the teachers", "Falls, and stays where the policy cannot follow them. Nats a token.",
              {"teacher_kl_mean": "all answers", "source_*_teacher_kl_mean": "*"}),
    ),
    "Length": (
        Panel("Answer length", "Changes slowly. The longest stays below the limit for most steps.",
              {"completion_tokens_mean": "mean", "completion_tokens_max": "longest"}, "tokens"),
        Panel("Truncated answers", "Below 25%. If not, raise sampling.max_tokens.",
              {"truncated_fraction": ""}, "share"),
    ),
    "Off policy": (
        Panel("Lag", "The mean is well below the bound.", {"lag_mean": "mean", "lag_max": "largest"}, "versions"),
        Panel("Effective sample size", "Close to 100%. Below 50%, few of the answers teach.",
              {"importance_ess_fraction": "of the tokens", "importance_ess_fraction_answers": "of the answers"},
              "share"),
        Panel("KL engine against learner", "The fresh tokens stay near zero at any lag: only rounding separates them.",
              {"kl_engine_learner": "all tokens", "kl_engine_learner_fresh": "tokens of lag 0"}),
        Panel("Log-probabilities, learner minus engine", "Near zero, above all those of the fresh tokens.",
              {"logprob_diff_mean": "all tokens", "logprob_diff_mean_fresh": "tokens of lag 0"}),
        Panel("Clipped tokens", "A few percent. Much more: steps are too large or tokens too old.",
              {"clip_fraction_low": "ratio, low", "clip_fraction_high": "ratio, high",
               "tis_clip_fraction": "importance weight", "tis_clip_fraction_answers": "importance weight, by answer"},
              "share"),
        Panel("KL of an answer", "Below 0.3. With more, token weights learn slower.",
              {"kl_engine_learner_answers": ""}, "nats"),
        Panel("Outliers of an answer", "Few stale tokens are beyond the threshold.",
              {"outlier_tokens_mean": ""}, "tokens"),
        Panel("Threshold of outliers", "Steady. It grows with noise and with long answers.",
              {"outlier_threshold": ""}, "nats"),
    ),
    "Speed": (
        Panel("Throughput", "Trained is close to generated. The gap is the cost of filtering, failures and age.",
              {"actor_tokens_per_s": "generated", "useful_tokens_per_s": "trained"}, "tokens/s"),
        Panel("Time of the learner", "It waits as little as planned. Far more: too few actors, or slow ones.",
              {"learner_step_s": "step", "learner_wait_s": "wait"}, "s"),
        Panel("Phases of a step", "Forward and backward passes dominate.",
              {"learner_forward_backward_s": "forward, backward", "learner_optimizer_s": "optimizer",
               "learner_snapshot_s": "copy weights", "learner_publish_wait_s": "wait for the publisher",
               "learner_wait_s": "wait for the batch"}, "s"),
        Panel("Draws per trained group",
              "1 without filtering. 2 means that half of the work is thrown away: the data are too easy or too hard.",
              {"draws_per_trained_group": ""}),
        Panel("Publishing a version", "Shorter than a step.", {"weight_publish_s": ""}, "s"),
        Panel("Stall of the engines per update", "Tens of milliseconds: no request stops.",
              {"weight_stall_s_mean": "mean", "weight_stall_s_max": "longest"}, "s"),
        Panel("Draws in flight", "Steady.", {"groups_in_flight": ""}),
        Panel("Size of the batch", "Changes slowly.", {"batch_tokens": ""}, "tokens"),
        Panel("MFU and MBU",
              "Steady. Decoding moves far more bytes than it computes: MBU says how close an engine is to its limit.",
              {"engine_mfu": "MFU, engines", "engine_mbu": "MBU, engines", "learner_mfu": "MFU, learner"}, "share"),
    ),
    "Verifiers, sources, functions": (
        Panel("Reward by verifier", "All rise. One at zero has unusable labels or no answers in its form.",
              {"reward_*_mean": "*"}),
        *_by("verifier"),
        Panel("Reward by source", "All rise. A source near 1 is used up.", {"source_*_reward_mean": "*"}),
        *_by("source"),
        Panel("Failures by cause", "None. Many unscorable: an outage of a verifier.", {"failures_*": "*"}),
        Panel("Logged by functions", "As the functions say.", {"logged_*_mean": "*"}),
    ),
    "Evaluation": (
        Panel("pass@k", "Rises with the accuracy.", {"eval_*_pass_at_*": "*, k = *"}, "share"),
        Panel("Held-out length", "As in training.", {"eval_*_completion_tokens_mean": "*"}, "tokens"),
        Panel("Held-out truncated", "Below 25%.", {"eval_*_truncated_fraction": "*"}, "share"),
    ),
}  # fmt: skip
PANELS: Final = {panel.title: panel for panels in SECTIONS.values() for panel in panels}
_NOT_DRAWN = re.compile(
    r"(step|incarnation|version|wall_s|batch_groups|reward_.*_std)$|.*_total$|"
    r"eval_.*_(version|version_oldest|version_newest|prompts|failed|tokens)$"
)


def sections(fields: Sequence[str]) -> list[tuple[str, list[tuple[str, str, dict[str, str]]]]]:
    """Each section with the heading, the sentence and the labels of its panels; fields without a panel come last."""
    drawn = [field for field in fields if not _NOT_DRAWN.match(field)]
    made = [(name, [(each.heading, each.good, each.labels(drawn)) for each in one]) for name, one in SECTIONS.items()]
    known = {field for _, panels in made for _, _, labels in panels for field in labels}
    return [*made, ("Other fields", [(field, "", {field: ""}) for field in sorted({*drawn} - known)])]


class EvaluationPoint(NamedTuple):
    """A result of an evaluation, at the version that it measured."""

    version: float
    value: float
    oldest: float
    """The oldest version that answered; the one that was asked where it is not known."""
    newest: float
    by: str
    """The versions that answered, such as `0-6`; empty where they are not known."""


def evaluation_points(lines: Sequence[Mapping[str, Any]], field: str) -> list[EvaluationPoint]:
    """The finite values of a field of an evaluation, by version; at the step of its line where no version is known."""
    points = []
    for line in lines:
        asked, oldest, newest = map(number, evaluated_versions(line, field))
        at = asked if isfinite(asked) else number(line["step"])
        if isfinite(value := number(line.get(field))):
            first, last = (end if isfinite(end) else at for end in (oldest, newest))
            points.append(EvaluationPoint(at, value, first, last, answered_by(line, field)))
    return sorted(points)


def number(value: Any) -> float:
    """A finite number; NaN for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isfinite(value) else nan
