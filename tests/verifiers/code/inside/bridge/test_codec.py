"""What one process can make of a message of the other: plain data, or nothing."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from olmorl.verifiers.code.inside.bridge.codec import MAX_SHARED, Codec, CodecError


class NoHandles:
    """Admits plain data only."""

    def name(self, value: Any, encode: Any) -> list[Any]:
        raise CodecError(f"no handle for {value!r}")

    def resolve(self, node: list[Any], decode: Any) -> Any:
        raise CodecError("no handle")


def pair() -> tuple[Codec, Codec]:
    return Codec(NoHandles(), 0), Codec(NoHandles(), 1)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = SCALARS | st.tuples(SCALARS, SCALARS) | st.frozensets(st.integers())
VALUES = st.recursive(
    KEYS | st.complex_numbers(allow_nan=False) | st.decimals(allow_nan=False) | st.fractions() | st.dates(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(st.integers()),
    max_leaves=12,
)


@given(VALUES)
@settings(deadline=None, max_examples=60)
def test_values_arrive_as_they_were_sent(value: Any) -> None:
    ours, theirs = pair()
    kind, (found,) = theirs.unpack(ours.pack("done", [value]))
    assert kind == "done"
    assert found == value and type(found) is type(value)


def test_a_container_is_the_same_one_on_its_way_back() -> None:
    ours, theirs = pair()
    shared = [1, [2]]
    _, (there,) = theirs.unpack(ours.pack("call", [shared]))
    there[1].append(there)
    there.append({"new": 3})
    _, (back, inner) = ours.unpack(theirs.pack("done", [there, there[1]]))
    assert back is shared and inner is shared[1]
    assert shared[2] == {"new": 3} and shared[1][1] is shared


def test_a_generator_of_random_numbers_goes_on_where_the_other_side_left_it() -> None:
    ours, theirs = pair()
    shared, same = random.Random(1), random.Random(1)
    _, (there,) = theirs.unpack(ours.pack("call", [shared]))
    expected = [same.random(), same.gauss(0, 1), same.gauss(0, 1)]
    drawn = [there.random(), there.gauss(0, 1)]
    _, (back,) = ours.unpack(theirs.pack("done", [there]))
    assert back is shared and [*drawn, shared.gauss(0, 1)] == expected


def test_a_container_that_did_not_change_is_not_sent_again() -> None:
    ours, theirs = pair()
    shared = list(range(1000))
    theirs.unpack(ours.pack("call", [shared]))
    assert len(ours.pack("call", [shared])) < 50


def test_old_containers_become_copies_on_both_sides_at_once() -> None:
    ours, theirs = pair()
    first: list[int] = [1]
    _, (there,) = theirs.unpack(ours.pack("call", [first]))
    for _ in range(4):
        theirs.unpack(ours.pack("call", [[[] for _ in range(MAX_SHARED)]]))
    there.append(2)
    _, (back,) = ours.unpack(theirs.pack("done", [there]))
    assert first == [1] and back == [1, 2]


def test_a_value_that_cannot_travel_changes_nothing() -> None:
    ours, theirs = pair()
    with pytest.raises(CodecError):
        ours.pack("call", [[1], [object()]])
    value = [1]
    _, (there,) = theirs.unpack(ours.pack("call", [value]))
    assert there == [1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["shared", "tuple", "int", "range"])
    | st.sampled_from(["bytes", "Decimal", "standard", "builtins", "eval", "slice", "array", "datetime", "constant"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(JSON, max_size=3), st.lists(st.tuples(JSON, JSON, JSON, JSON), max_size=3))
@settings(deadline=None, max_examples=300)
def test_a_hostile_message_is_refused_or_plain(nodes: list[Any], contents: list[Any]) -> None:
    _, theirs = pair()
    try:
        theirs.unpack(json.dumps(["done", nodes, contents]).encode())
    except CodecError:
        return


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"[",
        b"{}",
        b"[" * 100_000,
        b'["done"]',
        b'[7, [], []]',
        b'["done", [["standard", "builtins", "eval"]], []]',
        b'["done", [["standard", "os", "system"]], []]',
        b'["done", [["standard", "math", "__loader__"]], []]',
        b'["done", [["standard", "functools", "RLock"]], []]',
        b'["done", [], [[0, "Random", null, "00"]]]',
        b'["done", [["shared", 5]], []]',
        b'["done", [], [[1, "list", null, [1]]]]',
        b'["done", [{"a": 1}], []]',
        b'["done", [["array", "O", [1], "00"]], []]',
        b'["done", [], [[0, "defaultdict", ["builtins", "exec"], []]]]',
    ],
)  # fmt: skip
def test_messages_that_no_codec_makes(message: bytes) -> None:
    _, theirs = pair()
    with pytest.raises(CodecError):
        theirs.unpack(message)


def test_a_container_keeps_its_type() -> None:
    _, theirs = pair()
    theirs.unpack(b'["done", [["shared", 0]], [[0, "list", null, [1]]]]')
    with pytest.raises(CodecError, match="type"):
        theirs.unpack(b'["done", [], [[0, "dict", null, []]]]')


def test_a_defaultdict_makes_missing_values_with_plain_classes_only() -> None:
    ours, theirs = pair()
    _, (table, other) = theirs.unpack(ours.pack("done", [defaultdict(list, a=[1]), defaultdict(locals, a=1)]))
    assert table["b"] == [] and other == {"a": 1} and other.default_factory is None
    forged = json.dumps(["done", [["shared", 0]], [[0, "defaultdict", ["random", "getrandbits"], []]]]).encode()
    with pytest.raises(CodecError):
        pair()[1].unpack(forged)


@pytest.mark.parametrize("name", ["locals", "globals", "vars", "dir", "setattr"])
def test_no_function_that_reads_variables_is_shared(name: str) -> None:
    with pytest.raises(CodecError):
        pair()[1].unpack(json.dumps(["done", [["standard", "builtins", name]], []]).encode())
