"""Makes the view of a run from its metric lines, heartbeats, actors and news."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from olmorl.deploy.view.dashboard import ActorRow, EvaluationCurve, RecentSample, RunView
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import ActorStatus, Group, Version
from olmorl.metrics import answered_by

MOST_STEPS = 400
"""Steps whose reward is kept: more than a screen has columns."""
MOST_NEWS = 20
MOST_SHOWN = 1000
"""Characters of a sample."""
_ACCURACY = "_accuracy"


class RunHistory:
    """Keeps the past that a view shows: rewards, evaluations, news, and the last heartbeat of each actor."""

    def __init__(self) -> None:
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=MOST_STEPS)
        self._evaluations: dict[str, EvaluationCurve] = {}
        self._heard: dict[str, tuple[float, int]] = {}
        self._speeds: dict[str, float] = {}
        self.news: deque[str] = deque(maxlen=MOST_NEWS)

    def add_line(self, line: Mapping[str, Any]) -> None:
        """Add a metrics line. A step that is trained again replaces its line and all later ones."""
        while self._lines and self._lines[-1]["step"] >= line["step"]:
            self._lines.pop()
        self._lines.append(line)
        for key, value in line.items():
            if key.startswith("eval_") and key.endswith(_ACCURACY):
                name = key.removeprefix("eval_").removesuffix(_ACCURACY)
                by = answered_by(line, key)
                first = self._evaluations.setdefault(name, EvaluationCurve(name, value, value, by, by))
                self._evaluations[name] = replace(first, last=value, last_by=by)

    def add_news(self, text: str) -> None:
        """Add a line that was said, with the time."""
        self.news.append(f"{time.strftime('%H:%M:%S')} {text}")

    def hear(self, actors: Sequence[ActorStatus]) -> None:
        """Take the heartbeats, for the speed of each actor since its heartbeat before."""
        for actor in actors:
            at, tokens = self._heard.get(actor.name, (0.0, 0))
            if actor.at > at:
                if at and actor.tokens_generated >= tokens:
                    self._speeds[actor.name] = (actor.tokens_generated - tokens) / (actor.at - at)
                self._heard[actor.name] = (actor.at, actor.tokens_generated)
        there = {actor.name for actor in actors}
        self._heard = {name: heard for name, heard in self._heard.items() if name in there}
        self._speeds = {name: speed for name, speed in self._speeds.items() if name in there}

    def rows(self, actors: Sequence[ActorStatus], slots: Sequence[Mapping[str, Any]]) -> list[ActorRow]:
        """A row for each actor: those of the launcher's slots, or the heartbeats without slots."""
        newest = self._lines[-1]["version"] if self._lines and "version" in self._lines[-1] else None
        if not slots:
            slots = [
                {"name": actor.name, "process": actor.name, "state": actor.state, "last_cause": ""} for actor in actors
            ]
        heard = {actor.name: actor for actor in actors}
        return [self._row(slot, heard.get(slot.get("process") or ""), newest) for slot in slots]

    def _row(self, slot: Mapping[str, Any], actor: ActorStatus | None, newest: int | None) -> ActorRow:
        if actor is None:
            return ActorRow(slot["name"], slot["state"], fault=slot["last_cause"])
        version: Version | None = actor.version
        lag = None if version is None or newest is None else max(newest - version.number, 0)
        return ActorRow(
            name=slot["name"],
            state=slot["state"],
            version=str(version or "-"),
            lag=lag,
            running=actor.running,
            waiting=actor.waiting,
            kv_used=actor.kv_used,
            tokens_per_s=self._speeds.get(actor.name),
            fault=slot["last_cause"],
        )

    def view(self, now: RunView, actors: Sequence[ActorRow], sample: RecentSample | None) -> RunView:
        """`now` with the rewards, the evaluations, the speeds and the news so far."""
        lines = list(self._lines)
        changes: dict[str, Any] = {"actors": actors, "faults": list(self.news), "sample": sample}
        if lines:
            changes |= {
                "line": lines[-1],
                "rewards": [line.get("reward_mean") for line in lines],
                "evaluated": [
                    index for index, line in enumerate(lines) if any(key.endswith(_ACCURACY) for key in line)
                ],
                "evaluations": list(self._evaluations.values()),
            }
        return replace(now, **changes)


def sample_of(ended: Ended) -> RecentSample | None:
    """One answer of a draw that ended with a group; draws show different answers of their groups."""
    group = ended.result
    if not isinstance(group, Group) or not group.completions:
        return None
    prompt, answer = group.prompt, group.completions[group.prompt.draw_id % len(group.completions)]
    turns = prompt.messages
    asked = turns if isinstance(turns, str) else str(turns[-1].get("content", "")) if turns else ""
    return RecentSample(
        draw=prompt.draw_id,
        prompt=asked[:MOST_SHOWN],
        answer=answer.text[:MOST_SHOWN],
        reward=answer.reward,
        outcome=str(ended.outcome),
    )
