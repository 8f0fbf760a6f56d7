"""The scorer. Each verifier judges a completion when it finishes; then each completion of the group gets one reward."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from olmorl.config import Distillation, HttpService, Verifiers
from olmorl.errors import DeadlinePassed, Unscorable
from olmorl.messages import REFERENCE, TEACHER, TRAIN_LANE, Completion, Floats, Prompt, Verdict
from olmorl.solved import is_solved
from olmorl.verifiers.check_outcomes import numbers
from olmorl.verifiers.functions.function_scorer import LARGEST_REWARD, FunctionScorer
from olmorl.verifiers.math.extraction import strip_thinking
from olmorl.verifiers.own_verifier import LOAD
from olmorl.verifiers.pool.fork_server import WorkerStartFailed
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.registry import WARM, all_verifiers, close, numbered, unknown
from olmorl.verifiers.teachers import Teachers, served_reference

log = logging.getLogger(__name__)


class VerifierScorer:
    """Every reward is a combination of verdicts. An error of a verifier never becomes a reward."""

    def __init__(
        self,
        settings: Verifiers,
        max_steps: int = 0,
        distillation: Distillation | None = None,
        reference: HttpService | None = None,
    ) -> None:
        """Raises RewardFunctionError for a malformed entry of `functions`. `max_steps` is passed to the functions.

        With `distillation`, training completions also have a verdict of their teacher, if their row has one; with a
        `reference`, each has a verdict of that.
        """
        self._settings = settings
        self._pool = Pool(
            settings.workers,
            settings.timeout_s,
            settings.memory_mib,
            preload=WARM,
            setup=(LOAD, settings.own) if settings.own else None,
        )
        self._verifiers = all_verifiers(settings, self._pool)
        self._token_scorers: dict[str, Teachers] = {}
        if distillation and distillation.teachers:
            self._token_scorers[TEACHER] = Teachers(distillation)
        if reference:
            self._token_scorers[REFERENCE] = served_reference(reference)
        self._verifiers |= self._token_scorers
        self._needs_reward = distillation is None or not distillation.is_alone
        self._functions = FunctionScorer(settings, max_steps)
        self._weights = {function.name: function.weight for function in self._functions.functions} | settings.weights

    @property
    def counters(self) -> dict[str, Any]:
        """The counters of each pool, by its task, and the counters of the verifiers themselves."""
        own = {name: counters for verifier in self._verifiers.values() for name, counters in verifier.counters.items()}
        return {"rules": self._pool.counters, "functions": self._functions.counters, **own}

    def counts(self) -> dict[str, dict[str, float]]:
        """The counters as numbers. `queue_depth` is the number of checks that wait for a worker."""
        found = {part: numbers(counters) for part, counters in self.counters.items()}
        found["rules"]["queue_depth"] = self._pool.queue_depth
        found["functions"]["queue_depth"] = self._functions.queue_depth
        return found

    async def start(self) -> None:
        """Start the workers. Raises RewardFunctionError or DeadlinePassed, with the cause."""
        try:
            await self._functions.start()
            await self._pool.start()
        except WorkerStartFailed as error:
            await self._functions.stop()
            raise DeadlinePassed(f"the verifiers' worker processes did not start: {error}") from None

    async def stop(self) -> None:
        """End all workers and everything that the verifiers started."""
        await close(self._verifiers)
        await asyncio.gather(self._pool.stop(), self._functions.stop())

    async def problem(self, name: str, label: Any) -> str | None:
        """Why the built-in verifier `name` cannot use a label; None if it can."""
        verifier = self._verifiers.get(name)
        if verifier is None:
            return unknown(name, list(self._verifiers))
        return None if verifier.usable(label) else await verifier.problem(label)

    async def verify(self, prompt: Prompt, completion: Completion) -> dict[str, Verdict]:
        """The verdict of each built-in verifier, by name. The second use of a name is called `name#2`."""
        text = None if completion.episode is UNSET else completion.submitted
        if text is None:
            text = strip_thinking(_sendable(completion.text), *self._settings.think_tags, prompt.thinking_opened)
        keys = numbered(prompt.datasets)
        checks = [
            self._verdict(name, prompt, completion, text, label)
            for name, label in zip(prompt.datasets, prompt.ground_truths, strict=True)
        ]
        asked = self._token_scorers.items() if prompt.lane == TRAIN_LANE else ()
        more = [name for name, scorer in asked if scorer.teaches(prompt)]
        keys += more
        checks += [self._verdict(name, prompt, completion, text, None) for name in more]
        verdicts = await asyncio.gather(*checks) if len(checks) > 1 else [await check for check in checks]
        return dict(zip(keys, verdicts, strict=True))

    async def combine(self, prompt: Prompt, completions: Sequence[Completion]) -> tuple[Completion, ...]:
        """Add the verdicts of the user functions, and combine all verdicts into `reward` and `solved`.

        A completion without any verdict that applies keeps no reward, if another completion of the group has one, or if
        a teacher alone decides.

        Raises:
            Unscorable: a verdict is an error, or a reward is needed and no verdict applies to any completion.
        """
        judged = await self.judged(prompt, completions)
        is_optional = not self._needs_reward and prompt.lane == TRAIN_LANE
        some = not prompt.datasets and (is_optional or any(_applies(completion) for completion in judged))
        return tuple(self.weighed(prompt, one) if _applies(one) or not some else one for one in judged)

    async def judged(self, prompt: Prompt, completions: Sequence[Completion]) -> Sequence[Completion]:
        """Add the verdicts of the user functions to a group."""
        if not self._functions.functions:
            return completions
        found = await self._functions.score(prompt, completions)
        return [
            replace(completion, verdicts=completion.verdicts | extra)
            for completion, extra in zip(completions, found, strict=True)
        ]

    def weighed(self, prompt: Prompt, completion: Completion) -> Completion:
        """Combine all verdicts of a completion into `reward` and `solved`. Raises Unscorable."""
        keys, verdicts, settings = numbered(prompt.datasets), completion.verdicts, self._settings
        missing = [key for key in keys if key not in verdicts]
        if missing:
            raise Unscorable("missing_verdict", f"completion {completion.index} has no verdict of {', '.join(missing)}")
        reward = weigh(verdicts, self._weights, settings.combine)
        solved = is_solved(keys, verdicts, reward, self._weights, settings.combine, settings.solved_at)
        weighted = {
            name: replace(verdict, weight=self._weights[name])
            for name, verdict in verdicts.items()
            if name in self._weights
        }
        by_token = token_rewards(verdicts, self._weights, settings.combine, len(completion.token_ids))
        plain = {name: replace(verdict, token_rewards=UNSET) for name, verdict in (verdicts | weighted).items()}
        return replace(completion, verdicts=plain, reward=reward, token_rewards=by_token, solved=solved)

    async def _verdict(
        self, name: str, prompt: Prompt, completion: Completion, text: str | None, label: Any
    ) -> Verdict:
        verifier = self._verifiers.get(name)
        if verifier is None:
            return Verdict(reward=None, error_kind="unknown_verifier", detail=unknown(name, list(self._verifiers)))
        started = time.perf_counter()
        try:
            verdict = await verifier.verify_row(prompt, completion, text, label)
        except Exception as error:
            log.exception("the verifier %s raised on row %s", name, prompt.row)
            verdict = Verdict(reward=None, error_kind="raised", detail=f"{type(error).__name__}: {error}")
        return replace(_sane(verdict), seconds=time.perf_counter() - started)


def _applies(completion: Completion) -> bool:
    """Whether any verdict applies to the completion. An error also counts."""
    return any(verdict.reward is not None or verdict.error_kind for verdict in completion.verdicts.values())


def weigh(verdicts: Mapping[str, Verdict], weights: Mapping[str, float], how: str) -> float:
    """Combine the verdicts that apply into one reward. A name without an entry in `weights` has weight 1.

    Args:
        how: `sum` (weighted sum), `mean` (weighted mean) or `product` (product of the weighted rewards).

    Raises:
        Unscorable: a verdict is an error, no verdict applies, or the result is not finite or too large.
    """
    for name, verdict in verdicts.items():
        if verdict.error_kind is not None:
            raise Unscorable(verdict.error_kind, f"{name}: {verdict.detail}")
    applied = {name: verdict.reward for name, verdict in verdicts.items() if verdict.reward is not None}
    if not applied:
        raise Unscorable(
            "nothing_applies", f"no verifier applies to the completion (asked: {', '.join(verdicts) or 'none'})"
        )
    weighted = [weights.get(name, 1.0) * reward for name, reward in applied.items()]
    total = sum(weights.get(name, 1.0) for name in applied)
    if how == "mean" and not total:
        raise Unscorable("weights", f"the weights of {', '.join(applied)} add up to 0; change verifiers.weights")
    reward = math.prod(weighted) if how == "product" else sum(weighted) / (total if how == "mean" else 1.0)
    if not abs(reward) <= LARGEST_REWARD:  # this also refuses NaN
        raise Unscorable("not_finite", f"the combined reward is {reward}")
    return reward


def token_rewards(
    verdicts: Mapping[str, Verdict], weights: Mapping[str, float], how: str, num_tokens: int
) -> Floats | UnsetType:
    """The parts of the combined reward that come with each token; unset if no verdict has rewards of tokens.

    A reward of a whole completion comes with its last token.

    Raises:
        Unscorable: a product of them has no such parts.
    """
    applied = {name: verdict for name, verdict in verdicts.items() if verdict.reward is not None}
    with_tokens = [name for name, verdict in applied.items() if verdict.token_rewards is not UNSET]
    if not with_tokens:
        return UNSET
    if how == "product" and len(applied) > 1:
        raise Unscorable(
            "token_rewards", f'{", ".join(with_tokens)}: rewards of tokens are added up: set verifiers.combine to "sum"'
        )
    total = sum(weights.get(name, 1.0) for name in applied) if how == "mean" else 1.0
    sums_T, is_paid_T = np.zeros(num_tokens), np.zeros(num_tokens, np.bool_)
    for name, verdict in applied.items():
        rewards_T = np.full(num_tokens, np.nan)
        rewards_T[-1] = verdict.reward
        if verdict.token_rewards is not UNSET:
            rewards_T = verdict.token_rewards.astype(np.float64)
        is_paid_T |= ~np.isnan(rewards_T)
        sums_T += weights.get(name, 1.0) / total * np.where(np.isnan(rewards_T), 0.0, rewards_T)
    if not (np.abs(sums_T) <= np.finfo(np.float32).max).all():
        raise Unscorable("not_finite", f"{', '.join(with_tokens)}: a reward of a token is not a number of 32 bits")
    return np.where(is_paid_T, sums_T, np.nan).astype(np.float32)


def _sendable(text: str) -> str:
    """The text with `?` for each lone surrogate, which cannot be sent to a worker."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _sane(verdict: Verdict) -> Verdict:
    """The verdict itself if its reward is in [0, 1], or it is an error or scores tokens; otherwise an error."""
    if verdict.token_logprobs is not UNSET:
        return verdict
    if verdict.error_kind is None and (verdict.reward is None or not 0.0 <= verdict.reward <= 1.0):
        return replace(verdict, reward=None, error_kind="out_of_range", detail=f"a reward of {verdict.reward}")
    return verdict
