"""The servers of models that score and start with the run: their commands, and the launcher's wait.

    python -m olmorl.deploy.preflight.served_models RECIPE.toml [options of olmorl-launch]

prints a line for each service whose `gpus` is not 0: its key, and the command that serves it.
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


def serve_command(key: str, service: config.HttpService) -> list[str]:
    """The command that serves the service at `key` with vLLM. Raises ConfigError."""
    if service.model is None:
        raise ConfigError(f"{key}.gpus = {service.gpus}: name the model to serve in {key}.model")
    return ["vllm", "serve", service.model, "--tensor-parallel-size", str(service.gpus), "--port", str(PORT)]


def wait_for_served(settings: config.Config, poll_s: float = 2.0) -> None:
    """Wait until each service that starts with the run is healthy, as long as an engine may take to start.

    Raises:
        ConfigError: one has no address.
        ResourceError: one is not healthy in time.
    """
    until = time.monotonic() + settings.actors.start_deadline_s
    for key, service in settings.served.items():
        if service.url is None:
            raise ConfigError(
                f"{key}.gpus = {service.gpus}, and {key}.url is not set. deploy/slurm starts it and gives its address, "
                f"and so does deploy/kubernetes with a judge. To do so yourself, run "
                f"`{shlex.join(serve_command(key, service))}` and add --{key}.url http://HOST:{PORT}/v1. To do without "
                f"it, add --{key}.gpus 0: a run without a judge or reward model skips its rows"
            )
        if service.url != "local":
            _wait(key, service.url, until, settings.actors.start_deadline_s, poll_s)


def _wait(key: str, url: str, until: float, deadline_s: float, poll_s: float) -> None:
    place, told = urlsplit(url), False
    health = f"{place.scheme}://{place.netloc}/health"
    while failure := _failure(health):
        if time.monotonic() > until:
            raise ResourceError(
                f"{key}.url = {url}: {health} was not healthy within {deadline_s:g} s (actors.start_deadline_s), the "
                f"last answer: {failure}; see the log of its server"
            )
        if not told:
            print(f"waiting for {key}: {health}: {failure}", flush=True)
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
    """Print the commands."""
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        served = config.load(arguments.recipe, arguments.overrides).served
        lines = []
        for key, service in served.items():
            lines.append(f"{key} {shlex.join(serve_command(key, service))}")
            if service.url is not None:
                raise ConfigError(
                    f"{key}.gpus = {service.gpus} starts its server, and {key}.url names another: for that one, add "
                    f"--{key}.gpus 0"
                )
    except OlmoRLError as error:
        print(f"served_models: {error}", file=sys.stderr)
        return error.exit_code
    print("".join(f"{line}\n" for line in lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
