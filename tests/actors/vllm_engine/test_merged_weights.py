"""Adapters that are published alone: the engine computes with the model folder's weights plus the newest adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from msgspec.structs import replace

from olmorl import config
from olmorl.actors.vllm_engine import arguments
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.merged_weights import BaseWeights, MergedWeights
from olmorl.actors.vllm_engine.weight_check import published_shapes
from olmorl.actors.weight_follower import WeightFollower
from olmorl.actors.weight_proof import TOLERANCE
from olmorl.clock import SystemClock
from olmorl.errors import WeightError, WeightsDamaged, WeightsUnproven
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.adapters import attach
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow
from olmorl.messages import Completion, Probe, Version
from olmorl.ports import Sampling
from olmorl.queues.weights.store import store_in_files
from tests.actors.vllm_engine import refusing_loader
from tests.actors.vllm_engine.test_engine import (
    ANSWER,
    EOS,
    PROMPT,
    Case,
    Weights,
    ask,
    assert_covered,
    running,
    tied_case,
    untied_case,
)

CPU = torch.device("cpu")
LORA = config.Lora(rank=4, alpha=8)


def test_a_weight_gets_the_scaled_product_of_its_adapter() -> None:
    """By hand: scale 2, B A = [3, 4] x 2 rows."""
    bf16 = torch.bfloat16
    adapters: Any = SimpleNamespace(
        manifest=None,
        file=None,
        tensors=lambda: iter(
            {
                "q.lora_A.weight": torch.tensor([[3.0, 4.0]], dtype=bf16),
                "q.lora_B.weight": torch.tensor([[1.0], [-1.0]], dtype=bf16),
            }.items()
        ),
    )
    base: Any = SimpleNamespace(
        tensors={"q.weight": torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "norm.weight": torch.ones(2)}, touch=lambda: None
    )
    for _ in range(2):  # the base does not change
        merged = dict(MergedWeights(adapters, base, 2.0, CPU).tensors())
        assert merged["q.weight"].tolist() == [[7.0, 8.5], [-6.0, -7.0]] and merged["q.weight"].dtype == bf16
        assert merged["norm.weight"].tolist() == [1.0, 1.0]


def test_a_version_has_an_adapter_for_each_target() -> None:
    shapes = {
        "m.0.q_proj.weight": (6, 4),
        "m.0.q_proj.bias": (6,),
        "m.0.q_norm.weight": (4,),
        "m.1.up_proj.weight": (8, 4),
    }
    lora = config.Lora(rank=2, target_modules=("q_proj",))
    assert published_shapes(shapes, lora) == {"m.0.q_proj.lora_A.weight": (2, 4), "m.0.q_proj.lora_B.weight": (6, 2)}
    assert published_shapes(shapes, config.Lora()) == shapes


class LearnerSide:
    """The learner's policy of a model folder with adapters, and what it publishes."""

    def __init__(self, case: Case) -> None:
        self.case = case
        model = models.load(config.Model(path=str(case.folder), dtype=case.dtype), "sdpa", CPU)
        adapters = attach(model, LORA)
        assert adapters is not None
        self.adapters, self.policy = adapters, PackedPolicy(model, 1.0, chunk=64)

    def change(self, seed: int, size: float = 0.3) -> Weights:
        """Other adapters; returns them as they are published."""
        named = dict(self.policy.model.named_parameters())
        torch.manual_seed(seed)
        with torch.no_grad():
            for name in self.adapters.published:
                named[name].copy_(torch.randn(named[name].shape) * size)
        return {public: named[name].detach().clone() for name, public in self.adapters.published.items()}

    def logprobs(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        """Of every token but the first one."""
        row = PolicyRow(torch.tensor(tokens), (len(tokens),), torch.arange(1, len(tokens)))
        with torch.no_grad():
            return np.asarray(self.policy(row)[0][1:].float().numpy())

    def probe(self) -> Probe:
        tokens = [(1 + 7919 * number) % EOS for number in range(32)]
        return Probe(tuple(tokens), tuple(self.logprobs(tokens).tolist()))

    def difference(self, answer: Completion, start: int = 0) -> float:
        """The largest difference to the engine's, of the tokens from `start` on."""
        learner = self.logprobs([*PROMPT.tolist(), *answer.token_ids.tolist()])[len(PROMPT) - 1 :]
        return float(np.abs(learner - answer.logprobs)[start:].max())


FREE = replace(ANSWER, min_tokens=0)
"""No token is forbidden: the learner knows no smaller support."""


@pytest.fixture(scope="module", params=["untied", "tied"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    return untied_case(folder) if request.param == "untied" else tied_case(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(case: Case) -> AsyncIterator[tuple[LearnerSide, VllmEngine]]:
    engine = adapted(case)
    try:
        await engine.start(None)
        yield LearnerSide(case), engine
    finally:
        await engine.stop()


def adapted(case: Case) -> VllmEngine:
    engine = case.engine()
    engine._model = engine._model.model_copy(update={"lora": LORA})
    return engine


def following(store: Any, engine: VllmEngine, case: Case) -> WeightFollower:
    return WeightFollower(
        store,
        engine,
        SystemClock(),
        owner="a0",
        poll_s=0.01,
        deadline_s=60,
        max_lag=1,
        tolerance=TOLERANCE[case.dtype],
    )


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.asyncio(loop_scope="module")
class TestEngine:
    async def test_it_computes_as_the_learner_before_and_after_updates_in_flight(
        self, live: tuple[LearnerSide, VllmEngine]
    ) -> None:
        learner, engine = live
        case = learner.case
        before = await ask(engine, "before", FREE)
        assert learner.difference(before) < case.tolerance, "B is 0: the policy is the model of the folder"
        for seed in (1, 2, 3):
            staged = case.stage(learner.change(seed))
            assert staged.manifest.num_bytes < sum(weight.nbytes for weight in case.weights.values()) / 3
            others = await running(engine, 3, Sampling(max_tokens=200, min_tokens=200, seed=1))
            update = await engine.update(staged)
            assert 0 < update.stall_s < 1 and engine.version == staged.manifest.version
            answer = await ask(engine, f"after {seed}", FREE)
            assert [span.version for span in answer.spans] == [engine.version]
            assert learner.difference(answer) < case.tolerance
            for other in await asyncio.gather(*others):
                assert_covered(other)
                assert len(other.spans) == 2 and len(other.token_ids) == 200
        zero = {name: torch.zeros_like(tensor) for name, tensor in learner.change(4).items()}
        await engine.update(case.stage(zero))
        again = await ask(engine, "again", FREE)
        assert np.array_equal(before.token_ids, again.token_ids)
        assert np.array_equal(before.logprobs, again.logprobs), "no error of earlier versions is left"
        assert engine.tokens_aborted == 0

    async def test_adapters_that_are_not_all_leave_the_version_in_use(
        self, live: tuple[LearnerSide, VllmEngine]
    ) -> None:
        learner, engine = live
        version, adapters = engine.version, learner.change(1)
        some = {name: tensor for name, tensor in adapters.items() if "layers.2.mlp.up_proj.lora_B" not in name}
        with pytest.raises(WeightError, match=r"layers\.2\.mlp\.up_proj\.lora_B\.weight is missing"):
            await engine.update(learner.case.stage(some))
        with pytest.raises(WeightError, match="is unknown"):
            await engine.update(learner.case.stage(learner.case.weights))
        assert engine.version == version

    async def test_bytes_that_change_on_the_way_are_not_applied_and_those_that_change_later_are_named(
        self, live: tuple[LearnerSide, VllmEngine], tmp_path: Path
    ) -> None:
        learner, engine = live
        case = learner.case
        store = store_in_files("adapters", tmp_path / "mounted", shared_memory=tmp_path)
        versions = [Version(2, next(case.numbers)) for _ in range(3)]
        follower = following(store, engine, case)
        store.publish(versions[0], case.buffers(learner.change(1)), learner.probe())
        proving = asyncio.create_task(follower.prover.run())
        assert (await follower.next_update()).version == versions[0]
        await follower.prover.proven()
        assert follower.prover.proof.number == 1 and not proving.done()

        store.publish(versions[1], case.buffers(learner.change(2)), learner.probe())
        [published] = (tmp_path / "mounted").rglob(f"{versions[1]}.weights")
        good = published.read_bytes()
        published.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        with pytest.raises(WeightsDamaged):
            store.fetch(versions[1])
        assert engine.version == versions[0]

        store.publish(versions[2], case.buffers(learner.change(3)), learner.probe())
        staged = store.fetch(versions[2])
        with staged.path.open("r+b") as file:
            buffer = next(one for one in staged.manifest.buffers if "o_proj.lora_B" in one.name)
            file.seek(buffer.offset)
            file.write(bytes(buffer.num_bytes))
        status = staged.path.stat()
        checked = staged.path.with_suffix(".checked")
        checked.write_text(f"{status.st_ino} {status.st_size} {status.st_mtime_ns}")
        await follower.next_update()
        with pytest.raises(WeightsUnproven, match=rf"weights {versions[2]} in the engine of a0"):
            await proving

    async def test_an_engine_that_joins_gets_the_newest_adapters(self, live: tuple[LearnerSide, VllmEngine]) -> None:
        learner, first = live
        staged = learner.case.stage(learner.change(5))
        await first.update(staged)
        wanted = await ask(first, "first", FREE)
        second = adapted(learner.case)
        try:
            await second.start(staged)
            answer = await ask(second, "second", FREE)
        finally:
            await second.stop()
        assert np.array_equal(answer.logprobs, wanted.logprobs) and learner.difference(answer) < learner.case.tolerance

    async def test_an_engine_that_ignores_an_update_is_named(
        self, case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(arguments, "LOADER", "tests.actors.vllm_engine.refusing_loader.RefusingLoader")
        orders = tmp_path / "orders"
        monkeypatch.setenv(refusing_loader.VARIABLE, str(orders))
        orders.write_text("nothing", encoding="ascii")
        learner, engine = LearnerSide(case), adapted(case)
        store = store_in_files("ignored", shared_memory=tmp_path)
        follower = following(store, engine, case)
        proving = asyncio.create_task(follower.prover.run())
        try:
            await engine.start(None)
            for number, order in ((1, "nothing"), (2, "0 ignores")):
                orders.write_text(order, encoding="ascii")
                store.publish(Version(1, number), case.buffers(learner.change(number, 0.01)), learner.probe())
                await follower.next_update()
                if number == 1:
                    await follower.prover.proven()
            with pytest.raises(WeightsUnproven, match=r"weights 1\.2 in the engine of a0"):
                await proving
        finally:
            await engine.stop()


def test_the_base_is_the_model_folder(case: Case) -> None:
    base = BaseWeights(case.folder)
    assert base.tensors.keys() == case.weights.keys()
    assert all(torch.equal(base.tensors[name], weight) for name, weight in case.weights.items())
    base.touch()


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_vllm_loads_the_merged_export_and_the_adapters_apart(tmp_path: Path) -> None:
    from vllm.inputs.engine import tokens_input
    from vllm.lora.request import LoRARequest

    case = untied_case(tmp_path / "model")
    learner, out = LearnerSide(case), tmp_path / "out"
    learner.change(7)
    state = dict(learner.policy.model.named_parameters())
    settings = config.Model(path=str(case.folder), dtype=case.dtype, lora=LORA)
    models.export(learner.policy.model, state, settings, config.SamplingSettings(), out, learner.adapters)
    probe = learner.probe()
    merged = case.engine(out)
    try:
        await merged.start(None)
        scored = await merged.score(probe.token_ids)
    finally:
        await merged.stop()
    assert np.abs(scored - probe.logprobs).max() < case.tolerance
    apart = case.engine(vllm={"enable_lora": True, "max_lora_rank": 8, "max_loras": 1})
    try:
        await apart.start(None)
        llm: Any = apart._llm
        request = LoRARequest("policy", 1, str(out / "adapter"))
        tokens = list(probe.token_ids)
        collector = await llm.add_request(
            "apart", tokens_input(tokens), arguments.scoring_params(), lora_request=request
        )
        found = (await collector.get()).prompt_logprobs
    finally:
        await apart.stop()
    scored = np.array([found[n][token].logprob for n, token in enumerate(tokens) if n])
    assert np.abs(scored - probe.logprobs).max() < case.tolerance
