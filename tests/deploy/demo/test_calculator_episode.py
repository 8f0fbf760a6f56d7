"""An episode with the real template, the real calculator in its process, and a scripted policy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from olmorl.actors.episodes.runner import EpisodeRunner, Play
from olmorl.actors.episodes.suffix import TemplateRenderer
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import SystemClock
from olmorl.config import Episodes, Objective, Verifiers
from olmorl.deploy.demo.calculator import CalculatedSum
from olmorl.deploy.demo.tiny_model import build_tokenizer
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching import samples
from olmorl.learner.storage.ledger_state import Start
from olmorl.messages import Completion, EpisodeStart, Group, Lease, Prompt, Span, TokenIds, Version
from olmorl.ports import Sampling
from olmorl.verifiers.environments.forked_environments import ForkedEnvironments

CALCULATOR = "olmorl.deploy.demo.calculator:Calculator"


class Careful:
    """Answers as a careful worker, from the text of the prompt alone."""

    version = Version(1, 0)

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.prompts: list[str] = []

    async def generate(self, request_id: str, prompt: TokenIds, sampling: Sampling, *_: Any) -> Completion:
        text = self._tokenizer.decode(prompt)
        self.prompts.append(text)
        numbers = re.search(r"What is ([\d+]+)\?", text)
        assert numbers is not None
        said = CalculatedSum(tuple(map(int, numbers[1].split("+")))).play(careful=True)
        answer = said[2 * (text.count("<|assistant|>") - 1)]
        ids = np.array(self._tokenizer(answer + "<|end|>")["input_ids"], np.int32)[: sampling.max_tokens]
        return Completion(
            index=0,
            token_ids=ids,
            logprobs=np.full(len(ids), -0.5, np.float32),
            spans=(Span(self.version, 0, len(ids)),),
            finish_reason="stop" if ids[-1] == self._tokenizer.eos_token_id else "length",
            text=answer,
        )


async def test_a_careful_worker_gets_the_sum_by_its_calls() -> None:
    tokenizer = build_tokenizer(256)
    question = [{"role": "user", "content": "What is 27+85+4?"}]
    asked = tokenizer(tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True))["input_ids"]
    prompt = Prompt(
        draw_id=0,
        row="a.jsonl:1",
        messages=question,
        token_ids=np.array(asked, np.int32),
        datasets=("math",),
        ground_truths=("116",),
        group_size=1,
        min_version=Version(1, 0),
        episode=EpisodeStart(environment=CALCULATOR),
    )
    environments = ForkedEnvironments(Episodes(environment=CALCULATOR), Verifiers())
    renderer = TemplateRenderer(tokenizer, [tokenizer.eos_token_id])
    engine: Any = Careful(tokenizer)
    play = Play(environments, renderer, max_turns=8, max_prompt=64, max_tokens=224, max_cache_age=2)
    await environments.start()
    try:
        work = LeasedGroup(Lease(prompt=prompt, lease_id="1", owner="a0", deadline=0.0))
        runner = EpisodeRunner(engine, play, SystemClock(), lambda: None)
        episode = await runner.run(work, 0, "train/1/0", Sampling(max_tokens=24))
    finally:
        await environments.stop()
    assert (episode.exit, episode.text, work.num_tokens) == ("done", "\\boxed{116}", len(episode.token_ids))
    assert engine.prompts[-1] == (
        "<|user|>What is 27+85+4?<|assistant|>calc(27+85+4)<|end|><|user|>112+4<|assistant|>"
        "calc(112+4)<|end|><|user|>116<|assistant|>"
    )
    group = Group(prompt=prompt, completions=(episode,), actor="a0", started_at=0.0, finished_at=1.0)
    assert samples.defect(group) == "no completion has a reward"
    (sample,) = samples.samples(
        group, 0, max_lag=2, max_tokens=224, starts=[Start(1, 0, 0)], switches=resolve(Objective(), 224)
    )
    whole = tokenizer.decode([*sample.prompt_ids, *sample.completion_ids])
    assert whole == engine.prompts[-1] + "\\boxed{116}<|end|>", "the learner sees what the engine saw"
