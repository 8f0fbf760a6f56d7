"""One question through one engine, and what the learner makes of each token of the answer.

The two run in processes of their own, where an actor and a rank would run. What they must agree on is what training
depends on: tokens, chat template, weights, precision and attention.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from olmorl import config
from olmorl.actors.weight_proof import TOLERANCE
from olmorl.deploy import wiring
from olmorl.errors import ModelError
from olmorl.ports import Sampling

NUM_TOKENS = 32
QUESTION = [{"role": "user", "content": "What is 17 + 25? Think before you answer."}]


class EngineAnswer(NamedTuple):
    """The completion that the engine sampled."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    text: str


def generate(tree: Mapping[str, Any], core: int | None) -> EngineAnswer:
    """Start an engine, sample one answer, stop it. Runs where an actor would."""
    return asyncio.run(_ask(config.build(tree), core))


async def _ask(settings: config.Config, core: int | None) -> EngineAnswer:
    from olmorl.learner.data.loader import open_tokenizer

    tokenizer = open_tokenizer(settings.model)
    given = settings.data.chat_template_kwargs
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=False, **given)
    engine = wiring.engine(settings, core)
    try:
        await engine.start(None)
        sampling = Sampling(temperature=settings.sampling.temperature, max_tokens=NUM_TOKENS, seed=settings.run.seed)
        said = await engine.generate("preflight", np.array(prompt, np.int32), sampling)
    finally:
        await engine.stop()
    return EngineAnswer(list(prompt), said.token_ids.tolist(), said.logprobs.tolist(), said.text)


def compare(tree: Mapping[str, Any], answer: EngineAnswer) -> str:
    """Score the answer's tokens with the learner's own code. Runs where a rank would.

    Raises:
        ModelError: learner and engine do not mean the same by the same tokens.
    """
    settings = config.build(tree)
    learner = np.array(logprobs(settings, answer))
    difference = np.abs(learner - answer.logprobs)
    mean, largest = float(difference.mean()), float(difference.max())
    allowed = TOLERANCE[settings.model.dtype]
    if not mean <= allowed:
        raise ModelError(
            f"engine and learner disagree on the log-probability of {len(answer.tokens)} sampled tokens: by {mean:.3g} "
            f"nats in the mean ({allowed:g} is allowed), by {largest:.3g} at most; see that model.path, "
            'model.tokenizer and model.dtype are meant for each other, and try learner.attention = "eager"'
        )
    return f"{len(answer.tokens)} tokens; log-probabilities differ by {mean:.2g} in the mean, {largest:.2g} at most"


def logprobs(settings: config.Config, answer: EngineAnswer) -> list[float]:
    """Of the answer's tokens, by the policy that would be trained. Raises ModelError for text that reads otherwise."""
    import torch

    from olmorl.learner.batching.packing import row_arrays
    from olmorl.learner.data.loader import open_tokenizer
    from olmorl.learner.trainer import model as models
    from olmorl.learner.trainer.policy import PackedPolicy, policy_row
    from olmorl.learner.trainer.process_group import training_device
    from olmorl.messages import Sample

    decoded = open_tokenizer(settings.model).decode(answer.tokens, skip_special_tokens=True)
    if decoded.strip() != answer.text.strip():
        raise ModelError(f"engine and learner read the same tokens as {answer.text!r:.80} and {decoded!r:.80}")
    device = training_device(settings.learner.device)
    model = models.load(settings.model, settings.learner.attention, device).to(device).eval()
    policy = PackedPolicy(model, settings.sampling.temperature, settings.learner.logprob_chunk)
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
    with torch.no_grad():
        logprobs_T, _ = policy(policy_row(row_arrays([sample]), device))
    found: list[float] = logprobs_T[len(answer.prompt) :].float().tolist()
    return found
