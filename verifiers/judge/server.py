"""The included judge and reward model: an HTTP server on the loopback interface, with a switch for faults.

    python -m olmorl.verifiers.judge.server --port 8750
    curl -d '{"kind": "429", "seconds": 20}' http://127.0.0.1:8750/fault

`/v1/chat/completions` and `/classify` answer like vLLM, with scores from word counts. `/fault` takes one of `KINDS` and
a duration: `seconds` or `calls`. Without a duration the fault stays until `{"kind": "none"}`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from typing import Any, Literal, get_args

import msgspec
from aiohttp import web

from olmorl.verifiers.judge.heuristics import grade, parse, quality

LOOPBACK = "127.0.0.1"
HANG_S = 3600.0
FLOOD_BYTES = 4 << 20
Kind = Literal[
    "none", "429", "500", "400", "hang", "slow", "drop", "cut", "page", "flood", "reply", "truncated", "nan", "refusal"
]
KINDS = get_args(Kind)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault of the server, with its duration."""

    kind: Kind
    """An HTTP status; no reply, a late reply, a lost connection, half a body, a web page, a huge body; or a model that
    replies with `text`, with half of a grade, with NaN, or with a refusal."""
    seconds: float = float("inf")
    calls: float = float("inf")
    text: str = ""
    delay_s: float = 0.5
    """The delay of `slow`."""
    retry_after: str | None = None
    """The header Retry-After, with 429 and 500."""


class JudgeServer:
    """Every request gets the present fault; without a fault it gets a score."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0
        self.most_running = 0
        self._fault = Fault("none")
        self._fault_ends = 0.0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Start to listen, and return the URL. Port 0 takes any free port."""
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/classify", self._classify)
        app.router.add_post("/fault", self._switch)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, port).start()
        return f"http://{LOOPBACK}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _switch(self, request: web.Request) -> web.Response:
        try:
            fault = msgspec.json.decode(await request.read(), type=Fault)
        except msgspec.MsgspecError as error:
            return web.json_response({"error": f"{error}; kinds: {', '.join(KINDS)}"}, status=400)
        self._fault, self._fault_ends = fault, time.monotonic() + fault.seconds
        return web.json_response({"kind": fault.kind})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, _chat_reply)

    async def _classify(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, _classification)

    async def _answer(self, request: web.Request, reply: Any) -> web.StreamResponse:
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            asked = json.loads(await request.read())
            fault = self._current()
            if (broken := await _broken(request, fault)) is not None:
                return broken
            body = reply(asked, fault)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            return web.json_response({"error": {"message": f"cannot read the request: {error!r}"}}, status=400)
        finally:
            self.running -= 1
        return web.Response(body=json.dumps(body).encode(), content_type="application/json")

    def _current(self) -> Fault:
        """The fault for this call. The call counts against its duration."""
        fault = self._fault
        if fault.calls <= 0 or time.monotonic() >= self._fault_ends:
            return Fault("none")
        self._fault = msgspec.structs.replace(fault, calls=fault.calls - 1)
        return fault


async def _broken(request: web.Request, fault: Fault) -> web.StreamResponse | None:
    """The response of the fault; None if a normal reply follows."""
    match fault.kind:
        case "429" | "500" | "400" as status:
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            return web.Response(status=int(status), text="requested by the fault switch", headers=headers)
        case "hang":
            await asyncio.sleep(HANG_S)
        case "slow":
            await asyncio.sleep(fault.delay_s)
        case "drop":
            _abort(request)
            return web.Response()
        case "cut":
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            await response.prepare(request)
            await response.write(b'{"choices": [')
            _abort(request)
            return response
        case "page":
            return web.Response(text="<html>The gateway says hello</html>", content_type="text/html")
        case "flood":
            return web.Response(body=b" " * FLOOD_BYTES)
    return None


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _chat_reply(request: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """A chat completion with the grade of the answer in the last message, or with the text of the fault."""
    asked = parse(request["messages"][-1]["content"])
    if asked is None:
        raise ValueError("the question does not use a built-in template; this judge reads no others")
    grading = json.dumps({"reasoning": "Words were counted.", "score": grade(asked)})
    content, refusal, reason = _spoken(grading, fault)
    message = {"role": "assistant", "content": content, "refusal": refusal}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }


def _spoken(grading: str, fault: Fault) -> tuple[str | None, str | None, str]:
    """The content, refusal and finish reason of the message."""
    match fault.kind:
        case "reply":
            return fault.text, None, "stop"
        case "truncated":
            return grading[: len(grading) // 2], None, "length"
        case "nan":
            return '{"reasoning": "", "score": NaN}', None, "stop"
        case "refusal":
            return None, "I cannot help with that.", "stop"
    return grading, None, "stop"


def _classification(request: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """One output from -4 to 4, for the last turn as an answer to the turn before it."""
    *_, question, answer = [str(turn["content"]) for turn in request["messages"]]
    output = 8 * quality(answer, question) - 4
    match fault.kind:
        case "nan":
            output = float("nan")
        case "reply":
            output = float(fault.text)
    return {"object": "list", "data": [{"index": 0, "label": "LABEL_0", "probs": [output], "num_classes": 1}]}


async def _serve(port: int) -> None:
    """Serve until a signal to stop."""
    server, stop = JudgeServer(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"judge and reward model on {await server.start(port)}", flush=True)
    await stop.wait()
    await server.stop()


def main() -> None:
    """Run the server in the foreground."""
    parser = argparse.ArgumentParser(prog="python -m olmorl.verifiers.judge.server", description=__doc__)
    parser.add_argument("--port", type=int, default=8750, help="0 takes any free port (default: %(default)s)")
    asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()
