"""Modules that have the memory of a device in turns: what sleeps takes none, and wakes with every bit and view."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from olmorl.learner.trainer.turns import Turns
from tests.learner.ranks_process import measured

CPU = torch.device("cpu")


def held(*tensors: torch.Tensor) -> int:
    """Bytes of all storages."""
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def test_one_sleeps_while_the_other_works() -> None:
    first, second = torch.arange(100.0), torch.arange(1000.0)
    turns = Turns(lambda: [first], lambda: [second], CPU)
    assert (held(first), held(second)) == (400, 0)
    for _ in range(2):
        with turns.of_second():
            assert (held(first), held(second)) == (0, 4000)
            second += 1
        assert (held(first), held(second)) == (400, 0)
    with turns.of_second():
        assert second.tolist() == [2.0 + i for i in range(1000)]
    assert first.tolist() == list(range(100))


def test_an_error_in_a_turn_leaves_the_first_one_awake() -> None:
    first, second = torch.ones(10), torch.ones(10)
    turns = Turns(lambda: [first], lambda: [second], CPU)
    with pytest.raises(RuntimeError, match="in the middle"), turns.of_second():
        raise RuntimeError("in the middle")
    assert (first.tolist(), held(second)) == ([1.0] * 10, 0)


def test_views_stay_views_and_what_they_share_is_copied_once() -> None:
    flat, other = torch.arange(12.0), torch.zeros(1)
    part = flat[4:8].view(2, 2)
    turns = Turns(lambda: [part, flat, part], lambda: [other], CPU)
    with turns.of_second():
        assert part.untyped_storage().nbytes() == 0
    part += 100
    assert flat.tolist() == [0, 1, 2, 3, 104, 105, 106, 107, 8, 9, 10, 11]
    assert turns._first._memory.nbytes == flat.nbytes


def test_an_optimizer_goes_on_where_it_was() -> None:
    """Its moments are made at its first step, after the first turn."""

    def trained(*, in_turns: bool) -> list[float]:
        torch.manual_seed(0)
        model, other = nn.Linear(8, 8), torch.zeros(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def tensors() -> list[torch.Tensor]:
            states = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
            return [*(weight.data for weight in model.parameters()), *states]

        turns = Turns(tensors, lambda: [other], CPU)
        for _ in range(3):
            model(torch.ones(1, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if in_turns:
                with turns.of_second():
                    assert held(*tensors()) == 0
        return [value for weight in model.parameters() for value in weight.flatten().tolist()]

    assert trained(in_turns=True) == trained(in_turns=False)


def test_the_allocator_has_the_memory_back() -> None:
    _, _, big = measured(lambda: torch.ones(2**20))  # the profile knows what it has seen
    turns = Turns(lambda: [big], lambda: [torch.zeros(1)], CPU)
    copied, _, _ = measured(turns._first.sleep)
    assert copied == 0, "on a CPU the copy is in the same memory"
    taken, _, _ = measured(turns._first.wake)
    freed, _, _ = measured(turns._first.sleep)
    assert (taken, freed) == (4 * 2**20, -4 * 2**20)
