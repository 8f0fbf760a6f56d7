"""OpenTelemetry: one trace for the attempt that ended a draw, over OTLP/HTTP.

    prompt                    drawn ... trained or zero_gradient
      queued                  drawn ... leased
      completion (each)       leased ... last token
        verify NAME           last token ... verdict
      result                  committed ... zero_gradient, failed or batched
      training                batched ... trained

OpenTelemetry reads its own variables OTEL_EXPORTER_OTLP_*: address, headers, certificates, time limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from olmorl.deploy.tracking.records import Record, TrackedAttempt, TrackedLine, TrackedRun

MOST_ENDED = 256
"""So many attempts without a step are sent at once. Fewer wait for the next step."""
_OWN = "olmorl"


class SpanSink:
    """Keeps the attempts of a batch until its step is done, then sends their traces."""

    def __init__(self, run: TrackedRun) -> None:
        about = {"service.name": _OWN, "olmorl.run": run.name, "olmorl.run_id": run.run_id}
        self._finished = _FinishedSpans()
        provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        provider.add_span_processor(self._finished)
        self._tracer = provider.get_tracer(_OWN)
        self._exporter = OTLPSpanExporter()
        self._ended: list[TrackedAttempt] = []
        self._batched: dict[int, list[TrackedAttempt]] = {}

    @property
    def num_kept(self) -> int:
        return len(self._ended) + sum(map(len, self._batched.values()))

    def take(self, record: Record) -> int:
        match record:
            case TrackedAttempt(step=None):
                self._ended.append(record)
                return self._send() if len(self._ended) >= MOST_ENDED else 0
            case TrackedAttempt(step=int(step)):
                self._batched.setdefault(step, []).append(record)
                return 0
            case TrackedLine(line={"step": step}):
                return self._send(step, record.at)
        return 0

    def close(self) -> int:
        """Send the attempts whose step never ended too; returns how many were lost."""
        for attempts in self._batched.values():
            self._ended += attempts
        self._batched.clear()
        lost = self._send()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        return lost

    def _send(self, step: int = 0, trained_at: float | None = None) -> int:
        """Send all attempts that ended, and those of the batches up to `step`; returns how many were lost."""
        attempts, self._ended = self._ended, []
        for attempt in attempts:
            write_trace(self._tracer, attempt)
        for done in sorted(number for number in self._batched if number <= step):
            for attempt in self._batched.pop(done):
                write_trace(self._tracer, attempt, trained_at)
                attempts.append(attempt)
        spans = self._finished.take()
        if not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return 0
        return len(attempts)


class _FinishedSpans(SpanProcessor):
    """Collects spans as they end."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> Sequence[ReadableSpan]:
        """The spans since the last call."""
        spans, self._spans = self._spans, []
        return spans


def write_trace(tracer: Tracer, attempt: TrackedAttempt, trained_at: float | None = None) -> None:
    """Make the spans of an attempt. `trained_at`: when the step that trains it was done, if it is."""
    drawn_at = attempt.queued_at or attempt.started_at or attempt.ended_at
    about = {
        "draw": attempt.draw,
        "attempt": attempt.attempt,
        "row": attempt.row,
        "actor": attempt.actor,
        "outcome": attempt.outcome,
        "cause": attempt.cause,
        "step": attempt.step,
        "tokens": sum(completion.tokens for completion in attempt.completions),
    }
    prompt = _begin(tracer, "prompt", drawn_at, about)
    prompt.add_event("drawn", timestamp=_ns(drawn_at))
    if attempt.started_at:
        _add(tracer, "queued", drawn_at, attempt.started_at, prompt)
        prompt.add_event("leased", {"olmorl.actor": attempt.actor}, _ns(attempt.started_at))
        _write_completions(tracer, attempt, prompt)
        prompt.add_event("committed", timestamp=_ns(attempt.finished_at))
        _add(tracer, "result", attempt.finished_at, attempt.ended_at, prompt)
    if attempt.step is None:
        prompt.add_event(attempt.outcome, timestamp=_ns(attempt.ended_at))
    else:
        prompt.add_event("batched", {"olmorl.step": attempt.step}, _ns(attempt.ended_at))
    if trained_at:
        _add(tracer, "training", attempt.ended_at, trained_at, prompt)
        prompt.add_event("trained", {"olmorl.step": attempt.step or 0}, _ns(trained_at))
    if attempt.outcome == "failed":
        prompt.set_status(Status(StatusCode.ERROR, attempt.cause))
    prompt.end(_ns(trained_at or attempt.ended_at))


def _write_completions(tracer: Tracer, attempt: TrackedAttempt, prompt: Span) -> None:
    for index, completion in enumerate(attempt.completions):
        first, last = completion.versions
        about = {
            "index": index,
            "tokens": completion.tokens,
            "first_version": first,
            "last_version": last,
            "reward": completion.reward,
        }
        generated_at = completion.generated_at or attempt.finished_at
        written = _add(tracer, "completion", attempt.started_at, generated_at, prompt, about)
        for name, seconds in completion.verify_s.items():
            _add(tracer, f"verify {name}", generated_at, generated_at + seconds, written)


def _add(
    tracer: Tracer, name: str, begin: float, end: float, parent: Span, about: Mapping[str, Any] | None = None
) -> Span:
    """A span of known length. Clocks of two hosts may differ: it never ends before it begins."""
    span = _begin(tracer, name, begin, about or {}, parent)
    span.end(_ns(max(begin, end)))
    return span


def _begin(tracer: Tracer, name: str, at: float, about: Mapping[str, Any], parent: Span | None = None) -> Span:
    known = {f"{_OWN}.{key}": value for key, value in about.items() if value not in (None, "")}
    context = set_span_in_context(parent) if parent is not None else None
    return tracer.start_span(name, context, attributes=known, start_time=_ns(at))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
