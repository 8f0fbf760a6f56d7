"""Posts requests to one HTTP address. The only file of the verifiers with an HTTP client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from olmorl.clock import Clock
from olmorl.config import HttpService
from olmorl.verifiers.judge.service.failures import Rejected, Unavailable

MAX_REPLY_BYTES = 1 << 20
"""A larger body is an error, unless the caller gives another bound."""
SHOWN = 200
"""Characters of an error body that a message shows."""
_REJECTIONS = {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
_ABOUT_KEYS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class JudgeEndpoint(Protocol):
    """The address to which a client sends its requests."""

    async def post(self, request: Mapping[str, Any]) -> bytes:
        """Post a request and return the body of a good reply. Raises Rejected or Unavailable."""
        ...

    async def close(self) -> None: ...


class HttpEndpoint:
    """Each call ends within its timeout and reads a bounded reply."""

    def __init__(self, settings: HttpService, url: str, clock: Clock, max_reply_bytes: int = MAX_REPLY_BYTES) -> None:
        self._settings = settings
        self._max_reply_bytes = max_reply_bytes
        self._url = url
        self._clock = clock
        self._key = api_key(settings)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, request: Mapping[str, Any]) -> bytes:
        """Post a request and return the body of a good reply. Raises Rejected or Unavailable."""
        try:
            async with self._open().post(
                self._url, data=msgspec.json.encode(request), allow_redirects=False
            ) as response:
                body = await _bounded(response, self._max_reply_bytes)
                if response.status == HTTPStatus.OK:
                    return body
                raise self._refusal(response, body)
        except TimeoutError:
            raise Unavailable(f"{self._url}: no reply within {self._settings.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{self._url}: {type(error).__name__} {error}".rstrip()) from None

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        """The session. The first call makes it, because it belongs to the running event loop."""
        if self._session is None:
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
                connector=aiohttp.TCPConnector(limit=self._settings.concurrency),
                cookie_jar=aiohttp.DummyCookieJar(),
                proxy=proxy_for(self._url),
                auto_decompress=False,  # a small body must not expand to a large one
            )
        return self._session

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes) -> Rejected | Unavailable:
        said = " ".join(body.decode(errors="replace").split())
        if self._key:
            said = said.replace(self._key, "***")
        if response.status in _ABOUT_KEYS:
            said = f"check the key: api_key_env names {self._settings.api_key_env or 'no variable'}"
        detail = f"{self._url}: HTTP {response.status} {said[:SHOWN]}".rstrip()
        if response.status in _REJECTIONS:
            return Rejected(detail)
        busy = response.status == HTTPStatus.TOO_MANY_REQUESTS
        return Unavailable(detail, self._asked_s(response.headers.get("Retry-After", "")), busy)

    def _asked_s(self, retry_after: str) -> float:
        """The seconds of a Retry-After header, which is a number or a date; 0 if it is neither."""
        if retry_after.strip().isdecimal():
            return float(retry_after[:9])
        try:
            return max(parsedate_to_datetime(retry_after).timestamp() - self._clock.wall(), 0.0)
        except ValueError:
            return 0.0


async def _bounded(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            response.close()
            raise Unavailable(f"{response.url}: the reply has more than {most} bytes")
    return bytes(body)


def address(base: str, default_path: str, path: str) -> str:
    """The URL of `path` under a base URL. A base URL without a path gets `default_path`."""
    base = base.rstrip("/")
    return base + ("" if urlsplit(base).path else default_path) + path


def proxy_for(url: str) -> str | None:
    """The proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for a URL. The own host needs none.

    aiohttp's `trust_env` reads the same variables, and also passwords of ~/.netrc, which it cannot send beside a key.
    """
    host = urlsplit(url).hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(urlsplit(url).scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def api_key(settings: HttpService) -> str | None:
    """The key in the environment variable of `settings`; None if it is missing or cannot be in a header."""
    key = os.environ.get(settings.api_key_env, "").strip() if settings.api_key_env else ""
    return key if key and key.isascii() and key.isprintable() else None


def problem(settings: HttpService, section: str) -> str | None:
    """Why `settings` cannot be used; None if they can. `section` is their place in the recipe."""
    if settings.url is None:
        return f"set {section}.url"
    if settings.api_key_env and api_key(settings) is None:
        return f"set the environment variable {settings.api_key_env} to the key, as {section}.api_key_env says"
    return None
