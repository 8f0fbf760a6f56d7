"""Groups whose tokens a served reference has scored: rows by hand, masks, defects, the journal and the rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from olmorl import codec, config
from olmorl.learner.algorithm.presets import has_reference_weights, with_teachers
from olmorl.learner.batching import samples
from olmorl.learner.batching.packing import row_arrays
from olmorl.learner.storage.journal import Journal
from olmorl.learner.storage.ledger_state import Outcome, Start
from olmorl.learner.storage.rollout_record import Ended, line
from olmorl.messages import REFERENCE, Group, Sample, Verdict

MakeGroup = Callable[..., Group]
SERVED = config.build({"objective": {"kl_beta": 0.1, "kl_reference": {"url": "http://reference:8000/v1"}}})


def scored(group: Group, *logprobs: list[float] | None) -> Group:
    """The group with the log-probabilities that the reference gave to each completion."""
    completions = []
    for completion, values in zip(group.completions, logprobs, strict=True):
        verdicts = dict(completion.verdicts)
        if values is not None:
            verdicts[REFERENCE] = Verdict(reward=None, token_logprobs=np.array(values, np.float32))
        completions.append(replace(completion, verdicts=verdicts))
    return replace(group, completions=tuple(completions))


def made(group: Group, recipe: config.Config = SERVED) -> tuple[Sample, ...]:
    switches = with_teachers(recipe)
    return samples.samples(group, 0, max_lag=2, max_tokens=8, starts=[Start(1, 0, 0)], switches=switches)


def test_each_token_has_its_number_in_the_row(make_group: MakeGroup) -> None:
    """Prompts have two tokens."""
    group = scored(make_group(0, rewards=[1.0, 0.0], lengths=[1, 2]), [-0.25], [-1.5, -0.5])
    apart, shared = row_arrays(made(group)), row_arrays(made(group), share_prompts=True)
    assert apart.reference_logprobs_T.tolist() == [0, 0, -0.25, 0, 0, -1.5, -0.5]
    assert shared.reference_logprobs_T.tolist() == [0, 0, -0.25, -1.5, -0.5]
    assert apart.advantages_T.tolist() == [0, 0, 0.5, 0, 0, -0.5, -0.5], "as without a reference"


def test_an_answer_without_its_numbers_leaves_the_loss(make_group: MakeGroup) -> None:
    """As one from before the recipe had a served reference: a log-probability of 0 would be a made-up one."""
    first, second = made(scored(make_group(0, rewards=[1.0, 0.0]), [-1.0] * 4, None))
    assert first.loss_mask.all() and not second.loss_mask.any()
    assert second.reference_logprobs is UNSET and second.advantage == -0.5
    nobody = make_group(0, rewards=[1.0, 0.0])
    assert not samples.has_gradient(nobody, with_teachers(SERVED), 8)
    assert samples.has_gradient(nobody, with_teachers(config.Config()), 8)


@pytest.mark.parametrize("logprobs", [[-1.0] * 3, [-1.0, float("nan"), -1.0, -1.0]])
def test_damaged_numbers_are_a_defect(make_group: MakeGroup, logprobs: list[float]) -> None:
    group = scored(make_group(0), [-1.0] * 4, logprobs)
    assert samples.defect(group) == "completion 1: 4 tokens, 3 finite log-probabilities of a reference"


def test_journal_and_codec_keep_every_bit_and_cost_nothing_without_it(make_group: MakeGroup, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(-2, 1, (2, 4)).clip(-20, 0).astype(np.float32)
    group = scored(make_group(7), *values.tolist())
    Journal(tmp_path).write(1, 1, [group])
    (read,) = Journal(tmp_path).read(1)
    assert codec.encode(made(read)) == codec.encode(made(group))
    (sample, _) = made(read)
    assert not isinstance(sample.reference_logprobs, type(UNSET))
    assert sample.reference_logprobs.tobytes() == values[0].tobytes()
    assert b"reference" not in codec.encode(made(make_group(7), config.Config()))


def test_a_rollout_has_the_column(make_group: MakeGroup) -> None:
    group = scored(make_group(0), [-1.0, -2.0, -3.0, -4.0], None)
    first, second = json.loads(line(Ended(group, Outcome.TRAINED, 1, "")))["completions"]
    assert first["reference_logprobs"] == [-1.0, -2.0, -3.0, -4.0]
    assert "token_logprobs" not in first["verdicts"]["reference"] and "reference_logprobs" not in second


def test_the_learner_holds_no_weights_of_it() -> None:
    plain: dict[str, Any] = {"objective": {"kl_beta": 0.1}}
    assert has_reference_weights(config.build(plain)) and not has_reference_weights(SERVED)
