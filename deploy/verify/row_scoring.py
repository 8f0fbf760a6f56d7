"""Scores rows with completions with the verifiers of a run, several at a time, in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from olmorl.config import Config
from olmorl.deploy.verify.reader import Item
from olmorl.deploy.verify.recorded_episodes import RecordedEpisodes, Recording, recording_of
from olmorl.deploy.verify.writer import Line
from olmorl.errors import Unscorable
from olmorl.learner.data.readers import Labelled, layout
from olmorl.messages import ENVIRONMENT, Completion, Prompt, Span, Verdict, Version
from olmorl.verifiers.scorer import VerifierScorer

WINDOW = 256
"""Rows that are being scored at one time."""
IDENTITY = ("id", "prompt_id", "custom_id", "uid", "uuid", "index", "key")
"""Columns that say which row it is, and are kept."""
BAD_ROW = "bad_row"
Token = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_KEPT_LABELS = 4096
_START = Version(0, 0)


class Scored(NamedTuple):
    """A row and its lines."""

    item: Item
    lines: list[Line]
    fresh: bool = True
    """Whether this command scored it, not an earlier one."""


class _Begun(NamedTuple):
    """A row that is being scored, or whose lines are known."""

    item: Item
    task: asyncio.Task[list[Line]] | None
    known: list[Line]


class Scoring:
    """Every completion of every row gets exactly one line, in the order of the input."""

    def __init__(
        self,
        settings: Config,
        scorer: VerifierScorer,
        thinking_opened: bool,
        episodes: RecordedEpisodes | None = None,
    ) -> None:
        """
        Args:
            scorer: started, with the verifiers of `settings`.
            thinking_opened: the chat template opens the thinking tag, so that completions begin within it.
            episodes: started, of a recipe with an environment.
        """
        self._settings = settings
        self._scorer = scorer
        self._thinking_opened = thinking_opened
        self._episodes = episodes
        self._needs_columns = bool(settings.verifiers.functions) or episodes is not None
        self._problems: dict[tuple[str, str], str | None] = {}

    async def run(self, rows: AsyncIterator[tuple[Item, list[Line] | None]]) -> AsyncGenerator[Scored, None]:
        """The lines of each row, in order, as soon as they are known; some may be known already.

        At most WINDOW rows are in memory.
        """
        room = asyncio.Semaphore(WINDOW)
        begun: asyncio.Queue[_Begun | None] = asyncio.Queue()
        reading = asyncio.create_task(self._begin(rows, room, begun))
        try:
            while (row := await begun.get()) is not None:
                lines = await row.task if row.task else row.known
                yield Scored(row.item, lines, fresh=row.task is not None)
                room.release()
            await reading
        finally:
            tasks: list[asyncio.Task[Any]] = [reading]
            while not begun.empty():
                row = begun.get_nowait()
                tasks += [row.task] if row and row.task else []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(
        self,
        rows: AsyncIterator[tuple[Item, list[Line] | None]],
        room: asyncio.Semaphore,
        begun: asyncio.Queue[_Begun | None],
    ) -> None:
        """Read rows while there is room, and begin to score each."""
        try:
            async for item, known in rows:
                await room.acquire()
                task = asyncio.create_task(self.lines(item)) if known is None else None
                begun.put_nowait(_Begun(item, task, known or []))
        finally:
            begun.put_nowait(None)

    async def lines(self, item: Item) -> list[Line]:
        """Score one row."""
        if item.problem:
            return [_bad(item, item.problem)]
        try:
            labelled = await self._labelled(item.values)
            tokens = self._tokens(item)
            recordings = [] if self._episodes is None else _recordings(item)
        except ValueError as error:
            return [_bad(item, str(error), index) for index in range(len(item.completions))]
        prompt = self._prompt(item, labelled)
        started = time.perf_counter()
        completions = [_completion(item, index, ids) for index, ids in enumerate(tokens)]
        if self._episodes is None:
            results = await scored(self._scorer, prompt, completions)
        else:
            results = await self._played(self._episodes, prompt, completions, recordings)
        seconds = (time.perf_counter() - started) / len(results)
        return [_line(item, index, result, seconds) for index, result in enumerate(results)]

    async def _played(
        self,
        episodes: RecordedEpisodes,
        prompt: Prompt,
        completions: Sequence[Completion],
        recordings: Sequence[Recording],
    ) -> list[tuple[Completion, Unscorable | None]]:
        """Play the episodes of a row again, and score those that could be played, as olmorl-eval does."""

        async def play(completion: Completion, recording: Recording) -> Completion | Unscorable:
            try:
                episode = await episodes.play(prompt, completion.index, recording, completion.token_ids)
                return replace(episode, index=completion.index)
            except Unscorable as error:
                return error

        found = await asyncio.gather(*map(play, completions, recordings))
        played = [one for one in found if isinstance(one, Completion)]
        results = iter(await scored(self._scorer, prompt, played) if played else [])
        return [
            (_failed(completion, one), one) if isinstance(one, Unscorable) else next(results)
            for completion, one in zip(completions, found, strict=True)
        ]

    async def _labelled(self, values: Mapping[str, Any]) -> Labelled:
        """The row as in training. Raises ValueError for one that training would refuse."""
        candidate = layout(values, self._settings.data.default_verifier, self._needs_columns, prompted=False)
        reasons = {(name, id(label)): await self._problem(name, label) for name, label in candidate.labels}
        return candidate.labelled(lambda name, label: reasons[name, id(label)])

    async def _problem(self, name: str, label: Any) -> str | None:
        """Why the label cannot be used. The answer is kept, because all completions of a prompt share a label."""
        key = (name, label) if isinstance(label, str) else None
        if key is not None and key in self._problems:
            return self._problems[key]
        reason = await self._scorer.problem(name, label)
        if key is not None:
            if len(self._problems) >= _KEPT_LABELS:
                self._problems.clear()
            self._problems[key] = reason
        return reason

    def _prompt(self, item: Item, labelled: Labelled) -> Prompt:
        return Prompt(
            draw_id=draw_id if isinstance(draw_id := item.values.get("prompt_id"), int) else item.position,
            row=item.place,
            messages=labelled.messages,
            token_ids=np.zeros(0, np.int32),
            datasets=labelled.datasets,
            ground_truths=labelled.ground_truths,
            columns=labelled.columns if self._needs_columns else {},
            thinking_opened=self._thinking_opened,
            group_size=len(item.completions),
            min_version=_START,
        )

    def _tokens(self, item: Item) -> list[list[int]]:
        """Token ids of each completion, for functions and lengths; empty where the row has none.

        Raises:
            ValueError: the column is of another form.
        """
        given, number = item.values.get("completion_ids"), len(item.completions)
        if given is None:
            given = [one.get("token_ids", []) if isinstance(one, dict) else [] for one in item.recorded]
        elif not item.listed:
            given = [given]
        try:
            tokens = msgspec.convert(given, list[list[Token]])
        except msgspec.ValidationError as error:
            raise ValueError(f"the column completion_ids holds no lists of tokens: {error}") from None
        if len(tokens) != number:
            raise ValueError(f"the column completion_ids has {len(tokens)} entries for {number} completions")
        return tokens


async def scored(
    scorer: VerifierScorer, prompt: Prompt, group: Sequence[Completion]
) -> list[tuple[Completion, Unscorable | None]]:
    """Each completion with its reward, or why it has none. Functions are given the whole group, as in training."""

    async def verified(completion: Completion) -> Completion:
        return replace(completion, verdicts=completion.verdicts | await scorer.verify(prompt, completion))

    completions = await asyncio.gather(*map(verified, group))
    return [_weighed(scorer, prompt, one) for one in await scorer.judged(prompt, completions)]


def _weighed(scorer: VerifierScorer, prompt: Prompt, completion: Completion) -> tuple[Completion, Unscorable | None]:
    try:
        return scorer.weighed(prompt, completion), None
    except Unscorable as error:
        return completion, error


def _failed(completion: Completion, error: Unscorable) -> Completion:
    verdict = Verdict(reward=None, error_kind=error.error_kind, detail=error.detail)
    return replace(completion, verdicts={ENVIRONMENT: verdict})


def _recordings(item: Item) -> list[Recording]:
    """The recorded answers of each completion. Raises ValueError."""
    return [recording_of(one, _is_cut(item, index)) for index, one in enumerate(item.recorded)]


def _is_cut(item: Item, index: int) -> bool:
    one = item.recorded[index]
    return (one if isinstance(one, dict) and "finish_reason" in one else item.values).get("finish_reason") == "length"


def _completion(item: Item, index: int, tokens: Sequence[int]) -> Completion:
    return Completion(
        index=index,
        token_ids=np.array(tokens, np.int32),
        logprobs=np.zeros(0, np.float32),
        spans=(Span(_START, 0, 0),),
        finish_reason="length" if _is_cut(item, index) else "stop",
        text=item.completions[index],
    )


def _head(item: Item, index: int) -> Line:
    """The fields that name the row and the completion of a line."""
    head: Line = {"row": item.place}
    if item.listed:
        head["completion"] = index
    identity = {key: item.values[key] for key in IDENTITY if isinstance(item.values.get(key), (str, int))}
    return head | identity | {"digest": item.digest}


def _bad(item: Item, reason: str, index: int = 0) -> Line:
    return _head(item, index) | {
        "verifier": None, "reward": None, "solved": None, "extracted": None, "method": "", "error_kind": BAD_ROW,
        "detail": reason, "seconds": 0.0,
    }  # fmt: skip


def _line(item: Item, index: int, result: tuple[Completion, Unscorable | None], elapsed: float) -> Line:
    completion, _ = result
    played = {"exit": completion.exit, "num_turns": len(completion.turns)} if completion.turns else {}
    return _head(item, index) | verdict_fields(*result, elapsed) | played


def verdict_fields(completion: Completion, error: Unscorable | None, elapsed: float) -> Line:
    """The fields of a line that say how a completion was scored. `elapsed` counts where no verdict has a time."""
    verdicts = completion.verdicts
    seconds = sum(verdict.seconds for verdict in verdicts.values()) or elapsed
    name, verdict = next(iter(verdicts.items()), (None, Verdict(reward=None)))
    line: Line = {
        "verifier": name if len(verdicts) == 1 else None,
        "reward": completion.reward,
        "solved": completion.solved if completion.reward is not None else None,
        "extracted": next((one.extracted for one in verdicts.values() if one.extracted is not None), None),
        "method": verdict.method if len(verdicts) == 1 else "combined",
        "error_kind": error.error_kind if error else None,
        "detail": error.detail if error else verdict.detail if len(verdicts) == 1 else "",
        "seconds": round(seconds, 6),
    }
    if len(verdicts) > 1:
        return line | {"verdicts": {key: _verdict(one) for key, one in verdicts.items()}}
    return line | _logged(verdict)


def _verdict(verdict: Verdict) -> Line:
    return {
        "reward": verdict.reward, "extracted": verdict.extracted, "method": verdict.method,
        "error_kind": verdict.error_kind, "detail": verdict.detail, "seconds": round(verdict.seconds, 6),
    } | _logged(verdict)  # fmt: skip


def _logged(verdict: Verdict) -> Line:
    """The values that a function logged for this completion."""
    return {"extra": verdict.extra} if verdict.extra else {}
