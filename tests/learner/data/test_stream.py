from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from olmorl.errors import DataError
from olmorl.learner.data.stream import PromptStream, Source
from olmorl.ports import Row


def source(name: str, number: int, weight: float | None = None) -> Source:
    rows = [
        Row(f"{name}:{i}", f"{name} {i}", np.array([ord(name), i], dtype=np.int32), ("math",), ("1",), {}, False)
        for i in range(number)
    ]
    return Source(name, weight, rows)


def names(stream: PromptStream, number: int) -> list[str]:
    return [row.row for _ in range(number) if (row := stream.draw())]


def test_an_epoch_has_every_row_once_and_each_epoch_its_own_order() -> None:
    stream = PromptStream([source("a", 30), source("b", 10)], seed=1)
    first, second = names(stream, 40), names(stream, 40)
    assert sorted(first) == sorted(second) == sorted(f"a:{i}" for i in range(30)) + sorted(f"b:{i}" for i in range(10))
    assert first != second
    assert names(PromptStream([source("a", 30), source("b", 10)], seed=1), 40) == first
    assert names(PromptStream([source("a", 30), source("b", 10)], seed=2), 40) != first


def test_weights_are_shares_of_the_draws_for_any_sizes() -> None:
    stream = PromptStream([source("a", 90, 1.0), source("b", 10, 3.0)], seed=0)
    drawn = names(stream, 400)
    assert Counter(name[0] for name in drawn[:100]) == {"a": 25, "b": 75}
    visits = Counter(drawn)
    assert {visits[f"b:{i}"] for i in range(10)} == {30}
    assert {visits[f"a:{i}"] for i in range(90)} <= {1, 2}


def test_without_shuffling_rows_come_in_the_order_of_their_file() -> None:
    stream = PromptStream([source("a", 4)], seed=0, shuffle=False, epochs=2)
    assert names(stream, 99) == ["a:0", "a:1", "a:2", "a:3"] * 2


def test_epochs_end_the_stream() -> None:
    stream = PromptStream([source("a", 5)], seed=0, epochs=2)
    assert len(names(stream, 99)) == 10
    assert stream.draw() is None


@pytest.mark.parametrize("at", [0, 1, 39, 40, 97])
def test_a_restored_stream_goes_on_with_exactly_the_same_draws(at: int) -> None:
    sources = [source("a", 30, 2.0), source("b", 10, 1.0)]
    whole = PromptStream(sources, seed=5)
    for i, name in enumerate(names(whole, at)):
        if i % 7 == 0:
            whole.retire(name)
    other = PromptStream(sources, seed=5)
    other.restore(whole.state())
    assert names(whole, 100) == names(other, 100)


def eased(name: str, rates: Sequence[float | None]) -> Source:
    plain = source(name, len(rates))
    return plain._replace(rows=[row._replace(ease=rate) for row, rate in zip(plain.rows, rates, strict=True)])


def test_a_curriculum_goes_from_easy_to_hard_in_each_pass_and_continues_from_a_checkpoint() -> None:
    rates = [n % 4 / 4 if n != 7 else None for n in range(20)]
    sources = [eased("a", rates), eased("b", [0.5, 0.25])]
    stream = PromptStream(sources, seed=1, curriculum="pass_rate")
    drawn = names(stream, 44)
    of_a = [int(name.partition(":")[2]) for name in drawn if name.startswith("a:")]
    for one_pass in (of_a[:20], of_a[20:]):
        assert sorted(one_pass) == list(range(20)) and one_pass[-1] == 7, "the row of unknown ease is last"
        assert [rates[n] for n in one_pass[:-1]] == sorted([n % 4 / 4 for n in range(20) if n != 7], reverse=True)
    assert of_a[:20] != of_a[20:], "rows of one rate are shuffled"
    assert [name for name in drawn if name.startswith("b:")] == ["b:0", "b:1"] * 2
    later = PromptStream(sources, seed=1, curriculum="pass_rate")
    earlier = PromptStream(sources, seed=1, curriculum="pass_rate")
    names(earlier, 13)
    later.restore(earlier.state())
    assert names(later, 31) == drawn[13:]
    measured_again = [eased("a", [*rates[:-1], 0.9]), sources[1]]
    with pytest.raises(DataError, match="the training data changed"):
        PromptStream(measured_again, seed=1, curriculum="pass_rate").restore(earlier.state())


def test_a_retired_row_never_comes_again_and_nothing_else_moves() -> None:
    sources = [source("a", 20)]
    plain, stream = PromptStream(sources, seed=3, epochs=3), PromptStream(sources, seed=3, epochs=3)
    stream.retire("a:7")
    stream.retire("a:7")
    stream.retire("not a row")
    assert names(stream, 99) == [name for name in names(plain, 99) if name != "a:7"]


def test_a_stream_whose_rows_are_all_retired_is_over() -> None:
    stream = PromptStream([source("a", 2)], seed=0)
    stream.retire("a:0")
    assert names(stream, 2) == ["a:1", "a:1"]
    stream.retire("a:1")
    assert stream.draw() is None


def test_a_checkpoint_of_other_data_is_refused() -> None:
    state = PromptStream([source("a", 20)], seed=0).state()
    with pytest.raises(DataError, match="data changed"):
        PromptStream([source("a", 21)], seed=0).restore(state)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"seed": 1}, r"run\.seed was 0 and is 1"),
        ({"shuffle": False}, r"data\.shuffle was True and is False"),
        ({"curriculum": "pass_rate"}, r"data\.curriculum was None and is pass_rate"),
    ],
)
def test_an_order_that_changed_is_refused(changed: dict[str, Any], says: str) -> None:
    state = PromptStream([source("a", 20)], seed=0).state()
    with pytest.raises(DataError, match=says):
        PromptStream([source("a", 20)], **{"seed": 0, **changed}).restore(state)


def test_retired_rows_that_have_other_names_now_are_refused() -> None:
    stream = PromptStream([source("a", 20)], seed=0)
    stream.retire("a:3")
    renamed = [row._replace(row=f"elsewhere/{row.row}") for row in source("a", 20).rows]
    with pytest.raises(DataError, match="no row is named a:3, but a row of this name was retired"):
        PromptStream([Source("a", None, renamed)], seed=0).restore(stream.state())


def test_a_state_of_an_earlier_version_says_nothing_of_the_order() -> None:
    state = PromptStream([source("a", 20)], seed=0).state()
    stream = PromptStream([source("a", 20)], seed=0)
    stream.restore({key: state[key] for key in ("position", "retired", "data")})
    assert stream.state() == state
