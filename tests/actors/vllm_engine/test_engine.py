"""The real engine: weights change during generation, and every token is labelled with its version."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import psutil
import pytest
import pytest_asyncio
import torch
from prometheus_client import REGISTRY
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import Olmo3Config, Olmo3ForCausalLM, PreTrainedTokenizerFast

from olmorl import config
from olmorl.actors.episodes.fake_environments import FakeEnvironments, FakeRenderer
from olmorl.actors.episodes.runner import Play
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.actors.vllm_engine import arguments, reaper
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.actors.weight_follower import WeightFollower
from olmorl.actors.weight_proof import TOLERANCE, WeightProof
from olmorl.clock import SystemClock
from olmorl.errors import EngineDied, PromptRefused, StartError, WeightError, WeightsUnproven
from olmorl.messages import Buffer, Completion, EpisodeStart, Lease, Probe, Prompt, TokenIds, Version, WeightsReady
from olmorl.ports import NamedBuffer, Sampling, StagedWeights
from olmorl.queues.weights.store import store_in_files
from tests.actors.vllm_engine import refusing_loader
from tests.waiting import with_command

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

ROOT = str(Path(__file__).parents[3])
VOCAB = 300  # vLLM pads it to 320
EOS = 298
MAX_MODEL_LEN = 256
START = Version(1, 0)
PROMPT = np.array([5, 9, 2, 44, 61, 7], dtype=np.int32)
ANSWER = Sampling(max_tokens=40, min_tokens=40, seed=3)  # past the sliding window of 16
GROUPS = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NORMS = ("q_norm", "k_norm", "post_attention_layernorm", "post_feedforward_layernorm", "model.norm")
Weights = dict[str, torch.Tensor]


class Case:
    """A tiny random model on disk, and what transformers says of it."""

    def __init__(self, folder: Path, *, tied: bool, dtype: str, tolerance: float, heads: int = 2) -> None:
        self.folder = folder
        self.tied = tied
        self.dtype = dtype
        self.tolerance = tolerance
        self.numbers = iter(range(1, 10_000))
        torch.manual_seed(0)
        self.model = Olmo3ForCausalLM(
            Olmo3Config(
                hidden_size=64,
                num_hidden_layers=4,
                vocab_size=VOCAB,
                intermediate_size=128,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=MAX_MODEL_LEN,
                sliding_window=16,
                tie_word_embeddings=tied,
                eos_token_id=EOS,
                pad_token_id=EOS + 1,
                bos_token_id=None,
                initializer_range=0.1,
            )
        ).to(getattr(torch, dtype))
        self.weights: Weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        if tied:
            del self.weights["lm_head.weight"]
        self.save(folder, self.weights)

    def save(self, folder: Path, weights: Weights) -> None:
        self.model.load_state_dict(weights, strict=False)
        self.model.save_pretrained(folder)
        words = {f"w{number}": number for number in range(EOS)} | {"<eos>": EOS, "<pad>": EOS + 1}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(
            folder
        )

    def perturbed(self, group: str) -> Weights:
        torch.manual_seed(1)
        return {
            name: tensor + torch.randn_like(tensor) * max(tensor.float().std().item(), 0.5 if tensor.ndim == 1 else 0.0)
            if group in name
            else tensor
            for name, tensor in self.weights.items()
        }

    def reference(self, weights: Weights, completion: Completion) -> npt.NDArray[np.float32]:
        """Log-probabilities of the completion's tokens, of transformers' own forward pass."""
        self.model.load_state_dict(weights, strict=False)
        ids = torch.tensor([[*PROMPT, *completion.token_ids]], dtype=torch.long)
        with torch.no_grad():
            logits_TV = self.model(ids).logits[0, len(PROMPT) - 1 : -1].float()
        logits_TV[:, EOS] = -torch.inf  # min_tokens keeps the answers from ending
        picked: npt.NDArray[np.float32] = logits_TV.log_softmax(-1).gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()
        return picked

    def scores(self, weights: Weights) -> Probe:
        """What the learner says of fixed tokens: transformers' own forward pass."""
        self.model.load_state_dict(weights, strict=False)
        ids = torch.tensor([[(1 + 7919 * number) % EOS for number in range(32)]])
        with torch.no_grad():
            logprobs_TV = self.model(ids).logits[0, :-1].float().log_softmax(-1)
        return Probe(tuple(ids[0].tolist()), tuple(logprobs_TV.gather(1, ids[0, 1:, None])[:, 0].tolist()))

    def stage(self, weights: Weights, version: Version | None = None) -> StagedWeights:
        version = version or Version(1, next(self.numbers))
        path = self.folder / f"staged-{version}"
        buffers, end = [], 0
        with path.open("wb") as file:
            for name, tensor in weights.items():
                data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
                buffers.append(Buffer(name, self.dtype, tuple(tensor.shape), end, len(data)))
                end += file.write(data)
        manifest = WeightsReady(
            version=version,
            buffers=tuple(buffers),
            num_bytes=end,
            chunk_bytes=1 << 20,
            shards=(),
        )
        return StagedWeights(manifest, path)

    def buffers(self, weights: Weights) -> list[NamedBuffer]:
        return [
            NamedBuffer(
                name, self.dtype, tuple(tensor.shape), tensor.contiguous().flatten().view(torch.uint8).numpy().data
            )
            for name, tensor in weights.items()
        ]

    def engine(self, folder: Path | None = None, **settings: Any) -> VllmEngine:
        return VllmEngine(
            EngineStart(
                config.Model(path=str(folder or self.folder), dtype=self.dtype),
                config.Actors(max_running=32, kv_cache_gib=0.25, enforce_eager=True, **settings),
                max_model_len=MAX_MODEL_LEN,
                seed=0,
                core=0,
                processes=EngineProcesses(self.folder / "notes"),
            ),
            START,
        )


def untied_case(folder: Path) -> Case:
    return Case(folder, tied=False, dtype="float32", tolerance=2e-3)


def tied_case(folder: Path) -> Case:
    return Case(folder, tied=True, dtype="bfloat16", tolerance=0.15)


async def ask(engine: VllmEngine, name: str, sampling: Sampling = ANSWER, prompt: TokenIds = PROMPT) -> Completion:
    return await asyncio.wait_for(engine.generate(name, prompt, sampling), 60)


async def running(engine: VllmEngine, count: int, sampling: Sampling) -> list[asyncio.Task[Completion]]:
    """Start requests and wait until each is surely being generated."""
    before = engine.tokens_generated
    tasks = [asyncio.create_task(engine.generate(f"{time.monotonic()}-{n}", PROMPT, sampling)) for n in range(count)]
    for _ in range(60_000):
        if engine.tokens_generated >= before + 4 * count and engine.load().running == count:
            return tasks
        await asyncio.sleep(0.001)
    raise AssertionError("no tokens within a minute")


def forcing(case: Case, token: int) -> Weights:
    """Blocks that add nothing, and a head whose largest row is this one."""
    weights = {
        name: torch.ones_like(tensor) if tensor.ndim == 1 else torch.zeros_like(tensor)
        for name, tensor in case.weights.items()
    }
    embedding = torch.ones_like(case.weights["model.embed_tokens.weight"])
    head = embedding if case.tied else weights["lm_head.weight"]
    weights["model.embed_tokens.weight"] = embedding
    head[token] = 2.0
    return weights


def engine_core(processes: list[psutil.Process]) -> psutil.Process:
    [core] = with_command(processes, "EngineCore")
    return core


def assert_covered(completion: Completion) -> None:
    edges = [0, *(span.end for span in completion.spans)]
    assert edges[-1] == len(completion.token_ids) == len(completion.logprobs)
    assert [span.start for span in completion.spans] == edges[:-1]
    assert all(span.start < span.end for span in completion.spans)


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    yield untied_case(tmp_path_factory.mktemp("untied"))


# These six start engines of their own, so they stand before the tests that share one.


async def test_a_fresh_engine_agrees_and_its_death_is_noticed(untied: Case, tmp_path: Path) -> None:
    changed = untied.perturbed("q_proj")
    untied.save(tmp_path, changed)
    engine = untied.engine(tmp_path)
    try:
        await engine.start(None)
        fresh = await ask(engine, "fresh")
        await engine.update(untied.stage(untied.weights))
        await engine.update(untied.stage(changed))
        updated = await ask(engine, "updated")
        assert np.array_equal(updated.token_ids, fresh.token_ids)
        assert np.array_equal(updated.logprobs, fresh.logprobs)

        tasks = await running(engine, 2, Sampling(max_tokens=240, min_tokens=240))
        engine_core(psutil.Process().children()).kill()
        for task in tasks:
            with pytest.raises(EngineDied):
                await asyncio.wait_for(task, 10)
        with pytest.raises(EngineDied):
            await ask(engine, "after")
        with pytest.raises(EngineDied):
            await asyncio.wait_for(engine.update(untied.stage(untied.weights)), 10)
    finally:
        await engine.stop()


async def test_the_error_that_ends_an_engine_is_in_the_news_of_its_death(tmp_path: Path) -> None:
    """vLLM's attention on a CPU refuses such heads at the first prompt, when the engine is up."""
    case, log = Case(tmp_path, tied=False, dtype="float32", tolerance=2e-3, heads=4), tmp_path / "actor.log"
    before = os.dup(2)
    with log.open("w") as file:
        os.dup2(file.fileno(), 2)
    engine = case.engine()
    try:
        await engine.start(None)
        for _ in range(2):
            with pytest.raises(EngineDied, match=r"RuntimeError: Unsupported CPU attention.*head_dim=16"):
                await ask(engine, "a")
    finally:
        os.dup2(before, 2)
        os.close(before)
        await engine.stop()


async def test_with_recompute_later_tokens_see_no_key_of_earlier_weights(untied: Case) -> None:
    engine = untied.engine(weight_update="recompute")
    changed = untied.perturbed("self_attn")
    try:
        await engine.start(None)
        requests = await running(engine, 3, Sampling(max_tokens=200, min_tokens=200, seed=1))
        update = await engine.update(untied.stage(changed))
        answers = await asyncio.gather(*requests)
        assert engine.tokens_aborted == 0
    finally:
        await engine.stop()
    for answer in answers:
        assert_covered(answer)
        before, after = answer.spans
        assert (before.version, after.version) == (START, update.version)
        old, new = (np.abs(untied.reference(each, answer) - answer.logprobs) for each in (untied.weights, changed))
        assert old[: before.end].max() < untied.tolerance
        assert new[after.start :].max() < untied.tolerance, "as if the new weights had computed the whole sequence"


async def test_no_token_gets_the_label_of_a_version_that_was_loaded_in_part(
    untied: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "LOADER", "tests.actors.vllm_engine.refusing_loader.RefusingLoader")
    orders = tmp_path / "orders"
    monkeypatch.setenv(refusing_loader.VARIABLE, str(orders))
    orders.write_text("nothing", encoding="ascii")
    engine = untied.engine()
    try:
        await engine.start(None)
        assert (await engine.update(untied.stage(untied.weights, Version(1, 7)))).version == Version(1, 7)
        requests = await running(engine, 3, Sampling(max_tokens=240, min_tokens=240))
        states = list(engine._llm.output_processor.request_states.values())
        orders.write_text("0 breaks late", encoding="ascii")
        stop = engine.stop

        async def stop_late() -> None:
            await asyncio.sleep(1)  # the engine core has resumed: time for hundreds of steps
            await stop()

        monkeypatch.setattr(engine, "stop", stop_late)
        with pytest.raises(EngineDied, match=r"weights 1\.8 were loaded in part: .*the memory is broken"):
            await engine.update(untied.stage(untied.weights, Version(1, 8)))
        ended = await asyncio.gather(*requests, return_exceptions=True)
    finally:
        await engine.stop()
    assert all(isinstance(error, EngineDied) for error in ended)
    assert {label for state in states for label, _ in state.weight_version_starts} == {"1.7"}
    assert engine.version == Version(1, 7)


async def test_weights_that_are_cut_off_are_named_by_the_engine_that_cannot_load_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = untied_case(tmp_path / "model")
    [weights] = (tmp_path / "model").glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    engine, before = case.engine(tmp_path / "model"), os.dup(2)
    with (tmp_path / "actor-0.log").open("a") as log:
        os.dup2(log.fileno(), 2)  # as a process of a run has it
        try:
            with pytest.raises(StartError, match=r"did not start: .*SafetensorError: Error while deserializing header"):
                await engine.start(None)
        finally:
            os.dup2(before, 2)
            os.close(before)
            await engine.stop()


@pytest.mark.slow
async def test_what_a_killed_owner_leaves_is_reaped(tmp_path: Path) -> None:
    """Also checks that an engine that loaded the weights from disk agrees with transformers as the updated one does."""
    case = tied_case(tmp_path)
    changed = case.perturbed("embed_tokens")
    case.save(tmp_path, changed)
    script = [sys.executable, str(Path(__file__).with_name("engine_owner.py"))]
    arguments = [str(tmp_path), case.dtype, json.dumps(PROMPT.tolist()), msgspec.json.encode(ANSWER).decode()]
    owner = await asyncio.create_subprocess_exec(
        *script, *arguments, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": ROOT}
    )
    try:
        assert owner.stdout is not None
        async with asyncio.timeout(300):
            while not (line := await owner.stdout.readline()).startswith(b"[["):  # vLLM logs to the same stream
                assert line, "the owner has ended"
        family = psutil.Process(owner.pid).children(recursive=True)
        files = reaper.shared_memory([process.pid for process in family])
        mark = engine_core(family).environ()[reaper.VARIABLE]
        family += [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or ())]
    finally:
        owner.kill()
        await owner.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, family, 10)
    assert not alive
    assert len(family) >= 3, "the reaper, the engine core, a resource tracker"
    assert files
    assert not [file for file in files if file.exists()]
    token_ids, logprobs = json.loads(line)
    fresh = Completion(
        index=0,
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
        spans=(),
        finish_reason="length",
        text="",
    )
    assert np.abs(case.reference(changed, fresh) - fresh.logprobs).max() < case.tolerance


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[untied_case, tied_case])
async def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Case, VllmEngine]]:
    case = request.param(tmp_path_factory.mktemp(request.param.__name__))
    engine = case.engine()
    try:
        await engine.start(None)
        yield case, engine
    finally:
        await engine.stop()


async def test_each_group_of_parameters_is_updated_while_requests_run(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    before = await ask(engine, "before")
    assert np.abs(case.reference(case.weights, before) - before.logprobs).max() < case.tolerance
    for group in [name for name in (*GROUPS, *NORMS) if any(name in weight for weight in case.weights)]:
        changed = case.perturbed(group)
        staged = case.stage(changed)
        others = await running(engine, 3, Sampling(max_tokens=200, min_tokens=200, seed=1))
        update = await engine.update(staged)
        answer = await ask(engine, f"with {group}")
        assert [span.version for span in answer.spans] == [update.version] == [engine.version], group
        assert np.abs(case.reference(changed, answer) - answer.logprobs).max() < case.tolerance, group
        assert np.abs(case.reference(case.weights, answer) - answer.logprobs).max() > 2 * case.tolerance, group
        for other in await asyncio.gather(*others):
            assert_covered(other)
            assert len(other.spans) == 2, "an update met it while it ran"
            assert len(other.token_ids) == 200
    await engine.update(case.stage(case.weights))
    reverted = await ask(engine, "reverted")
    assert np.array_equal(reverted.token_ids, before.token_ids)
    assert np.array_equal(reverted.logprobs, before.logprobs)


async def test_the_engine_scores_as_the_learner_while_requests_run(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    proof = WeightProof("a0", TOLERANCE[case.dtype])
    for group in ("mlp", "self_attn"):
        changed = case.perturbed(group)
        staged = case.stage(changed)
        others = await running(engine, 3, Sampling(max_tokens=100, min_tokens=100, seed=1))
        await engine.update(staged)
        probe = case.scores(changed)
        scored = await engine.score(probe.token_ids)
        assert len(scored) == 31
        proof.check(staged.manifest.version, probe, scored, 0.0)
        await asyncio.gather(*others)
    before = engine.tokens_generated
    again = await engine.score(probe.token_ids)
    assert np.array_equal(again, await engine.score(probe.token_ids))
    assert engine.tokens_generated == before, "what is scored is not generated"
    assert len(await engine.score(range(MAX_MODEL_LEN + 9))) == MAX_MODEL_LEN - 2


async def test_the_time_of_a_score_is_its_part_of_the_steps(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    probe = case.scores(case.weights)
    for others in (0, 8):
        requests = await running(engine, others, Sampling(max_tokens=200, min_tokens=200, seed=1))
        before, began_at = engine.use().scored_s, time.monotonic()
        await engine.score(probe.token_ids)
        assert 0 < engine.use().scored_s - before < time.monotonic() - began_at
        await asyncio.gather(*requests)
    counted = engine.use().scored_s
    await ask(engine, "no score")
    assert engine.use().scored_s == counted


@pytest.mark.parametrize("wrong", ["a tensor after the hash check", "all of it"])
async def test_an_update_that_went_wrong_behind_the_hash_check_is_named(
    live: tuple[Case, VllmEngine], tmp_path: Path, wrong: str
) -> None:
    """Through the real store: published with its probe, fetched, checked; then the staged bytes change."""
    case, engine = live
    store = store_in_files("proof", shared_memory=tmp_path)
    versions = [Version(2, next(case.numbers)) for _ in range(2)]
    follower = WeightFollower(
        store,
        engine,
        SystemClock(),
        owner="a0",
        poll_s=0.01,
        deadline_s=60,
        max_lag=1,
        tolerance=TOLERANCE[case.dtype],
    )
    contents = [case.perturbed("mlp"), case.perturbed("self_attn")]
    store.publish(versions[0], case.buffers(contents[0]), case.scores(contents[0]))
    proving = asyncio.create_task(follower.prover.run())
    assert (await follower.next_update()).version == versions[0]
    await follower.prover.proven()
    assert not proving.done() and follower.prover.proof.number == 1
    store.publish(versions[1], case.buffers(contents[1]), case.scores(contents[1]))
    staged = store.fetch(versions[1])
    with staged.path.open("r+b") as file:
        if wrong == "all of it":
            file.write(store.fetch(versions[0]).path.read_bytes())
        else:
            buffer = next(buffer for buffer in staged.manifest.buffers if "o_proj" in buffer.name)
            file.seek(buffer.offset)
            file.write(bytes(buffer.num_bytes))
    stat = staged.path.stat()
    checked = staged.path.with_suffix(".checked")
    checked.write_text(f"{stat.st_ino} {stat.st_size} {stat.st_mtime_ns}")
    await follower.next_update()
    with pytest.raises(WeightsUnproven, match=rf"weights {versions[1]} in the engine of a0"):
        await proving
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(follower.prover.proven(), 0.1)


async def test_what_is_scored_comes_before_all_that_waits(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    lengths = [Sampling(max_tokens=length, min_tokens=length, seed=1) for length in range(100, 228, 4)]
    others = [asyncio.create_task(ask(engine, f"runs {n}", length)) for n, length in enumerate(lengths)]
    async with asyncio.timeout(60):
        while engine.load().running < 32:  # noqa: ASYNC110  # the engine tells nobody
            await asyncio.sleep(0.001)
    waiting = [asyncio.create_task(ask(engine, f"waits {n}", Sampling(max_tokens=40))) for n in range(8)]
    await asyncio.sleep(0)
    await engine.score(case.scores(case.weights).token_ids)
    ended = sum(other.done() for other in others)
    await asyncio.gather(*others, *waiting)
    assert ended < 8, "without its priority it waits for eight more places"


async def test_sequences_of_older_draws_begin_before_newer_ones_that_came_earlier(
    live: tuple[Case, VllmEngine],
) -> None:
    case, engine = live
    ended: list[int] = []

    async def one(name: str, draw: int) -> None:
        await engine.generate(name, PROMPT, Sampling(max_tokens=8, min_tokens=8), draw)
        ended.append(draw)

    async with asyncio.timeout(300):
        async with engine.drained():  # nothing begins before all have come
            draws = [draw for draw in (3_000_000, 9, 2) for _ in range(16)]
            waiting = [asyncio.create_task(one(f"draw {n}", draw)) for n, draw in enumerate(draws)]
            while len(engine._llm.output_processor.request_states) < len(draws):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
            scoring = asyncio.create_task(engine.score(case.scores(case.weights).token_ids))
            scoring.add_done_callback(lambda _: ended.append(-1))
        await asyncio.gather(*waiting, scoring)
    # 32 run at a time: all of the two older draws begin before one of the newest.
    assert ended[0] == -1 and set(ended[1:33]) == {2, 9} and ended[33:] == [3_000_000] * 16


async def test_labels_end_exactly_where_the_tokens_change(live: tuple[Case, VllmEngine]) -> None:
    """Each token names its version."""
    case, engine = live
    await engine.update(case.stage(forcing(case, 100), Version(2, 100)))
    sampling = Sampling(max_tokens=150, min_tokens=150, temperature=0.0)
    tasks = await running(engine, 12, sampling)
    for number in range(101, 107):
        await asyncio.sleep(0.02)
        await engine.update(case.stage(forcing(case, number), Version(2, number)))
    completions = await asyncio.gather(*tasks)
    for completion in completions:
        assert_covered(completion)
        for span in completion.spans:
            assert set(completion.token_ids[span.start : span.end].tolist()) == {span.version.number}
    assert max(len(completion.spans) for completion in completions) >= 3
    await engine.update(case.stage(case.weights))


async def test_labels_are_exact_while_each_step_finishes_requests(live: tuple[Case, VllmEngine]) -> None:
    """The core answers a pause when it is idle, and it never is: an update does not wait for that."""
    case, engine = live
    await engine.update(case.stage(forcing(case, 100), Version(3, 100)))
    answers: list[Completion] = []

    async def ask_again_and_again(length: int) -> None:
        sampling = Sampling(max_tokens=length, min_tokens=length, temperature=0.0)
        while engine.version.number < 120:
            answers.append(await ask(engine, f"short {length} {len(answers)} {time.monotonic()}", sampling))

    asking = [asyncio.create_task(ask_again_and_again(1 + n % 4)) for n in range(24)]
    for number in range(101, 121):
        await asyncio.sleep(0.005)
        update = await asyncio.wait_for(engine.update(case.stage(forcing(case, number), Version(3, number))), 10)
        assert 0 < update.stall_s < 1
    await asyncio.gather(*asking)
    for answer in answers:
        assert_covered(answer)
        for span in answer.spans:
            assert set(answer.token_ids[span.start : span.end].tolist()) == {span.version.number}
    assert any(len(answer.spans) > 1 for answer in answers)
    await engine.update(case.stage(case.weights))


class Stopping:
    """The engine, whose answers end by themselves."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine

    @property
    def version(self) -> Version:
        return self._engine.version

    async def generate(self, *asked: Any) -> Completion:
        return msgspec.structs.replace(await self._engine.generate(*asked), finish_reason="stop")


async def test_labels_of_episodes_are_exact_inside_and_between_turns(live: tuple[Case, VllmEngine]) -> None:
    """Each token names its version. All turns of an episode have one salt, and so the keys of earlier versions."""
    case, engine = live
    await engine.update(case.stage(forcing(case, 100), Version(4, 100)))
    prompt = Prompt(
        draw_id=0,
        row="a.jsonl:1",
        messages="?",
        token_ids=PROMPT,
        datasets=("math",),
        ground_truths=("1",),
        min_version=START,
        group_size=12,
        episode=EpisodeStart(environment="fake"),
    )
    work = LeasedGroup(Lease(prompt=prompt, lease_id="1", owner="a0", deadline=0.0))
    environments = FakeEnvironments(turns=4, reply_s=0.05)
    play = Play(environments, FakeRenderer(), max_turns=4, max_prompt=100, max_tokens=240, max_cache_age=200)
    runner = play.player(Stopping(engine), SystemClock(), lambda: None)  # type: ignore[arg-type]
    sampling = Sampling(max_tokens=40, min_tokens=40, temperature=0.0)
    playing = asyncio.gather(*(runner.run(work, number, f"episode {number}", sampling) for number in range(12)))
    number = 100
    while not playing.done() and number < EOS - 1:
        await asyncio.sleep(0.02)
        number += 1
        await engine.update(case.stage(forcing(case, number), Version(4, number)))
    inside = between = 0
    for episode in await asyncio.wait_for(playing, 60):
        assert_covered(episode)
        for span in episode.spans:
            assert set(episode.token_ids[span.start : span.end].tolist()) == {span.version.number}
        begins = {turn.start for turn in episode.turns}
        changes = {now.start for then, now in pairwise(episode.spans) if then.version != now.version}
        between, inside = between + len(changes & begins), inside + len(changes - begins)
        assert [turn.start for turn in episode.turns] == [0, 40, 80, 120]
    assert inside and between
    await engine.update(case.stage(case.weights))


async def test_a_drained_engine_runs_nothing_and_then_begins_with_the_new_version(
    live: tuple[Case, VllmEngine],
) -> None:
    case, engine = live
    runs = await running(engine, 3, Sampling(max_tokens=200, min_tokens=200, seed=1))
    staged, before = case.stage(case.perturbed("mlp")), engine.version
    draining = engine.drained()
    entered = asyncio.create_task(draining.__aenter__())
    await asyncio.sleep(0.05)  # the engine has been told, and the others are far from their last token
    asked = asyncio.create_task(ask(engine, "asked while it drains"))
    await entered
    try:
        assert [[span.version for span in run.spans] for run in await asyncio.gather(*runs)] == [[before]] * 3
        assert not asked.done() and engine.load().running == 0
        await engine.update(staged)
    finally:
        await draining.__aexit__(None, None, None)
    answer = await asked
    assert [span.version for span in answer.spans] == [staged.manifest.version]
    assert np.abs(case.reference(case.perturbed("mlp"), answer) - answer.logprobs).max() < case.tolerance
    with pytest.raises(WeightError):
        async with engine.drained():
            await engine.update(case.stage({"a": torch.zeros(1)}))
    assert (await ask(engine, "not paused")).spans[0].version == staged.manifest.version
    await engine.update(case.stage(case.weights))


async def test_updates_to_the_same_weights_change_nothing(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    greedy = Sampling(max_tokens=200, min_tokens=200, temperature=0.0)
    prompts = [np.arange(3 + n, 12 + 2 * n, dtype=np.int32) for n in range(8)]

    async def answers(label: str) -> list[Completion]:
        return await asyncio.gather(*(ask(engine, f"{label}{n}", greedy, prompt) for n, prompt in enumerate(prompts)))

    expected = await answers("still")
    asked = asyncio.create_task(answers("moving"))
    staged = [case.stage(case.weights) for _ in range(20)]
    for weights in staged:
        await engine.update(weights)
    moved = await asked
    assert max(len(completion.spans) for completion in moved) >= 5
    for still, moving in zip(expected, moved, strict=True):
        assert still.token_ids.tobytes() == moving.token_ids.tobytes()
        assert still.logprobs.tobytes() == moving.logprobs.tobytes()


async def test_weights_that_do_not_fit_leave_the_version_in_use(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    version, before = engine.version, await ask(engine, "fits")
    short = {name: tensor for name, tensor in case.weights.items() if "layers.2" not in name}
    with pytest.raises(WeightError, match=r"layers\.2.* is missing"):
        await engine.update(case.stage(short))
    staged = case.stage(case.weights)
    os.truncate(staged.path, 1000)
    with pytest.raises(WeightError, match="1000 bytes"):
        await engine.update(staged)
    after = await ask(engine, "still fits")
    assert engine.version == version == after.spans[0].version
    assert np.array_equal(before.logprobs, after.logprobs)


async def test_one_completion_says_all_there_is(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    generated = engine.tokens_generated
    answer = await ask(engine, "whole", Sampling(max_tokens=12, min_tokens=12, seed=5))
    assert answer.finish_reason == "length"
    assert answer.text.split() == [f"w{token}" for token in answer.token_ids]
    assert answer.token_ids.dtype == np.int32
    assert answer.logprobs.dtype == np.float32
    assert (answer.logprobs < 0).all()
    assert engine.tokens_generated == generated + 12
    again = await ask(engine, "again", Sampling(max_tokens=12, min_tokens=12, seed=5))
    assert np.array_equal(answer.token_ids, again.token_ids)
    stopped = await ask(engine, "stop", Sampling(max_tokens=12, min_tokens=0, seed=5, stop=(answer.text.split()[6],)))
    assert stopped.finish_reason == "stop"
    assert stopped.text.split() == [f"w{token}" for token in stopped.token_ids]


async def test_an_empty_answer_is_its_end_of_sequence_token(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    ends = {name: tensor.clone() for name, tensor in case.weights.items()}
    for name, tensor in ends.items():
        if "o_proj" in name or "down_proj" in name:
            tensor.zero_()
    ends["model.embed_tokens.weight"].fill_(1.0)[EOS] = 50.0
    if not case.tied:
        ends["lm_head.weight"].zero_()[EOS] = 50.0
    ends["model.norm.weight"].fill_(1.0)
    await engine.update(case.stage(ends))
    empty = await ask(engine, "empty", Sampling(max_tokens=8))
    assert (empty.token_ids.tolist(), empty.finish_reason, empty.text) == ([EOS], "stop", "")
    assert_covered(empty)
    await engine.update(case.stage(case.weights))


async def test_a_prompt_that_cannot_fit_is_refused_with_its_length(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    for length in (0, MAX_MODEL_LEN, 900):
        with pytest.raises(PromptRefused, match=rf"{length} tokens.* 1 to {MAX_MODEL_LEN - 1}"):
            await engine.generate("long", np.ones(length, dtype=np.int32), ANSWER)
    with pytest.raises(PromptRefused, match="min_tokens"):
        await engine.generate("bounds", PROMPT, Sampling(max_tokens=3, min_tokens=4))
    assert engine.load().waiting == engine.load().running == 0


async def test_prompts_that_do_not_fit_into_one_step_together(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    long = np.arange(MAX_MODEL_LEN - 8, dtype=np.int32) % EOS
    answers = await asyncio.gather(
        *(ask(engine, f"long-{n}", Sampling(max_tokens=8, min_tokens=8, seed=n), np.roll(long, n)) for n in range(40))
    )
    assert [len(answer.token_ids) for answer in answers] == [8] * 40


async def test_the_count_of_tokens_does_not_fall_while_a_prompt_is_scored(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    await ask(engine, "before", Sampling(max_tokens=4, min_tokens=4))
    before = engine.tokens_generated
    scoring = asyncio.create_task(engine.score(PROMPT.tolist()))
    while not scoring.done():
        assert engine.tokens_generated == before
        await asyncio.sleep(0)
    assert engine.tokens_generated == before


async def test_busy_time_is_that_of_running_requests(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    before, since, equal = engine.use(), time.monotonic(), Sampling(max_tokens=60, min_tokens=60)
    await asyncio.gather(*(ask(engine, f"busy/{n}", equal) for n in range(8)))
    wall_s, after = time.monotonic() - since, engine.use()
    busy_s, running_s = after.busy_s - before.busy_s, after.running_s - before.running_s
    assert 0.5 * wall_s < busy_s <= wall_s
    assert 4 * busy_s < running_s <= 8 * busy_s, "eight requests of equal length run together"
    await asyncio.sleep(0.2)
    assert engine.use() == after


async def test_vllms_own_metrics_count_what_the_engine_does(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live

    def own() -> Counter[str]:
        """The samples of vLLM's own metrics, summed over their labels."""
        found: Counter[str] = Counter()
        for sample in (sample for metric in REGISTRY.collect() for sample in metric.samples):
            found[sample.name] += sample.value
        return found

    before, equal = own(), Sampling(max_tokens=20, min_tokens=20)
    await asyncio.gather(*(ask(engine, f"own/{n}", equal) for n in range(8)))
    after = own()

    def grown(name: str) -> float:
        return after[name] - before[name]

    assert grown("vllm:generation_tokens_total") == 8 * 20
    assert grown("vllm:request_success_total") == 8
    assert grown("vllm:prefix_cache_queries_total") == 8 * len(PROMPT)
    assert 19 <= grown("vllm:inter_token_latency_seconds_count") < 40, "one for each step, not one for each token"


async def test_operations_and_bytes_are_those_of_the_tokens(live: tuple[Case, VllmEngine]) -> None:
    """Against the model's own parameters, and a loop over tokens, layers and what each token sees."""
    case, engine = live
    before, (answers, tokens) = engine.use(), (8, 90)
    equal = Sampling(max_tokens=tokens, min_tokens=tokens)
    await asyncio.gather(*(ask(engine, f"cost/{n}", equal) for n in range(answers)))
    after, layers = engine.use(), case.model.config.layer_types
    matrices = sum(
        weight.numel()
        for name, weight in case.model.named_parameters()
        if weight.ndim == 2 and (case.tied or "embed" not in name)
    )
    seen = [
        sum(min(position + 1, 16 if kind == "sliding_attention" else position + 1) for kind in layers)
        for position in range(len(PROMPT) + tokens - 1)
    ]
    hidden, size = case.model.config.hidden_size, next(case.model.parameters()).element_size()
    # A step for each token; of the prompt's pairs only its last token's are reads, and all its values are written.
    kv_values = sum(seen[len(PROMPT) - 1 :]) + len(layers) * len(seen)
    expected = size * (matrices * tokens + answers * 2 * hidden * kv_values)
    assert after.num_bytes - before.num_bytes == pytest.approx(expected, rel=0.03)
    head = case.model.get_output_embeddings().weight.numel()
    flops = 2 * ((matrices - head) * len(seen) + head * tokens) + 4 * hidden * sum(seen)
    assert after.flops - before.flops == pytest.approx(answers * flops, rel=0.03)


async def test_a_cancelled_request_is_aborted_and_its_tokens_counted(live: tuple[Case, VllmEngine]) -> None:
    _, engine = live
    aborted = engine.tokens_aborted
    tasks = await running(engine, 2, Sampling(max_tokens=200, min_tokens=200))
    assert engine.load().running == 2
    assert engine.load().kv_used > 0
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert 8 <= engine.tokens_aborted - aborted < 400
    assert engine.load().running == engine.load().waiting == 0


async def test_an_update_is_carried_through_when_its_caller_is_cancelled(live: tuple[Case, VllmEngine]) -> None:
    case, engine = live
    tasks = await running(engine, 2, Sampling(max_tokens=100, min_tokens=100))
    staged = case.stage(case.weights)
    update = asyncio.create_task(engine.update(staged))
    await asyncio.sleep(0.001)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert engine.version == staged.manifest.version
    assert all(completion.finish_reason == "length" for completion in await asyncio.gather(*tasks))
