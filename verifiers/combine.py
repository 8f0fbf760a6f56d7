"""The Scorer: each verifier's verdict on a completion as it finishes, then one reward for each of a group."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from olmorl.config import Verifiers
from olmorl.errors import DeadlinePassed, Unscorable
from olmorl.messages import Completion, Prompt, Verdict
from olmorl.verifiers.checks import numbers
from olmorl.verifiers.extraction import strip_thinking
from olmorl.verifiers.functions import LARGEST_REWARD, FunctionScorer
from olmorl.verifiers.nursery import StartFailed
from olmorl.verifiers.pool import Pool
from olmorl.verifiers.registry import WARM, close, rules, unknown


class VerifierScorer:
    """A reward is made of verdicts only; what could not be scored is never one."""

    def __init__(self, settings: Verifiers) -> None:
        """Raises RewardFunctionError for a malformed entry of `functions`."""
        self._settings = settings
        self._pool = Pool(
            settings.workers,
            settings.timeout_s,
            settings.memory_mib,
            settings.recycle_after,
            settings.retries,
            preload=WARM,
        )
        self._rules = rules(settings, self._pool)
        self._functions = FunctionScorer(settings)
        self._weights = {function.name: function.weight for function in self._functions.functions} | settings.weights

    @property
    def counters(self) -> dict[str, Any]:
        """What each pool did, by what it runs, and what the rules count of their own."""
        own = {name: counters for rule in self._rules.values() for name, counters in rule.counters.items()}
        return {"rules": self._pool.counters, "functions": self._functions.counters, **own}

    def counts(self) -> dict[str, dict[str, float]]:
        """The counters as numbers, and the checks that wait for a worker as `queue_depth`."""
        found = {part: numbers(counters) for part, counters in self.counters.items()}
        found["rules"]["queue_depth"] = self._pool.queue_depth
        found["functions"]["queue_depth"] = self._functions.queue_depth
        return found

    async def start(self) -> None:
        """Bring the workers up. Raises RewardFunctionError or DeadlinePassed, with the cause."""
        try:
            await self._functions.start()
            await self._pool.start()
        except StartFailed as error:
            await self._functions.stop()
            raise DeadlinePassed(f"the verifiers' worker processes did not start: {error}") from None

    async def stop(self) -> None:
        """End all workers and whatever the rules started."""
        await close(self._rules)
        await asyncio.gather(self._pool.stop(), self._functions.stop())

    async def problem(self, name: str, label: Any) -> str | None:
        """Why the built-in verifier `name` cannot use a label, or None when it can."""
        rule = self._rules.get(name)
        if rule is None:
            return unknown(name)
        return None if rule.usable(label) else await rule.problem(label)

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        """Each built-in verifier's verdict, by name; a verifier named twice is `name` and `name#2`."""
        text = strip_thinking(
            completion.text, self._settings.think_start, self._settings.think_end, prompt.thinking_opened
        )
        keys = _keys(prompt.datasets)
        checks = [
            self._verdict(name, prompt, completion, text, label)
            for name, label in zip(prompt.datasets, prompt.ground_truths, strict=True)
        ]
        verdicts = await asyncio.gather(*checks) if len(checks) > 1 else [await check for check in checks]
        return dict(zip(keys, verdicts, strict=True))

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        """Add the user functions' verdicts and weigh all into `reward`. Raises Unscorable."""
        extra = await self._functions.score(prompt, completions) if self._functions.functions else []
        keys = _keys(prompt.datasets)
        scored = []
        for index, completion in enumerate(completions):
            verdicts = completion.verdicts | (extra[index] if extra else {})
            missing = [key for key in keys if key not in verdicts]
            if missing:
                raise Unscorable("missing_verdict", f"completion {completion.index} has none of {', '.join(missing)}")
            reward = weigh(verdicts, self._weights, self._settings.combine)
            scored.append(replace(completion, verdicts=verdicts, reward=reward))
        return tuple(scored)

    async def _verdict(
        self, name: str, prompt: Prompt, completion: Completion, text: str | None, label: Any
    ) -> Verdict:
        rule = self._rules.get(name)
        if rule is None:
            return Verdict(reward=None, error_kind="unknown_verifier", detail=unknown(name))
        started = time.perf_counter()
        verdict = await rule.verify_row(prompt, completion, text, label)
        return replace(_sane(verdict), seconds=time.perf_counter() - started)


def weigh(verdicts: Mapping[str, Verdict], weights: Mapping[str, float], how: str) -> float:
    """One reward from the verdicts that apply. Weights are 1 where `weights` has none.

    Args:
        how: `sum` of the weighted rewards, their weighted `mean`, or their `product`.

    Raises:
        Unscorable: a verdict is an error, none applies, or the result is not finite or beyond `LARGEST_REWARD`.
    """
    for name, verdict in verdicts.items():
        if verdict.error_kind is not None:
            raise Unscorable(verdict.error_kind, f"{name}: {verdict.detail}")
    applied = {name: verdict.reward for name, verdict in verdicts.items() if verdict.reward is not None}
    if not applied:
        raise Unscorable("nothing_applies", f"no verifier applies to the row (asked: {', '.join(verdicts) or 'none'})")
    weighted = [weights.get(name, 1.0) * reward for name, reward in applied.items()]
    total = sum(weights.get(name, 1.0) for name in applied)
    if how == "mean" and not total:
        raise Unscorable("weights", f"the weights of {', '.join(applied)} add up to 0")
    reward = math.prod(weighted) if how == "product" else sum(weighted) / (total if how == "mean" else 1.0)
    if not abs(reward) <= LARGEST_REWARD:  # nor NaN
        raise Unscorable("not_finite", f"the combined reward is {reward}")
    return reward


def _keys(names: Sequence[str]) -> list[str]:
    seen: dict[str, int] = {}
    keys = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return keys


def _sane(verdict: Verdict) -> Verdict:
    """A built-in verifier gives a reward in [0, 1] or an error; anything else is an error of its own."""
    if verdict.error_kind is None and (verdict.reward is None or not 0.0 <= verdict.reward <= 1.0):
        return replace(verdict, reward=None, error_kind="out_of_range", detail=f"a reward of {verdict.reward}")
    return verdict
