"""The judge that ships: as a process, started by the verifiers, and beside others on a row."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from olmorl.config import Judge, RewardModel, Verifiers
from olmorl.errors import Unscorable
from olmorl.messages import Completion, Prompt
from olmorl.verifiers.judge.heuristics import agreement, quality
from olmorl.verifiers.judge.registry import model_verifiers
from olmorl.verifiers.scorer import VerifierScorer

RIGHT = "The capital of France is Paris."


def test_grades_by_hand() -> None:
    assert agreement("red cat", "the red cat") == pytest.approx(4 / 5)
    assert agreement("red red red", "red cat") == pytest.approx(2 / 5)
    assert agreement("", "cat") == agreement("...", "") == 0.0
    # "what" and "cats" are the long words: one of them is enough, and "so" twice in three words is 2/3 of variety.
    assert quality("so, cats, so", "what do cats do") == pytest.approx(2 / 3)
    assert quality("dogs", "what do cats do") == 0.0
    many = " ".join(f"w{n}" for n in range(239))
    assert quality(f"cats {many}", "what do cats do") == pytest.approx(0.5)


async def test_the_server_as_a_process() -> None:
    arguments = ("-m", "olmorl.verifiers.judge.server", "--port", "0")
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()[-1]
        async with aiohttp.ClientSession() as session:
            for body in ({"kind": "earthquake"}, {"kind": "500", "minutes": 5}):
                async with session.post(f"{url}/fault", json=body) as response:
                    assert response.status == 400
                    assert "kinds: none, 429" in await response.text()
            for body in ({}, {"messages": [{"role": "user", "content": "How do you do?"}]}, []):
                async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                    assert response.status == 400
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_local_judge_lives_as_long_as_the_verifiers(
    make_prompt: Callable[..., Prompt], make_completion: Callable[..., Completion]
) -> None:
    rules = model_verifiers(Verifiers(judge=Judge(url="local"), reward_model=RewardModel(url="local")))
    prompt = make_prompt(messages="What is the capital of France?")
    for name, rule in rules.items():
        asked = [rule.verify_row(prompt, make_completion(RIGHT), f"{RIGHT}{' ' * n}", RIGHT) for n in range(3)]
        rewards = [verdict.reward for verdict in await asyncio.gather(*asked)]
        assert rewards[0] == rewards[1] == rewards[2] is not None and rewards[0] > 0.9, name
        await rule.close()
        await rule.close()


@pytest.mark.parametrize(("squash", "reward"), [("sigmoid", 0.880797), ("clamp", 1.0)])
async def test_a_score_becomes_a_reward(squash: str, reward: float, asker: Callable[..., Any], service: Any) -> None:
    judge = asker(squash=squash, zero_and_unit=(1.0, 0.5))
    await service.fault("reply", text="2.0")
    assert (await judge.ask("Berlin", "reward_model")).reward == pytest.approx(reward, abs=1e-6)
    await service.fault("reply", text="-90000")
    assert (await judge.ask("Rome", "reward_model")).reward == 0.0
    await service.fault("reply", text="1.0" if squash == "sigmoid" else "1.25")
    assert (await judge.ask("Nice", "reward_model")).reward == pytest.approx(0.5)


async def test_a_group_with_a_judge_and_others_on_its_row(
    service: Any,
    make_prompt: Callable[..., Prompt],
    make_completion: Callable[..., Completion],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("olmorl.verifiers.judge.service.client.BREAKER_THRESHOLD", 2)
    judge = Judge(url=service.url, timeout_s=0.3)
    scorer = VerifierScorer(Verifiers(judge=judge, weights={"tag_count": 0.5}))
    prompt = make_prompt(("general-quality_ref", "tag_count"), (RIGHT, ""), messages="What is the capital of France?")
    texts = [f"<think>Is it Rome?</think>{RIGHT}", "<think></think>:", f"<think>{RIGHT}", "Berlin", f"</think>{RIGHT}"]
    group = [make_completion(text, index) for index, text in enumerate(texts)]
    await scorer.start()
    try:
        await service.fault("hang", seconds=0.7)
        verdicts = await asyncio.gather(*(scorer.verify(prompt, member) for member in group))
        group = [replace(member, verdicts=v) for member, v in zip(group, verdicts, strict=True)]
        rewards = [member.reward for member in await scorer.combine(prompt, group)]
        # Paris without its thinking; contentless; never answered; wrong; Paris again.
        assert rewards == [1 + 0.5 * 2 / 4, 0 + 0.5 * 2 / 4, 0 + 0.5 * 1 / 4, 0.0, 1 + 0.5 * 1 / 4]
        assert scorer.counters["judge"].openings == 1
        await service.fault("refusal")
        group[3] = replace(group[3], verdicts=await scorer.verify(prompt, make_completion("Rome")))
        with pytest.raises(Unscorable, match="judge_unreadable"):
            await scorer.combine(prompt, group)
    finally:
        await scorer.stop()
