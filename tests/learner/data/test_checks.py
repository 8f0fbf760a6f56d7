"""Data that end too early, and held-out prompts that are trained on."""

from __future__ import annotations

import numpy as np
import pytest

from olmorl.config import Data
from olmorl.errors import DataError, ModelError
from olmorl.learner.data.checks import check_different, check_enough, shared_rows
from olmorl.learner.data.stream import Source
from olmorl.ports import Row


def row(name: str, *tokens: int) -> Row:
    return Row(name, name, np.array(tokens, np.int32), ("math",), ("1",), {}, False)


TRAIN = [Source("a", None, [row("a:1", 1, 2), row("a:2", 3)]), Source("b", 2.0, [row("b:1", 4)])]


@pytest.mark.parametrize(("epochs", "wanted", "fits"), [(1, 3, True), (1, 4, False), (2, 6, True), (2, 7, False)])
def test_all_passes_together_fill_a_batch(epochs: int, wanted: int, fits: bool) -> None:
    if fits:
        check_enough(TRAIN, Data(epochs=epochs), wanted)
        return
    with pytest.raises(DataError, match=rf"3 usable rows in data.epochs = {epochs}.*prompts_per_step = {wanted}"):
        check_enough(TRAIN, Data(epochs=epochs), wanted)


def test_data_without_an_end_are_always_enough() -> None:
    check_enough(TRAIN, Data(), 10_000)


def test_shared_prompts_are_counted_for_each_set_and_named() -> None:
    sets = {"held": [row("h:1", 9), row("h:2", 4), row("h:3", 1, 2)], "own": [row("o:1", 1), row("o:2", 2)]}
    (note,) = shared_rows(TRAIN, sets, strict=False)
    assert note.startswith("evaluation.data: 2 of 3 prompts of held are in data.train too (h:2 is b:1, h:3 is a:1): ")
    with pytest.raises(DataError, match="2 of 3 prompts of held"):
        shared_rows(TRAIN, sets, strict=True)


def test_of_many_shared_prompts_a_few_are_named() -> None:
    (note,) = shared_rows(TRAIN, {"held": [row(f"h:{n}", 3) for n in range(9)]}, strict=False)
    assert "9 of 9 prompts" in note and "h:4 is a:2, ...)" in note and "h:5" not in note


def test_sets_that_share_nothing_are_silent() -> None:
    assert shared_rows(TRAIN, {"own": [row("o:1", 1)]}, strict=True) == []
    assert shared_rows(TRAIN, {}, strict=True) == []


def alike(texts: int, prompts: int) -> list[Source]:
    """Rows of different texts that become few prompts, as by a template that writes the system message alone."""
    return [Source("a", None, [row(f"a:{number}", number % prompts) for number in range(texts)])]


@pytest.mark.parametrize(("texts", "prompts"), [(2, 1), (11, 1), (40, 2)])
def test_a_template_that_writes_little_of_the_messages_is_refused(texts: int, prompts: int) -> None:
    with pytest.raises(ModelError, match=rf"all {texts} prompts .* are {prompts} as tokens, .* {texts} texts"):
        check_different(alike(texts, prompts))


def test_rows_that_repeat_and_a_few_that_are_alike_are_no_fault_of_it() -> None:
    check_different([*alike(1, 1), *alike(1, 1)])
    check_different(alike(18, 2))
