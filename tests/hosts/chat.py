"""Two programs that talk over TCP, to test a link: `chat.py answer|ask|hold ADDRESS PORT [SECONDS]`."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
import time


def answer(address: str, port: int) -> None:
    with socket.create_server((address, port)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_echo, args=[connection], daemon=True).start()


def _echo(connection: socket.socket) -> None:
    while data := connection.recv(100):
        connection.sendall(data)


def ask(address: str, port: int, timeout_s: float, questions: int | None) -> str:
    """How it ended: "answered", "silence" or the error."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            for _ in range(questions) if questions else itertools.count():
                connection.sendall(b"?")
                if not connection.recv(100):
                    return "closed"
                if not questions:
                    print("answered", flush=True)
                    time.sleep(0.1)
            return "answered"
    except TimeoutError:
        return "silence"
    except OSError as error:
        return str(error)


if __name__ == "__main__":
    what, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "answer":
        answer(address, port)
    print(ask(address, port, float(sys.argv[4]), 1 if what == "ask" else None))
