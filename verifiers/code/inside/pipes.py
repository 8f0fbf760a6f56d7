"""Gives a program its standard input and collects its output, from the test process.

The input is a file in memory, as a judge's is: programs ask for its size, and read it more than once. Where the test
has its own /tmp it is a file there, and /dev/stdin leads to it.
"""

from __future__ import annotations

import os
import selectors

CHUNK = 1 << 16
STDIN = "/tmp/.stdin"
STDERR_TAIL = 1000


class Pipes:
    """The three standard streams of a program. The program process keeps only `theirs`; this process keeps the rest."""

    def __init__(self, own_folder: bool) -> None:
        """
        Args:
            own_folder: whether this test alone has /tmp.
        """
        self._stdin = os.open(STDIN, os.O_RDWR | os.O_CREAT) if own_folder else os.memfd_create("stdin")
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self.theirs = (self._stdin, stdout, stderr)

    def give(self, given: bytes) -> None:
        """Write the input, before the program runs. Raises OSError if it is larger than a file may be."""
        written = 0
        while written < len(given):
            # The program has the same offset, which `write` would move.
            written += os.pwrite(self._stdin, memoryview(given)[written:], written)

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)

    def read(self, max_output: int) -> tuple[bytes, bytes, bool]:
        """Read until the program closes its output.

        Returns:
            Standard output, the end of standard error, and whether output was cut at `max_output` bytes. After a cut
            the program may still run.
        """
        output, errors = bytearray(), bytearray()
        reading = {self._stdout: output, self._stderr: errors}
        with selectors.DefaultSelector() as selector:
            for descriptor in reading:
                selector.register(descriptor, selectors.EVENT_READ)
            while reading and len(output) <= max_output:
                for key, _ in selector.select():
                    if part := os.read(key.fd, CHUNK):
                        reading[key.fd] += part
                    else:
                        selector.unregister(key.fd)
                        del reading[key.fd]
                del errors[:-STDERR_TAIL]
        return bytes(output[:max_output]), bytes(errors), len(output) > max_output
