"""Writes standard input to a program and collects its output, from the test process."""

from __future__ import annotations

import os
import selectors

CHUNK = 1 << 16
STDERR_TAIL = 1000


class Pipes:
    """The three standard streams of a program. The program process keeps only `theirs`; this process keeps the rest."""

    def __init__(self) -> None:
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self.theirs = (stdin, stdout, stderr)
        os.set_blocking(self._stdin, False)

    def close_theirs(self) -> None:
        for descriptor in self.theirs:
            os.close(descriptor)

    def exchange(self, given: bytes, max_output: int) -> tuple[bytes, bytes, bool]:
        """Write `given` and read until the program closes its output.

        Returns:
            Standard output, the end of standard error, and whether output was cut at `max_output` bytes. After a cut
            the program may still run.
        """
        rest = memoryview(given)
        output, errors = bytearray(), bytearray()
        reading = {self._stdout: output, self._stderr: errors}
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            for descriptor in reading:
                selector.register(descriptor, selectors.EVENT_READ)
            while reading and len(output) <= max_output:
                for key, _ in selector.select():
                    if key.fd == self._stdin:
                        rest = self._write(rest)
                        if not rest:
                            selector.unregister(self._stdin)
                            os.close(self._stdin)
                    elif part := os.read(key.fd, CHUNK):
                        reading[key.fd] += part
                    else:
                        selector.unregister(key.fd)
                        del reading[key.fd]
                del errors[:-STDERR_TAIL]
        return bytes(output[:max_output]), bytes(errors), len(output) > max_output

    def _write(self, rest: memoryview) -> memoryview:
        """Write as much as the pipe takes. Returns the rest; empty if the program closed its input."""
        try:
            return rest[os.write(self._stdin, rest[:CHUNK]) :]
        except BlockingIOError:
            return rest
        except OSError:
            return rest[:0]
