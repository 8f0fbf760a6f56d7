"""The server of a judge that starts with the run: its command, and the launcher's wait for it.

    python -m olmorl.deploy.preflight.judge_server RECIPE.toml [options of olmorl-launch]

prints the command, one word a line, or nothing for a recipe with `verifiers.judge.gpus = 0`.
"""

from __future__ import annotations

import shlex
import sys
import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from urllib.parse import urlsplit

from olmorl import config
from olmorl.deploy.arguments import parse
from olmorl.errors import ConfigError, OlmoRLError, ResourceError

PORT = 8000


def serve_command(judge: config.Judge) -> list[str]:
    """The command that serves the judge with vLLM; empty when it does not start with the run. Raises ConfigError."""
    if not judge.gpus:
        return []
    if judge.model is None:
        raise ConfigError(f"verifiers.judge.gpus = {judge.gpus}: name the model to serve in verifiers.judge.model")
    return ["vllm", "serve", judge.model, "--tensor-parallel-size", str(judge.gpus), "--port", str(PORT)]


def wait_for_judge(settings: config.Config, poll_s: float = 2.0) -> None:
    """Wait until the judge of `verifiers.judge.gpus` is healthy, as long as an engine may take to start.

    Raises:
        ConfigError: it has no address.
        ResourceError: it is not healthy in time.
    """
    judge, deadline_s = settings.verifiers.judge, settings.actors.start_deadline_s
    if not judge.gpus or judge.url == "local":
        return
    if judge.url is None:
        raise ConfigError(
            f"verifiers.judge.gpus = {judge.gpus}, and verifiers.judge.url is not set: without a judge the run would "
            "skip its rows. deploy/slurm and deploy/kubernetes start it and give its address. To do so yourself, run "
            f"`{shlex.join(serve_command(judge))}` and add --verifiers.judge.url http://HOST:{PORT}/v1. To skip the "
            "rows, add --verifiers.judge.gpus 0"
        )
    place = urlsplit(judge.url)
    health, until, told = f"{place.scheme}://{place.netloc}/health", time.monotonic() + deadline_s, False
    while failure := _failure(health):
        if time.monotonic() > until:
            raise ResourceError(
                f"verifiers.judge.url = {judge.url}: {health} was not healthy within {deadline_s:g} s "
                f"(actors.start_deadline_s), the last answer: {failure}; see the log of the judge's server"
            )
        if not told:
            print(f"waiting for the judge: {health}: {failure}", flush=True)
        told = True
        time.sleep(poll_s)


def _failure(health: str) -> str:
    """The reason why a server is not healthy; empty if it is."""
    try:
        with urllib.request.urlopen(health, timeout=5):
            return ""
    except (OSError, HTTPException) as error:
        return str(error) or type(error).__name__


def main(argv: Sequence[str] | None = None) -> int:
    """Print the command."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        judge = config.load(arguments.recipe, arguments.overrides).verifiers.judge
        command = serve_command(judge)
        if command and judge.url is not None:
            raise ConfigError(
                f"verifiers.judge.gpus = {judge.gpus} starts a judge, and verifiers.judge.url names another: for that "
                "one, add --verifiers.judge.gpus 0"
            )
    except OlmoRLError as error:
        print(f"judge_server: {error}", file=sys.stderr)
        return error.exit_code
    print("".join(f"{word}\n" for word in command), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
