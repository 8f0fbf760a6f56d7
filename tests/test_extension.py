"""What a user adds without a change of the core: a surrogate, a reader of rows, a store of weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from olmorl import config
from olmorl.config import Data, Verifiers
from olmorl.deploy import wiring
from olmorl.deploy.preflight.recipe_checks import check_own_code
from olmorl.errors import ConfigError
from olmorl.extension import load_function
from olmorl.learner.algorithm import objective
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.data.loader import Loader
from olmorl.messages import Version
from olmorl.ports import NamedBuffer

CODE = """
from pathlib import Path

import torch

from olmorl.queues.weights.store import store_in_files


def reinforce(ratio, advantages, logprobs, switches):
    return advantages * logprobs


def ppo(ratio, advantages, logprobs, switches):
    clipped = ratio.clamp(1 - switches.eps_low, 1 + switches.eps_high)
    return torch.minimum(ratio * advantages, clipped * advantages)


def of_another_shape(ratio, advantages, logprobs, switches):
    return logprobs.sum()


def without_gradient(ratio, advantages, logprobs, switches):
    return advantages


def of_one_argument(ratio):
    return ratio


def from_qa(row):
    if row["language"] != "en":
        return None
    return {"prompt": row["q"].strip(), "ground_truth": str(row["a"]), "dataset": "math"}


def beside_this_file(run):
    return store_in_files(run, Path(__file__).parent / "versions")


def no_store(run):
    return object()


NUMBER = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """Names a function of a file, as a recipe does. Each test has a file of its own name: modules stay loaded."""
    path = tmp_path / f"own_{tmp_path.name}.py"
    path.write_text(CODE)
    return lambda name: f"{path}:{name}"


def rows(clip: str) -> tuple[objective.LossInputs, Any]:
    draw = torch.Generator().manual_seed(3)

    def numbers() -> torch.Tensor:
        return -torch.rand(2, 12, generator=draw, dtype=torch.float64)

    sequences = torch.arange(12).div(4, rounding_mode="floor").expand(2, 12)
    inputs = objective.LossInputs(
        numbers().requires_grad_(), numbers(), numbers(), numbers() + 0.5, torch.rand(2, 12, generator=draw) < 0.8,
        sequences, torch.ones(2, 12, dtype=torch.int64), 19, 6,
    )  # fmt: skip
    return inputs, resolve(config.build({"objective": {"clip": clip}}).objective, 16)


def test_a_surrogate_written_as_the_built_in_one_gives_its_loss_and_gradient(own: Callable[[str], str]) -> None:
    (ours, theirs) = (rows(clip) for clip in ("ppo", own("ppo")))
    losses = [objective.policy_loss(*each)[0] for each in (ours, theirs)]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
    assert losses[0].item() == losses[1].item() != 0
    assert torch.equal(ours[0].logprobs_BT.grad, theirs[0].logprobs_BT.grad)  # type: ignore[arg-type]


def test_the_weight_and_the_normaliser_stay(own: Callable[[str], str]) -> None:
    inputs, switches = rows(own("reinforce"))
    loss, _ = objective.policy_loss(inputs, switches)
    weights = (inputs.old_logprobs_BT - inputs.behaviour_logprobs_BT).exp().clamp(max=2.0)
    expected = -(weights * inputs.advantages_BT * inputs.logprobs_BT)[inputs.loss_mask_BT].sum() / inputs.loss_tokens
    assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("of_another_shape", "must return a tensor like ratio_BT"),
        ("without_gradient", "must return a tensor like ratio_BT, with a gradient"),
        ("of_one_argument", "it raised TypeError: .* 1 positional argument"),
        ("missing", "has no function 'missing'"),
        ("NUMBER", "has no function 'NUMBER'"),
    ],
)
def test_a_surrogate_that_cannot_be_used_is_refused_before_the_start(
    own: Callable[[str], str], name: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"objective\.clip = .*{says}"):
        check_own_code(config.build({"objective": {"clip": own(name)}}))


def test_a_module_that_does_not_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    for name, says in ((f"{tmp_path}/broken.py:f", "SystemExit: 3"), ("no_such.module:f", "No module named")):
        with pytest.raises(ConfigError, match=rf"data\.reader = .* does not import: .*{says}"):
            load_function("data.reader", name)


class Tokenizer:
    """One token a letter."""

    chat_template = None

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def test_a_reader_brings_rows_of_any_layout(own: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = ['"q": " 2+2? ", "a": 4, "language": "en"', '"q": "2+3?", "a": 5, "language": "de"', '"q": "2+4?", "a": 6']
    path.write_text("".join(f"{{{line}}}\n" for line in lines))
    loader = Loader(Data(reader=own("from_qa")), Tokenizer(), Verifiers())
    (row,) = loader.load(str(path)).rows
    assert (row.messages, row.datasets, row.ground_truths) == ("2+2?", ("math",), ("4",))
    assert loader.report.reasons == [
        f"{path}:2: data.reader left it out",
        f"{path}:3: data.reader raised KeyError: 'language'",
    ]


def test_a_store_of_ones_own_carries_the_versions(own: Callable[[str], str], tmp_path: Path) -> None:
    made = config.build({"run": {"directory": tmp_path}, "weights": {"store": own("beside_this_file")}})
    store = wiring.weight_store(made)
    store.publish(Version(1, 0), [NamedBuffer("w", "uint8", (2,), np.ones(2, np.uint8).data)])
    store.complete(Version(1, 0))
    assert wiring.weight_store(made).fetch(Version(1, 0)).path.read_bytes() == b"\1\1"
    assert list((tmp_path / "versions").rglob("*.shard_0"))
    store.sweep()
    with pytest.raises(ConfigError, match=r"weights\.store = .* has no method publish, complete, latest, fetch"):
        wiring.weight_store(config.build({"weights": {"store": own("no_store")}}))
