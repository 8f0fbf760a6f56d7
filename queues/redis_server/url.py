"""Reads the address of a Redis from the URL of the recipe, and its credentials from the environment or files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from olmorl.errors import ConfigError

USERNAME, PASSWORD = "OLMORL_REDIS_USERNAME", "OLMORL_REDIS_PASSWORD"
SENTINEL_USERNAME, SENTINEL_PASSWORD = "OLMORL_REDIS_SENTINEL_USERNAME", "OLMORL_REDIS_SENTINEL_PASSWORD"
_SECRETS = (USERNAME, PASSWORD, SENTINEL_USERNAME, SENTINEL_PASSWORD)
_PORT, _SENTINEL_PORT = 6379, 26379
_FORMS = {
    "redis": "redis://host:6379/0",
    "rediss": "rediss://host:6379/0",
    "redis+sentinel": "redis+sentinel://host:26379,host:26379/service/0",
    "rediss+sentinel": "rediss+sentinel://host:26379,host:26379/service/0",
}


@dataclass(frozen=True)
class Credentials:
    """Its text form shows no password."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)


class Host(NamedTuple):
    """One end of a connection."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.name}]' if ':' in self.name else self.name}:{self.port}"


@dataclass(frozen=True)
class Address:
    """One Redis, or the sentinels that know which Redis is the primary of `service`. Its text form is the URL."""

    hosts: tuple[Host, ...]
    database: int
    tls: bool
    credentials: Credentials = Credentials()
    service: str = ""
    to_sentinels: Credentials = Credentials()

    def __str__(self) -> str:
        scheme = f"{'rediss' if self.tls else 'redis'}{'+sentinel' if self.service else ''}"
        path = f"{self.service}/{self.database}" if self.service else str(self.database)
        return f"{scheme}://{','.join(map(str, self.hosts))}/{path}"


def parse_url(url: str, environment: Mapping[str, str]) -> Address:
    """Read the URL of a Redis or of its sentinels; `queue.url` says how it is written.

    Raises:
        ConfigError: a malformed URL, or a secret that cannot be read.
    """
    scheme = url.partition("://")[0]
    if scheme not in _FORMS or url.count("[") != url.count("]"):
        raise ConfigError(f"queue.url = {url!r}: write one of {', '.join(_FORMS.values())}")
    parts = urlsplit(url)
    given = secrets_of(environment)
    watched = parts.scheme.endswith("+sentinel")
    service, database = _path(url, parts, watched)
    hosts = tuple(_host(url, parts, text, _SENTINEL_PORT if watched else _PORT) for text in parts.netloc.split(","))
    if len(hosts) > 1 and not watched:
        raise ConfigError(f"queue.url = {url!r}: several hosts are sentinels: write {_FORMS['redis+sentinel']}")
    return Address(
        hosts=hosts,
        database=database,
        tls=parts.scheme.startswith("rediss"),
        credentials=Credentials(given.get(USERNAME), given.get(PASSWORD)),
        service=service,
        to_sentinels=Credentials(given.get(SENTINEL_USERNAME), given.get(SENTINEL_PASSWORD)),
    )


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """User names and passwords by the names of their variables: the value, or the content of the file in NAME_FILE.

    Raises:
        ConfigError: a file that cannot be read or is empty, or both a value and a file.
    """
    found = {}
    for name in _SECRETS:
        value, file = environment.get(name), environment.get(f"{name}_FILE")
        if value and file:
            raise ConfigError(f"{name} and {name}_FILE are both set: leave one of them out")
        if secret := _content(f"{name}_FILE", Path(file)) if file else value:
            found[name] = secret
    return found


def _content(variable: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"{variable} = {path}: cannot be read: {reason}") from None
    if not secret:
        raise ConfigError(f"{variable} = {path}: the file is empty")
    return secret


def _host(url: str, parts: SplitResult, text: str, default_port: int) -> Host:
    try:
        one = urlsplit(f"//{text}")
        name, port = one.hostname, one.port or default_port
    except ValueError:
        raise ConfigError(f"queue.url = {url!r}: ports are numbers, as in {_FORMS[parts.scheme]}") from None
    if not name:
        raise ConfigError(f"queue.url = {url!r}: a host is missing: write {_FORMS[parts.scheme]}")
    return Host(name, port)


def _path(url: str, parts: SplitResult, watched: bool) -> tuple[str, int]:
    service, _, database = parts.path.strip("/").partition("/") if watched else ("", "", parts.path.strip("/"))
    if watched and not service:
        raise ConfigError(
            f"queue.url = {url!r}: the service of the sentinels is missing: write {_FORMS[parts.scheme]}, "
            "with its name in their configuration (sentinel monitor NAME ...)"
        )
    if not (database or "0").isdecimal():
        raise ConfigError(f"queue.url = {url!r}: the database is a number, as in {_FORMS[parts.scheme]}")
    return service, int(database or 0)
