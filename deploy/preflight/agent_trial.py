"""Runs the command of `episodes.agent` once before a start, with a policy whose answers are made up."""

from __future__ import annotations

from typing import Any

import numpy as np

from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import SystemClock
from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.learner.data.loader import open_tokenizer
from olmorl.messages import Completion, Lease, Prompt, Span, TokenIds, Version
from olmorl.ports import Sampling

ANSWER = "The answer is 1."


async def play_once(settings: Config, prompt: Prompt) -> Completion:
    """Returns the episode. Raises Unscorable if the agent fails."""
    play = wiring.play(settings)
    assert play is not None
    engine: Any = _MadeUp(open_tokenizer(settings.model))
    player = play.player(engine, SystemClock(), lambda: None)
    await player.start()
    try:
        work = LeasedGroup(Lease(prompt=prompt, lease_id="trial", owner="trial", deadline=0.0))
        return await player.run(work, 0, "trial", Sampling(max_tokens=settings.sampling.max_tokens))
    finally:
        await player.stop()


class _MadeUp:
    """Gives the same answer to every prompt."""

    version = Version(0, 0)

    def __init__(self, tokenizer: Any) -> None:
        ids = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
        self._token_ids = np.array([*ids, tokenizer.eos_token_id], np.int32)

    async def generate(self, request_id: str, prompt: TokenIds, sampling: Sampling, *_: Any) -> Completion:
        token_ids = self._token_ids[: sampling.max_tokens]
        return Completion(
            index=0,
            token_ids=token_ids,
            logprobs=np.zeros(len(token_ids), np.float32),
            spans=(Span(self.version, 0, len(token_ids)),),
            finish_reason="stop" if len(token_ids) == len(self._token_ids) else "length",
            text=ANSWER,
        )
