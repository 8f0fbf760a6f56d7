"""`olmorl-ctl`: look at a run, and control it."""

from __future__ import annotations

import argparse
import getpass
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmorl.config import load, parse_value
from olmorl.deploy.control.command import run_command
from olmorl.deploy.control.endpoint import ANSWER_DEADLINE_S, send_command
from olmorl.deploy.view.tables import (
    follow_view,
    show_actors,
    show_changes,
    show_dead_letters,
    show_figure,
    show_ledger,
    show_message,
    show_status,
    show_trace,
    show_view,
)
from olmorl.errors import ConfigError, DataError, ResourceError
from olmorl.learner.storage.best_checkpoint import best_step
from olmorl.run_dir import RunFiles

_ABOUT = """\
Look at a run, and control it.

  olmorl-ctl runs/demo status                 its state: its last step, its actors, what it waits for
  olmorl-ctl runs/demo top                    the live view of a running run; Ctrl-C leaves it
  olmorl-ctl runs/demo ledger                 how its draws ended; --json: one object per draw
  olmorl-ctl runs/demo figure reward.png      its curves as a picture
  olmorl-ctl runs/demo trace 17               the story of prompt 17, from its draw to its end
  olmorl-ctl runs/demo export FOLDER          a checkpoint (--step N, else the newest) as a Hugging Face folder
  olmorl-ctl runs/demo push OWNER/NAME        the same, to the hub; the token is in HF_TOKEN

  olmorl-ctl runs/demo actors                 the actors, one a row
  olmorl-ctl runs/demo actors --count 4       actors join, or leave once their prompts are done
  olmorl-ctl runs/demo drain actor-2          this one leaves
  olmorl-ctl runs/demo pause                  draw and lease no more; finish leased prompts
  olmorl-ctl runs/demo resume                 go on
  olmorl-ctl runs/demo checkpoint             write one after the current step, and wait until it is complete
  olmorl-ctl runs/demo set KEY VALUE          change a key from the next step on; without KEY: what can change, what did
  olmorl-ctl runs/demo stop                   as Ctrl-C in the launcher
  olmorl-ctl runs/demo dead-letters           unusable prompts and results, and why; --replay: draw those rows again

Commands to a run need its token. It is in ~/.local/state/olmorl/tokens (XDG_STATE_HOME), which only the run's owner can
read, or in OLMORL_TOKEN.
"""
_DEADLINES_S = {"checkpoint": 4000.0, "actors": 600.0, "dead-letters": 150.0, "set": 600.0}
"""Deadline of commands that may take long: a slow disk, places for many actors, an orchestrator that starts."""
_LEFT_BY_RUNS = ("config.toml", "metrics.jsonl", "ledger", "control.json", "processes.json")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 done, 1 the run could not, 2 a mistake to mend."""
    return run_command("olmorl-ctl", lambda: _do(_parser().parse_args(argv)))


def _do(arguments: argparse.Namespace) -> int:
    run_dir: Path = arguments.run
    if not any((run_dir / name).exists() for name in _LEFT_BY_RUNS):
        raise DataError(f"{run_dir}: no run directory; runs are made under run.directory (default: runs/)")
    arguments.do(run_dir, arguments)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="olmorl-ctl", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def add(name: str, about: str, do: Any) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
        command.add_argument("--json", action="store_true", help="for programs")
        command.set_defaults(do=do)
        return command

    add("status", "its last step, its actors, what it waits for", status)
    add("top", "the live view of a running run; Ctrl-C leaves it", top)
    add("ledger", "every draw and its outcome", show_ledger)
    figure = add("figure", "its curves as a picture", show_figure)
    figure.add_argument("file", type=Path, help="where to: .png, .svg or .pdf")
    trace = add("trace", "the story of one prompt: drawn, leased, written, verified, filtered or trained", show_trace)
    trace.add_argument("prompt", type=int, metavar="PROMPT_ID", help="its number, as in `ledger` and the rollouts")
    to = add("export", "a checkpoint as a Hugging Face folder; the run may be over", export)
    to.add_argument("folder", type=Path, help="where to: a folder that is empty or not there")
    to.add_argument("--step", metavar="N", help="the checkpoint of step N, or best; default: the newest complete one")
    hub = add("push", "a checkpoint to the hub, with the token in HF_TOKEN; the run may be over", push)
    hub.add_argument("name", metavar="OWNER/NAME", help="the repository; made, private, if it is not there")
    hub.add_argument("--step", metavar="N", help="the checkpoint of step N, or best; default: the newest complete one")
    hub.add_argument("--public", action="store_true", help="make a new repository public")
    count = add("actors", "the actors; with --count: change their number", actors)
    count.add_argument("--count", type=int, metavar="N", help="actors join, or leave once they are done")
    drain = add("drain", "an actor finishes its leased prompts, and leaves", order)
    drain.add_argument("actor", help="its name, as in the table of actors")
    add("pause", "draw and lease no more; leased prompts are finished", order)
    add("resume", "go on after a pause", order)
    add("checkpoint", "write a checkpoint after the current step, and wait until it is complete", order)
    change = add("set", "change a key of the configuration from the next step on", set_key)
    change.add_argument("key", nargs="?", help="such as learner.learning_rate; without: the keys, and what was changed")
    change.add_argument("value", nargs="?", help="the new value")
    add("stop", "end after the current micro-batch, with a checkpoint", order)
    letters = add("dead-letters", "prompts and results that could not be used", dead_letters)
    letters.add_argument("--replay", action="store_true", help="draw their rows again, as new draws")
    return parser


def status(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Show the state in the run directory, and the answer of the launcher if one runs."""
    live, silence = None, ""
    try:
        live = send_command(run_dir, "status")
    except ResourceError as error:
        silence = str(error)
    show_status(run_dir, live, silence, arguments.json)


def top(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Show what the launcher shows: once, or on a terminal until Ctrl-C or the end of the run."""
    view = send_command(run_dir, "view")
    if arguments.json:
        show_view(view, as_json=True)
    elif not sys.stdout.isatty():
        show_view(view, as_json=False)
    else:
        follow_view(view, lambda: send_command(run_dir, "view"))


def export(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Write a checkpoint as a Hugging Face folder. Needs only the run's files."""
    # Imported here, because it takes seconds.
    from olmorl.learner.trainer import export as exporting

    step = exporting.export(run_dir, _step_of(run_dir, arguments.step), arguments.folder)
    message = f"{arguments.folder}: the policy after step {step}"
    if stops := load(RunFiles(run_dir).config, of_run=True).sampling.stop:
        message += f"; its answers ended at the texts {stops}: ask a server for them with stop"
    show_message({"message": message, "step": step}, arguments.json)


def push(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Push a checkpoint to the hub. Needs only the run's files."""
    from olmorl.deploy.control import hub_push

    step = _step_of(run_dir, arguments.step)
    step, address = hub_push.push(run_dir, step, arguments.name, public=arguments.public)
    message = f"{arguments.name}: the policy after step {step}: {address}"
    show_message({"message": message, "step": step, "address": address}, arguments.json)


def _step_of(run_dir: Path, text: str | None) -> int | None:
    if text == "best":
        return best_step(RunFiles(run_dir).checkpoints)
    if text is not None and not text.isdecimal():
        raise ConfigError(f"--step {text}: give the number of a step, or best")
    return None if text is None else int(text)


def actors(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Show the actors, or change their number."""
    if arguments.count is None:
        show_actors(send_command(run_dir, "status")["actors"], arguments.json)
    else:
        show_message(_order(run_dir, "actors", count=arguments.count, who=_who()), arguments.json)


def set_key(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Change a key while the run goes on, or show which keys can change and what was changed."""
    if arguments.key is None:
        show_changes(run_dir, arguments.json)
        return
    if arguments.value is None:
        raise ConfigError(f"set {arguments.key}: name the new value too")
    value = parse_value(arguments.value)
    show_message(_order(run_dir, "set", key=arguments.key, value=value, who=_who()), arguments.json)


def _who() -> str:
    """The user of this process, by name or else by number, and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def order(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Send a command, and show the launcher's answer."""
    more = {"actor": arguments.actor} if arguments.command == "drain" else {}
    show_message(_order(run_dir, arguments.command, **more), arguments.json)


def _order(run_dir: Path, command: str, **arguments: Any) -> Any:
    return send_command(run_dir, command, _DEADLINES_S.get(command, ANSWER_DEADLINE_S), **arguments)


def dead_letters(run_dir: Path, arguments: argparse.Namespace) -> None:
    """Replay the dead letters if that is asked for, and show them. Without a replay no launcher is needed."""
    try:
        found = _order(run_dir, "dead-letters", replay=arguments.replay)
    except ResourceError:
        if arguments.replay:
            raise
        # Imported here, because it takes a second.
        from olmorl.deploy.control.kept_letters import kept_letters

        found = {"letters": kept_letters(run_dir), "replayed": []}
    show_dead_letters(found, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
