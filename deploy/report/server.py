"""`olmorl-report --serve`: the report on the loopback address, current while the runs go on.

/              the page; the first visit needs ?token=..., which becomes a cookie
/manifest      the parts of each run; 304 while nothing has changed
/blob/NAME     one part, compressed
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from olmorl.deploy.report.columns import Blob
from olmorl.deploy.report.page import live_page, manifest, policy
from olmorl.deploy.report.run_reader import RunReader
from olmorl.errors import OlmoRLError, ResourceError

_LOOPBACK = "127.0.0.1"
_TITLE = "OlmoRL report"


class LiveReport:
    """Holds the newest parts of all runs. Reads a run again only when its files have changed."""

    def __init__(self, runs: Sequence[RunReader]) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._signature: tuple[Any, ...] | None = None
        self._blobs: dict[str, Blob] = {}
        self._before: dict[str, Blob] = {}
        """The parts of the earlier manifest, which a page may still have."""
        self._manifest = b""
        self._tag = ""

    def current(self) -> tuple[bytes, str]:
        """The manifest, and a tag that changes with it."""
        with self._lock:
            signature = tuple(run.signature for run in self._runs)
            if signature != self._signature:
                entries, blobs = read_all(self._runs)
                self._blobs, self._before = blobs, self._blobs
                self._manifest, self._signature = msgspec.json.encode(manifest(entries)), signature
                self._tag = f'"{blake2b(msgspec.json.encode(entries), digest_size=9).hexdigest()}"'
            return self._manifest, self._tag

    def blob(self, name: str) -> Blob | None:
        return self._blobs.get(name) or self._before.get(name)


def read_all(runs: Sequence[RunReader]) -> tuple[list[Mapping[str, Any]], dict[str, Blob]]:
    """The entries of the manifest, and all parts by name."""
    entries: list[Mapping[str, Any]] = []
    blobs: dict[str, Blob] = {}
    for run in runs:
        entry, parts = run.read()
        entries.append(entry)
        blobs |= {part.name: part for part in parts}
    return entries, blobs


class ReportServer:
    """Answers only requests with the token."""

    def __init__(self, report: LiveReport, port: int = 0) -> None:
        """Listens on the loopback address; `port` 0 takes a free one.

        Raises:
            ResourceError: the port is taken.
        """
        self._token = secrets.token_urlsafe(24)

        class OwnHandler(_Handler):
            pass

        OwnHandler.report, OwnHandler.token = report, self._token
        try:
            self._server = ThreadingHTTPServer((_LOOPBACK, port), OwnHandler)
        except OSError as error:
            raise ResourceError(f"--port {port}: {error.strerror}; choose another, or leave it out") from None
        # A browser sends the cookies of an address to all of its ports.
        OwnHandler.cookie_name = f"olmorl-report-{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        """The address with the token."""
        return f"http://{_LOOPBACK}:{self._server.server_address[1]}/?token={self._token}"

    def run(self) -> None:
        """Serve until `stop`, or Ctrl-C."""
        self._server.serve_forever()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def close(self) -> None:
        """Release the port after `run` has ended."""
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    report: LiveReport
    token: str
    cookie_name: str
    protocol_version = "HTTP/1.1"
    timeout = 30.0

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        given = parse_qs(address.query).get("token", [""])[0]
        if given and self._is_token(given):
            cookie = f"{self.cookie_name}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(HTTPStatus.SEE_OTHER, b"", {"Location": "/", "Set-Cookie": cookie})
        elif not self._is_token(self._cookie()):
            self._send(HTTPStatus.FORBIDDEN, b"Open the address that olmorl-report printed: it has the token.\n")
        elif address.path == "/":
            page = live_page(_TITLE).encode("utf-8")
            headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy("'self'")}
            self._send(HTTPStatus.OK, page, headers)
        elif address.path == "/manifest":
            self._send_manifest()
        elif address.path.startswith("/blob/") and (blob := self.report.blob(address.path.removeprefix("/blob/"))):
            self._send(HTTPStatus.OK, blob.data, {"Content-Type": "application/octet-stream"})
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is no such part.\n")

    def _send_manifest(self) -> None:
        try:
            content, tag = self.report.current()
        except OlmoRLError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n".encode())
            return
        if self.headers.get("If-None-Match") == tag:
            self._send(HTTPStatus.NOT_MODIFIED, b"", {"ETag": tag})
        else:
            self._send(HTTPStatus.OK, content, {"Content-Type": "application/json", "ETag": tag})

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self.token.encode())

    def _cookie(self) -> str:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.cookie_name)
        except CookieError:
            return ""
        return found.value if found else ""

    def _send(self, status: HTTPStatus, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        common = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
        common |= {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
        for name, value in {**common, **(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        """Log no requests."""
