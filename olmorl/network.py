"""The way from this host to another one."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

import psutil


class Way(NamedTuple):
    """The interface that leads to another host, and this host's address there."""

    interface: str
    own_address: str


def way_to(address: str) -> Way:
    """The way to `host:port`.

    By itself, gloo takes the interface of the host's own name, which is often a loopback address.
    """
    host, _, port = address.rpartition(":")
    family, kind, _, _, place = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        own: str = probe.getsockname()[0]
    interfaces: dict[str, list[Any]] = psutil.net_if_addrs()
    return Way(next(name for name, found in interfaces.items() if own in {each.address for each in found}), own)
