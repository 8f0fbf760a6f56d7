"""One run of `olmorl-verify`: reads rows, writes lines, and shows its progress."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from contextlib import ExitStack, aclosing
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.verify.input_files import STANDARD
from olmorl.deploy.verify.pass_rate import PassRates
from olmorl.deploy.verify.reader import items, size
from olmorl.deploy.verify.recorded_episodes import RecordedEpisodes
from olmorl.deploy.verify.row_scoring import BAD_ROW, Scoring
from olmorl.deploy.verify.summary import Display, People, Tally
from olmorl.deploy.verify.writer import Scores, opened
from olmorl.errors import DataError, RewardFunctionError, RunEnded
from olmorl.verifiers.scorer import VerifierScorer

_NOT_OF_THE_VERDICT = {"workers", "timeout_s", "function_timeout_s"}
"""Settings that may change before a job is resumed."""
_OF_EPISODES = {"environment", "max_turns", "tool_role"}


class ScoringJob:
    """Every row of the input gets its lines of output. An interrupted output ends with a whole line."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        settings: Config,
        scorer: VerifierScorer,
        episodes: RecordedEpisodes | None = None,
    ) -> None:
        """`scorer` is started, with the verifiers of `settings`, and so is `episodes`, with its environment."""
        self._arguments = arguments
        self._fingerprint = _fingerprint(arguments, settings)
        self._scoring = Scoring(settings, scorer, arguments.thinking_opened, episodes)
        self._tally = Tally()

    async def run(self) -> None:
        """Score all rows.

        Raises:
            DataError: the input cannot be read or has no usable row, or the output cannot be written or resumed.
            RewardFunctionError: a function failed for every completion.
            RunEnded: no completion could be scored for another reason.
            CancelledError: it was interrupted; all written lines are whole.
        """
        arguments = self._arguments
        # When lines go to standard output, messages go to standard error.
        console = People(stderr=arguments.output == STANDARD, highlight=False)
        display = Display(console, Path(arguments.input).name, size(arguments.input))
        try:
            with display:
                await (self._rate(display) if arguments.pass_rate else self._score(display))
        except asyncio.CancelledError:
            display.conclude(self._tally, interrupted=True)
            raise
        display.conclude(self._tally, interrupted=False)
        self._check_use()

    def _check_use(self) -> None:
        """Raise the cause when no completion has a reward."""
        tally, source = self._tally, self._arguments.input
        if not tally.rows:
            raise DataError(f"{source}: it holds no row")
        if tally.rewarded:
            return
        if set(tally.errors) == {BAD_ROW}:
            raise DataError(f"{source}: no row can be used; the first: {tally.first_error}")
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in tally.errors.most_common())
        message = f"no completion of {source} could be scored: {kinds}; the first: {tally.first_error}"
        raise (RewardFunctionError if any(kind.startswith("function_") for kind in tally.errors) else RunEnded)(message)

    async def _score(self, display: Display) -> None:
        """A line for each completion."""
        arguments = self._arguments
        with opened(arguments.output, arguments.resume, arguments.force) as output:
            try:
                await self._through(output, display, None)
            finally:
                if not self._tally.rows:
                    _drop_empty(arguments.output)

    async def _rate(self, display: Display) -> None:
        """A row for each prompt. Until all are known, the lines of the completions wait in a second file."""
        arguments = self._arguments
        output = arguments.output
        with ExitStack() as files:
            folder = files.enter_context(tempfile.TemporaryDirectory())
            lines = f"{folder}/scores" if output == STANDARD else f"{output}.scores"
            rates = PassRates(files.enter_context(tempfile.TemporaryFile()))
            with opened(lines, arguments.resume, force=not arguments.resume) as scores:
                await self._through(scores, display, rates)
            if self._tally.rewarded:
                with opened(output, resume=False, force=True) as prompts:
                    for row in rates.rows(arguments.min_pass_rate, arguments.max_pass_rate):
                        prompts.write([row])
                for line in rates.summary():
                    display.say(line)
            files.callback(os.unlink, lines)

    async def _through(self, output: Scores, display: Display, rates: PassRates | None) -> None:
        """Take every row through the verifiers into the output."""
        rows = items(self._arguments.input, self._arguments.completion, self._fingerprint)
        async with aclosing(self._scoring.run(output.matched(rows))) as scored:
            async for row in scored:
                if row.fresh:
                    output.write(row.lines)
                if rates is not None:
                    rates.add(row)
                self._tally.add(row)
                display.show(self._tally, row.item.position)


def _drop_empty(output: str) -> None:
    """Remove an empty output, which would block the next command."""
    path = Path(output)
    if output != STANDARD and path.is_file() and not path.stat().st_size:
        path.unlink()


def _fingerprint(arguments: argparse.Namespace, settings: Config) -> str:
    """The settings that a line depends on, in addition to its row."""
    verifiers = settings.verifiers.model_dump(mode="json", exclude=_NOT_OF_THE_VERDICT)
    episodes = settings.episodes
    played = [episodes.model_dump(mode="json", include=_OF_EPISODES)] if episodes.environment else []
    given = (
        verifiers, settings.data.default_verifier, arguments.completion, arguments.thinking_opened,
        settings.schedule.steps if settings.verifiers.functions else None, *played,
    )  # fmt: skip
    return json.dumps(given, sort_keys=True)
