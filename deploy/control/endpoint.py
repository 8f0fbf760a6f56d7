"""The run's control endpoint: one line of JSON in, one line of JSON out. It needs the run's token.

    {"token": "...", "command": "actors", "arguments": {"count": 4}}
    {"answer": {...}}  or  {"error": "...", "exit_code": 2}

It listens on the run's own address only; `control.json` in the run directory says where.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from olmorl.deploy.credentials import read_token
from olmorl.deploy.view.run_state import last_end
from olmorl.errors import ConfigError, OlmoRLError, ResourceError, RunEnded, UserError
from olmorl.run_dir import RunFiles

Command = Callable[..., Awaitable[Any]]
LONGEST_REQUEST = 64 * 1024
READ_DEADLINE_S = WRITE_DEADLINE_S = CONNECT_DEADLINE_S = 10.0
ANSWER_DEADLINE_S = 60.0
MOST_CONNECTIONS = 32


class ControlEndpoint:
    """Without the token a request learns nothing, and no request exceeds its bounds.

    Args:
        run_dir: the address is written there.
        host: the address to listen on.
        token: of the run.
        commands: by name; each takes the request's arguments by name.
    """

    def __init__(self, run_dir: Path, host: str, token: str, commands: Mapping[str, Command]) -> None:
        self._run_dir = run_dir
        self._file = RunFiles(run_dir).control
        self._host = host
        self._token = token
        self._commands = commands
        self._server: asyncio.Server | None = None
        self._num_open = 0

    async def start(self) -> None:
        """Listen on a free port. Raises ResourceError when the address cannot be written."""
        self._server = await asyncio.start_server(self._serve, self._host, 0, limit=LONGEST_REQUEST)
        port = self._server.sockets[0].getsockname()[1]
        where = {"address": f"{self._host}:{port}", "host": socket.gethostname(), "run": str(self._run_dir.resolve())}
        try:
            self._file.write_text(json.dumps(where) + "\n", encoding="utf-8")
        except OSError as error:
            raise ResourceError(f"{self._file}: {error.strerror}: olmorl-ctl needs it; make room there") from None

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
        with suppress(OSError):
            self._file.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._num_open += 1
        try:
            # The request is too long, too slow or cut off: there is no answer.
            with suppress(TimeoutError, ValueError, ConnectionError):
                if self._num_open <= MOST_CONNECTIONS:
                    async with asyncio.timeout(READ_DEADLINE_S):
                        line = await reader.readline()
                    writer.write(json.dumps(await self._reply(line)).encode() + b"\n")
                    async with asyncio.timeout(WRITE_DEADLINE_S):
                        await writer.drain()
        finally:
            self._num_open -= 1
            writer.close()

    async def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            return {"answer": await self._answer(line)}
        except OlmoRLError as error:
            return {"error": str(error), "exit_code": error.exit_code}

    async def _answer(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
            token, name, arguments = request["token"], request["command"], request["arguments"]
            known = isinstance(token, str) and hmac.compare_digest(token.encode(), self._token.encode())
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(f"not a request: {type(error).__name__}") from None
        if not known:
            raise ConfigError("wrong token: olmorl-ctl --help says where the right one is")
        if not isinstance(name, str) or name not in self._commands:
            raise ConfigError(f"{name!r} is no command; there are: {', '.join(self._commands)}")
        try:
            running = self._commands[name](**arguments)
        except TypeError as error:
            raise ConfigError(f"{name}: {error}") from None
        return await running


def send_command(run_dir: Path, command: str, timeout_s: float = ANSWER_DEADLINE_S, **arguments: Any) -> Any:
    """Send a command to the launcher of a run, and wait for its answer.

    Raises:
        ResourceError: no launcher answers.
        UserError: the launcher refuses the command.
        RunEnded: the command failed.
    """
    host, port, launcher, launched = _address(RunFiles(run_dir).control)
    try:
        token = read_token(run_dir, launcher)
    except ConfigError:
        if launched == str(run_dir.resolve()):
            raise
        moved = f"it was copied or moved from {launched or 'elsewhere'}, and no launcher runs it here"
        raise ResourceError(last_end(run_dir) or f"{run_dir}: {moved}") from None
    request = {"token": token, "command": command, "arguments": arguments}
    try:
        with (
            socket.create_connection((host, port), CONNECT_DEADLINE_S) as connection,
            connection.makefile("rwb") as stream,
        ):
            connection.settimeout(timeout_s)
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    except OSError as error:
        silence = f"its launcher does not answer at {host}:{port} ({error}): it is gone, or out of reach from here"
        raise ResourceError(last_end(run_dir) or f"{run_dir}: {silence}") from None
    if not line:
        raise ResourceError(f"{run_dir}: its launcher at {host}:{port} ended the connection; see logs/launcher.log")
    try:
        reply = json.loads(line)
        refusal = None if "answer" in reply else (reply["error"], reply["exit_code"])
    except (ValueError, KeyError, TypeError):
        raise ResourceError(
            f"{run_dir}: its launcher is gone, and another program answers at {host}:{port}; go on with it by "
            "olmorl-launch --resume"
        ) from None
    if refusal:
        raise (UserError if refusal[1] == 2 else RunEnded)(refusal[0])
    return reply["answer"]


def _address(path: Path) -> tuple[str, int, str, str]:
    """Address and port, the name of the launcher's host, and the folder of its run."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        address, _, port = said["address"].rpartition(":")
        return address, int(port), str(said["host"]), str(said.get("run", ""))
    except FileNotFoundError:
        raise ResourceError(
            last_end(path.parent)
            or f"{path.parent}: no launcher runs it, or it is still starting; go on with it by olmorl-launch --resume"
        ) from None
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResourceError(
            f"{path}: has no address yet: try again; if the launcher was killed, go on with olmorl-launch --resume"
        ) from None
