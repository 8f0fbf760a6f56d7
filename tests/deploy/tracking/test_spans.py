"""The trace of an attempt, as a collector receives it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from olmorl.deploy.tracking.records import TrackedLine, TrackedRun, attempt_of
from olmorl.deploy.tracking.spans import MOST_ENDED, SpanSink
from olmorl.deploy.tracking.tracking_process import Guard
from olmorl.learner.storage.ledger_state import Outcome
from tests.deploy.ended_draws import ended
from tests.deploy.tracking.otlp_receiver import OtlpReceiver


@pytest.fixture
def sink(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> SpanSink:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")
    return SpanSink(TrackedRun(name="r", run_id="r-1", folder="/r", sink="traces", settings={}))


def line(step: int, at: float) -> TrackedLine:
    return TrackedLine(at=at, line={"step": step}, samples=[])


def test_a_trained_attempt_is_one_trace_from_its_draw_to_its_step(sink: SpanSink, receiver: OtlpReceiver) -> None:
    attempt = attempt_of(ended())
    assert sink.take(attempt) == sink.take(line(5, attempt.ended_at + 1)) == 0
    assert receiver.spans == [], "step 6 is not done"
    assert sink.take(line(6, attempt.ended_at + 3)) == 0
    (spans,) = receiver.traces().values()
    (prompt,) = [span for span in spans if not span.parent]
    assert (prompt.name, prompt.service, prompt.is_error) == ("prompt", "olmorl", False)
    assert prompt.about == {
        "olmorl.draw": 7,
        "olmorl.attempt": 2,
        "olmorl.row": "math.jsonl:1",
        "olmorl.actor": "actor-3",
        "olmorl.outcome": "trained",
        "olmorl.step": 6,
        "olmorl.tokens": 43,
    }
    now = pytest.approx(attempt.ended_at, abs=1e-3)
    done = pytest.approx(attempt.ended_at + 3, abs=1e-3)
    events = [("drawn", 90.0), ("leased", 100.0), ("committed", 104.0), ("batched", now), ("trained", done)]
    assert prompt.events == events and (prompt.begin, prompt.end) == (90.0, done)
    parts = [(span.name, span.begin, span.end) for span in spans if span.parent == prompt.own]
    assert sorted(parts) == [
        ("completion", 100.0, 101.5),
        ("completion", 100.0, 103.0),
        ("queued", 90.0, 100.0),
        ("result", 104.0, now),
        ("training", now, done),
    ]
    first = next(span for span in spans if span.end == 101.5)
    assert first.about["olmorl.first_version"] == 2 and first.about["olmorl.last_version"] == 4
    assert [(span.name, span.begin, span.end) for span in spans if span.parent == first.own] == [
        ("verify math", 101.5, 101.75)
    ]
    assert receiver.headers == ["secret"]


def test_attempts_without_a_step_are_sent_with_the_next_line(sink: SpanSink, receiver: OtlpReceiver) -> None:
    sink.take(attempt_of(ended(1, Outcome.ZERO_GRADIENT, None)))
    sink.take(attempt_of(ended(2, Outcome.FAILED, None, "unscorable")))
    sink.take(line(1, 1000.0))
    filtered, failed = (span for span in receiver.spans if not span.parent)
    assert filtered.events[-1][0] == "zero_gradient" and not filtered.is_error
    assert failed.is_error and failed.about["olmorl.cause"] == "unscorable"
    assert [name for name, _ in failed.events] == ["drawn", "failed"]


def test_many_attempts_do_not_wait_for_a_line_and_the_rest_is_sent_at_the_end(
    sink: SpanSink, receiver: OtlpReceiver
) -> None:
    for draw in range(MOST_ENDED):
        sink.take(attempt_of(ended(draw, Outcome.ZERO_GRADIENT, None)))
    assert len(receiver.traces()) == MOST_ENDED
    sink.take(attempt_of(ended(MOST_ENDED)))
    sink.close()
    assert len(receiver.traces()) == MOST_ENDED + 1
    assert "trained" not in [name for name, _ in receiver.spans[-1].events]


def test_a_collector_that_refuses_costs_the_attempts_that_it_refused(sink: SpanSink, receiver: OtlpReceiver) -> None:
    receiver.status = 400
    for draw in range(3):
        assert sink.take(attempt_of(ended(draw))) == 0
    assert sink.take(line(6, 1000.0)) == 3
    receiver.status = 200
    sink.take(attempt_of(ended(3)))
    assert sink.take(line(6, 1000.0)) == 0 and len(receiver.traces()) == 1


def test_a_library_that_fails_costs_all_attempts_that_were_sent(
    sink: SpanSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(spans: object) -> None:
        raise ConnectionError("no route")

    def call(work: Callable[[], int], num_records: int) -> tuple[int, int]:
        """Lost and kept."""
        taken = guard.call(work, num_records)
        return taken.lost, taken.kept

    guard = Guard(sink)
    monkeypatch.setattr(sink._exporter, "export", fail)
    attempts = [attempt_of(ended(draw)) for draw in range(3)]
    taken = [call(partial(sink.take, attempt), 1) for attempt in attempts]
    assert taken == [(0, 1), (0, 2), (0, 3)]
    assert call(partial(sink.take, line(5, 1000.0)), 1) == (0, 3)
    assert call(partial(sink.take, line(6, 1000.0)), 1) == (4, 0)
    call(partial(sink.take, attempts[0]), 1)
    assert call(sink.close, 0) == (1, 0)
