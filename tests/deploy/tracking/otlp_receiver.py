"""A collector of traces over OTLP/HTTP inside a test."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class ReceivedSpan(NamedTuple):
    """A span as it arrived; times are wall times in seconds."""

    name: str
    trace: bytes
    own: bytes
    parent: bytes
    begin: float
    end: float
    about: dict[str, Any]
    events: list[tuple[str, float]]
    is_error: bool
    service: str


class OtlpReceiver:
    """Serves from `__enter__` to `__exit__`, and keeps all spans. `status` is its answer."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.status = 200
        self.headers: list[str] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.headers.append(self.headers.get("x-key", ""))
                    receiver.spans += _spans(ExportTraceServiceRequest.FromString(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def traces(self) -> dict[bytes, list[ReceivedSpan]]:
        """The spans of each trace."""
        found: dict[bytes, list[ReceivedSpan]] = {}
        for span in self.spans:
            found.setdefault(span.trace, []).append(span)
        return found


def _spans(request: Any) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            name=span.name,
            trace=span.trace_id,
            own=span.span_id,
            parent=span.parent_span_id,
            begin=span.start_time_unix_nano / 1e9,
            end=span.end_time_unix_nano / 1e9,
            about=_values(span.attributes),
            events=[(event.name, event.time_unix_nano / 1e9) for event in span.events],
            is_error=span.status.code == 2,
            service=_values(resource.resource.attributes)["service.name"],
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
