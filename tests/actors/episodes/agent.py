"""A small agent for tests, in the standard library alone. Its argument says what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

GO_ON = {"role": "user", "content": "go on"}


def post(body: bytes) -> Any:
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        body,
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"},
    )
    return urllib.request.urlopen(request, timeout=60)


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "temperature": 0.2}
    message: dict[str, Any] = json.load(post(json.dumps(body).encode()))["choices"][0]["message"]
    return message


def main(does: str) -> None:
    row = json.loads(Path(os.environ["OLMORL_ROW"]).read_text(encoding="utf-8"))
    history: list[dict[str, Any]] = [{"role": "user", "content": str(row["prompt"])}]
    if does in ("crash", "silent", "nothing"):
        print("no tools found", file=sys.stderr)
        time.sleep(60 if does == "silent" else 0)
        sys.exit(does == "crash")
    for _ in range(4 if does == "mixed" else 2):
        history += [ask(history), GO_ON]
        if does == "rewrite" or (does == "mixed" and row["n"] % 2):
            history = [{"role": "system", "content": f"{len(history)} messages so far"}, GO_ON]
    if does in ("reward", "bad reward"):
        Path(os.environ["OLMORL_REWARD"]).write_text("0.75\n" if does == "reward" else "good", encoding="utf-8")
    if does == "hang":
        # The child has a session and a parent of its own.
        child = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", child, os.environ["OLMORL_ROW"]], start_new_session=True)
        time.sleep(600)
    if does == "late crash":
        raise RuntimeError("cannot read the answer")
    if does == "ask on":
        while True:
            ask(history)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
