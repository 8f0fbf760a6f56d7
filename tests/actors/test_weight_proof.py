"""An engine that does not compute with the published weights is named before a result of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from olmorl.actors.fake_engine import FakeEngine
from olmorl.actors.weight_proof import WeightProof
from olmorl.clock import run_simulated
from olmorl.errors import WeightsUnproven
from olmorl.messages import Floats, Probe, Version
from olmorl.ports import StagedWeights, Update
from olmorl.simulation import Simulation

Make = Callable[..., Any]
STEADY = Simulation(tokens_per_s=10, batch_slowdown=0, mean_tokens=100, tail=0, update_s=0.5)
TOKENS = (5, 1, 3, 2)


def probe(*logprobs: float) -> Probe:
    return Probe(TOKENS, logprobs)


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def v(number: int) -> Version:
    return Version(1, number)


def test_differences_within_the_tolerance_pass_and_are_counted() -> None:
    proof = WeightProof("a0", 0.1)
    proof.check(v(1), probe(-1, -2, -3), floats(-1.1, -2, -2.9), 0.5)
    proof.check(v(2), probe(-1, -2, -4), floats(-1, -2, -4.15), 1.0)
    assert proof.number == 2 and proof.seconds_total == 1.5
    assert proof.difference_total == pytest.approx(0.2 / 3 + 0.15 / 3, rel=1e-5)
    assert proof.difference_max == pytest.approx(0.2 / 3, rel=1e-5)


@pytest.mark.parametrize("scored", [(-1, -2, -3.5), (-1, -2, float("nan"))])
def test_a_mean_beyond_the_tolerance_names_the_version_and_the_owner(scored: tuple[float, ...]) -> None:
    with pytest.raises(WeightsUnproven, match=r"weights 1\.7 in the engine of a0 are not what was published"):
        WeightProof("a0", 0.1).check(v(7), probe(-1, -2, -3), floats(*scored), 0.0)


def test_the_tolerance_grows_with_improbable_tokens_as_rounding_does() -> None:
    proof = WeightProof("a0", 0.1)
    proof.check(v(1), probe(-20, -20, -20), floats(-20.15, -20.15, -20.15), 0.0)
    with pytest.raises(WeightsUnproven):
        proof.check(v(1), probe(-5, -5, -5), floats(-5.15, -5.15, -5.15), 0.0)


def test_a_swallowed_update_is_named_however_small_the_step_was() -> None:
    proof = WeightProof("a0", 0.1)
    proof.check(v(1), probe(-1, -2, -3), floats(-1.01, -2.01, -3.01), 0.0)
    with pytest.raises(WeightsUnproven, match="previous version's to the bit"):
        proof.check(v(2), probe(-1.0001, -2, -3), floats(-1.01, -2.01, -3.01), 0.0)


def test_a_step_that_changed_nothing_is_no_swallowed_update() -> None:
    proof = WeightProof("a0", 0.1)
    for number in (1, 2):
        proof.check(v(number), probe(-1, -2, -3), floats(-1, -2, -3), 0.0)
    proof.check(v(3), probe(-1.001, -2, -3), floats(-1.0011, -2, -3), 0.0)
    assert proof.number == 3


def test_an_engine_of_few_tokens_proves_the_first_ones() -> None:
    WeightProof("a0", 0.1).check(v(1), probe(-1, -2, -300), floats(-1, -2), 0.0)


class Swallowing(FakeEngine):
    """Labels every version from 1.2 on, and computes with the previous one."""

    async def update(self, staged: StagedWeights) -> Update:
        before = self._probe
        update = await super().update(staged)
        if update.version >= v(2):
            self._probe = before
        return update

    async def score(self, token_ids: Sequence[int]) -> Floats:
        await asyncio.sleep(1.0)
        return await super().score(token_ids)


def test_an_actor_with_wrong_weights_ends_and_stores_no_result_of_them(service: Make, draw: Make) -> None:
    async def scenario() -> tuple[int, int]:
        s = service(simulation=STEADY)
        engine = Swallowing(STEADY, max_running=16, max_model_len=500)
        await s.queue.claim(1)
        await s.push(draw(0))
        running = asyncio.create_task(s.actor(engine=engine).run())
        await asyncio.sleep(3.0)
        s.shelf.publish(v(1), probe=probe(-1, -2, -3))
        await s.results(1)
        proofs = (await s.queue.statuses())["a0"].proofs
        # 100 tokens take 10 s: the answers of this prompt end while version 1.2 is scored.
        await s.push(draw(1))
        await asyncio.sleep(9.4)
        s.shelf.publish(v(2), probe=probe(-1, -2, -3.5))
        with pytest.raises(WeightsUnproven, match=r"weights 1\.2 in the engine of a0"):
            await running
        return proofs, (await s.queue.counts("train")).results

    assert run_simulated(scenario()) == (1, 1), "the result of the first prompt, and no other"


def test_a_version_that_is_replaced_while_it_is_scored_is_left_out(service: Make, draw: Make) -> None:
    class Slow(FakeEngine):
        async def score(self, token_ids: Sequence[int]) -> Floats:
            scored = await super().score(token_ids)
            await asyncio.sleep(3.0)
            return scored

    async def scenario() -> tuple[int, Any]:
        s = service(simulation=STEADY)
        async with s.running(s.actor(engine=Slow(STEADY, max_running=16, max_model_len=500))):
            await asyncio.sleep(1.0)
            for number in (1, 2):
                s.shelf.publish(v(number), probe=probe(-1, -2, -number))
                await asyncio.sleep(1.5)
            await asyncio.sleep(8.0)
            status = (await s.queue.statuses())["a0"]
        return status.proofs, status.version

    assert run_simulated(scenario()) == (1, v(2))


def test_a_new_engine_proves_its_first_version_too(service: Make) -> None:
    class Wrong(FakeEngine):
        async def score(self, token_ids: Sequence[int]) -> Floats:
            return 2 * await super().score(token_ids)

    async def scenario() -> None:
        s = service()
        s.shelf.publish(v(1), probe=probe(-1, -2, -3))
        await s.actor(engine=Wrong(STEADY, max_running=16, max_model_len=500)).run()

    with pytest.raises(WeightsUnproven, match=r"weights 1\.1"):
        run_simulated(scenario())
