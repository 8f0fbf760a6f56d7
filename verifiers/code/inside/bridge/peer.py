"""Calls between the program process and the test process over one socket. Each may call back during a call."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

from olmorl.verifiers.code.inside.bridge.codec import MAX_MESSAGE_BYTES, Codec, CodecError
from olmorl.verifiers.code.inside.bridge.coroutines import Turns

HEADER = struct.Struct("<I")


class Gone(BaseException):
    """The other side ended or sent an invalid message. It is no Exception, so handlers of a test do not catch it."""


class MessageLink:
    """Sends and receives whole messages over a stream socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def send(self, message: bytes) -> None:
        """Send one message. Raises Gone."""
        try:
            self._end.sendall(HEADER.pack(len(message)) + message)
        except OSError:
            raise Gone("the other side closed") from None

    def receive(self) -> bytes:
        """Receive one message. Raises Gone."""
        (size,) = HEADER.unpack(self._exactly(HEADER.size))
        if size > MAX_MESSAGE_BYTES:
            raise Gone("the other side sent a message that is too long")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._end.recv(min(size - len(data), 1 << 20))
            except OSError:
                part = b""
            if not part:
                raise Gone("the other side closed")
            data += part
        return bytes(data)


class Peer:
    """One end of the calls. A call returns the value, or raises the exception, of the other side."""

    def __init__(self, link: MessageLink, codec: Codec, perform: Callable[[str, list[Any]], Any]) -> None:
        """
        Args:
            perform: carries out a request of the other side.
        """
        self._link = link
        self.codec = codec
        self._perform = perform
        self.gone = False
        """Whether the other side is gone, even if a caller caught the exception."""
        self.turns = Turns(self.ask)
        self.missed: Callable[[str], None] = lambda name: None
        """Called with the name of an attribute that an object of the other side lacks."""
        self.skips: Callable[[int], bool] = lambda line: False
        """Whether an error at a line of the test keeps an assertion from running."""
        self.expected: Any = None
        """The `ExpectedObjects` of a test."""

    def ask(self, verb: str, *values: Any, actor_born: int = 0) -> Any:
        """Call the other side. Raises its exception, CodecError for values that cannot be sent, or Gone.

        Args:
            actor_born: when the object that acts was made, by `Codec.messages`.
        """
        self._send(self.codec.pack(verb, values))
        while True:
            self.codec.actor_born = actor_born
            kind, reply = self._receive()
            if kind == "done" and len(reply) == 1:
                return reply[0]
            if kind == "raised" and len(reply) == 1 and isinstance(reply[0], BaseException):
                raise reply[0]
            self._answer(kind, reply)

    def serve(self) -> None:
        """Answer calls until the other side is gone."""
        try:
            while True:
                self._answer(*self._receive())
        except Gone:
            return

    def _receive(self) -> tuple[str, list[Any]]:
        try:
            return self.codec.unpack(self._link.receive())
        except Gone:
            self.gone = True
            raise
        except CodecError as error:
            self.gone = True
            raise Gone(str(error)) from None

    def _send(self, message: bytes) -> None:
        try:
            self._link.send(message)
        except Gone:
            self.gone = True
            raise

    def _answer(self, verb: str, values: list[Any]) -> None:
        kind: str
        try:
            kind, value = "done", self._perform(verb, values)
        except Gone:
            raise
        except BaseException as error:  # any exception of the call is sent to the caller
            kind, value = "raised", error
        try:
            message = self.codec.pack(kind, [value])
        except CodecError as error:
            message = self.codec.pack("raised", [ValueError(str(error))])
        self._send(message)
