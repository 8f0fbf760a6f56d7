"""Compares the log-probabilities of one sampled answer in the engine and in the learner.

Engine and ranks are placed, sharded and configured as in the run. They must agree on tokens, chat template, weights,
precision and attention, because training depends on these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from olmorl import config
from olmorl.actors.vllm_engine import reaper
from olmorl.deploy import wiring
from olmorl.deploy.processes import rank_process
from olmorl.deploy.processes.follower_process import Followers
from olmorl.errors import ModelError
from olmorl.messages import Completion
from olmorl.network import way_to
from olmorl.ports import Sampling

NUM_TOKENS = 32
QUESTION = [{"role": "user", "content": "What is 17 + 25? Think before you answer."}]


class EngineAnswer(NamedTuple):
    """The completion that the engine sampled."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    text: str


class AskedEngine:
    """The process of an engine that answers one question."""

    def __init__(self, tree: Mapping[str, Any], core: int | None) -> None:
        self._settings = config.build(tree)
        self._core = core

    def generate(self) -> EngineAnswer:
        """Start the engine, sample one answer, stop it."""
        try:
            return asyncio.run(_ask(self._settings, self._core))
        finally:
            reaper.unlink_own_semaphores()


async def _ask(settings: config.Config, core: int | None) -> EngineAnswer:
    from olmorl.learner.data.loader import open_tokenizer

    tokenizer = open_tokenizer(settings.model)
    given = settings.data.chat_template_kwargs
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False, **given)
    sampling = Sampling(temperature=settings.sampling.temperature, max_tokens=NUM_TOKENS, seed=settings.run.seed)
    followers = Followers(settings, "preflight-engine", "", core)
    engine = wiring.engine(settings, core, node=followers.leading_node)

    async def answer() -> Completion:
        try:
            await engine.start(None)
            return await engine.generate("preflight", np.array(prompt, np.int32), sampling)
        finally:
            await engine.stop()

    said = await followers.alongside(answer())
    return EngineAnswer(list(prompt), said.token_ids.tolist(), said.logprobs.tolist(), said.text)


class AskedRank:
    """The process of a rank that scores an answer. All ranks get the same calls."""

    def __init__(self, tree: Mapping[str, Any], rank: int, core: int | None) -> None:
        self._settings = config.build(tree)
        self._rank = rank
        self._core = core
        self._address = ""

    def meeting_point(self) -> str:
        """A free `host:port` of this rank's host."""
        return rank_process.meeting_point(self._settings)

    def join(self, meeting_point: str, world: int) -> None:
        """Meet the other ranks."""
        from olmorl.learner.trainer.process_group import Ranks, join, training_device

        rank_process.take_core(self._core)
        self._address = meeting_point
        join(Ranks(self._rank, world, meeting_point), training_device(self._settings.learner.device))

    def all_gather(self, outside: int) -> tuple[float, tuple[str, float] | None]:
        """Bytes per second from `outside` other ranks, and the speed that the links of this host should give."""
        from olmorl.learner.trainer import process_group

        device = process_group.training_device(self._settings.learner.device)
        speed = process_group.all_gather_bytes_per_s(outside, device)
        return speed, process_group.links(way_to(self._address).interface)

    def score(self, answer: EngineAnswer) -> list[float]:
        """Log-probabilities of the answer's tokens, by the policy that would be trained."""
        from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer

        trainer = wiring.trainer(self._settings, self._rank, self._address)
        assert isinstance(trainer, DeepSpeedTrainer)
        try:
            return _score(trainer, answer)
        finally:
            trainer.close()
            reaper.unlink_own_semaphores()


def _score(trainer: Any, answer: EngineAnswer) -> list[float]:
    from olmorl.learner.batching.packing import row_arrays
    from olmorl.messages import Sample

    size = len(answer.tokens)
    sample = Sample(
        draw_id=0,
        prompt_ids=np.array(answer.prompt, np.int32),
        completion_ids=np.array(answer.tokens, np.int32),
        behaviour_logprobs=np.array(answer.logprobs, np.float32),
        loss_mask=np.ones(size, np.bool_),
        lags=np.zeros(size, np.int32),
        advantage=0.0,
    )
    logprobs_T = trainer.score(row_arrays([sample]))
    found: list[float] = logprobs_T[len(answer.prompt) :].float().tolist()
    return found


def compare(settings: config.Config, answer: EngineAnswer, learner: Sequence[float]) -> str:
    """Compare the log-probabilities of the engine and of the learner.

    Raises:
        ModelError: learner and engine read the tokens differently, or disagree on their probabilities.
    """
    from olmorl.learner.data.loader import open_tokenizer

    decoded = open_tokenizer(settings.model).decode(answer.tokens, skip_special_tokens=True)
    if decoded.strip() != answer.text.strip():
        raise ModelError(f"engine and learner read the same tokens as {answer.text!r:.80} and {decoded!r:.80}")
    difference = np.abs(np.array(learner) - answer.logprobs)
    mean, largest = float(difference.mean()), float(difference.max())
    allowed = wiring.proof_tolerance(settings)
    if not mean <= allowed:
        raise ModelError(
            f"engine and learner disagree on the log-probability of {len(answer.tokens)} sampled tokens: by {mean:.3g} "
            f"nats in the mean ({allowed:g} is allowed), by {largest:.3g} at most; see that model.path, "
            'model.tokenizer and model.dtype are meant for each other, and try learner.attention = "eager"; a pair '
            "that differs on purpose (a quantized engine) needs weights.proof_tolerance"
        )
    return f"{len(answer.tokens)} tokens; log-probabilities differ by {mean:.2g} in the mean, {largest:.2g} at most"
