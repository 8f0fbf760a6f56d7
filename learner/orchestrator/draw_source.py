"""Makes draws from the prompt stream: which row comes next, and under which number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import UNSET

from olmorl.clock import Clock
from olmorl.errors import DataError
from olmorl.learner.storage.ledger_state import Drawn, LedgerState
from olmorl.messages import TRAIN_LANE, Prompt, Version
from olmorl.ports import Row


class Stream(Protocol):
    """Rows in an order that can be continued from any position. Implemented by `stream.PromptStream`."""

    position: int
    """Positions passed so far."""

    def draw(self) -> Row | None:
        """The next row, or None when a finite stream is over."""
        ...

    def row_at(self, position: int) -> Row:
        """The row at a position that was drawn before."""
        ...

    def retire(self, row: str) -> None:
        """Never draw the row of this name again."""
        ...

    def is_retired(self, row: str) -> bool: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the position of `state`. Raises DataError when the data is not the same."""
        ...


class DrawSource:
    """Draws take the rows of the stream in their order, also across crashes and restarts. A replay takes no row."""

    def __init__(self, stream: Stream, group_size: int, clock: Clock) -> None:
        self._stream = stream
        self._group_size = group_size
        self._clock = clock
        self.exhausted = False

    def take(self, number: int, first_draw: int, version: Version) -> list[tuple[Drawn, Prompt]]:
        """Up to `number` draws, numbered from `first_draw`; fewer if the stream ends, and `exhausted` is set."""
        drawn = []
        for draw_id in range(first_draw, first_draw + number):
            row = self._stream.draw()
            if row is None:
                self.exhausted = True
                break
            position = self._stream.position - 1
            event = Drawn(draw=draw_id, row=row.row, position=position, version=version.number)
            drawn.append((event, self._prompt(row, draw_id, 1, version)))
        return drawn

    def again(self, draw_id: int, position: int, attempt: int, version: Version) -> Prompt:
        """A draw that was lost, as a new attempt."""
        return self._prompt(self._stream.row_at(position), draw_id, attempt, version)

    def replay(self, of: int, position: int, draw_id: int, version: Version) -> tuple[Drawn, Prompt]:
        """The row of the failed draw `of` as a new draw."""
        row = self._stream.row_at(position)
        event = Drawn(draw=draw_id, row=row.row, position=position, version=version.number, replay_of=of)
        return event, self._prompt(row, draw_id, 1, version)

    def retire(self, row: str) -> None:
        self._stream.retire(row)

    def is_retired(self, row: str) -> bool:
        return self._stream.is_retired(row)

    def state(self) -> dict[str, Any]:
        return self._stream.state()

    def seek(self, state: LedgerState) -> None:
        """Move the stream to the position that the ledger names.

        Raises:
            DataError: the data has changed since the draws.
        """
        if state.stream_state:
            moved = {} if state.stream_position is None else {"position": state.stream_position}
            retired = {*state.stream_state.get("retired", ()), *state.retired}
            self._stream.restore({**state.stream_state, **moved, "retired": sorted(retired)})
        for draw_id, draw in state.open.items():
            row = self._stream.row_at(draw.position)
            if row.row != draw.row:
                raise DataError(
                    f"draw {draw_id} was {draw.row} and would now be {row.row}: the data, its weights, the seed or the "
                    "shuffling changed; put them back, or start a new run"
                )

    def _prompt(self, row: Row, draw_id: int, attempt: int, version: Version) -> Prompt:
        return prompt_of(
            row,
            lane=TRAIN_LANE,
            draw_id=draw_id,
            attempt=attempt,
            group_size=self._group_size,
            min_version=version,
            queued_at=self._clock.wall(),
        )


def prompt_of(
    row: Row,
    *,
    lane: str,
    draw_id: int,
    attempt: int,
    group_size: int,
    min_version: Version,
    queued_at: float = 0.0,
) -> Prompt:
    """The prompt of one draw of a row."""
    return Prompt(
        draw_id=draw_id,
        lane=lane,
        attempt=attempt,
        row=row.row,
        messages=row.messages,
        token_ids=row.token_ids,
        datasets=row.datasets,
        ground_truths=row.ground_truths,
        columns=dict(row.columns),
        thinking_opened=row.thinking_opened,
        queued_at=queued_at,
        group_size=group_size,
        min_version=min_version,
        episode=row.episode or UNSET,
    )
