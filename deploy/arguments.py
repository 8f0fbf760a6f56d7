"""The command line of `olmorl-launch`: a recipe, well-known options, and `--dotted.key value` for all the rest."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from olmorl import __version__, config
from olmorl.deploy.control.options import flags_of, nearest
from olmorl.errors import ConfigError

_SHORT = {
    "--learner-nodes": "learner.nodes",
    "--actor-nodes": "actors.nodes",
    "--ray-address": "cluster.address",
    "--name": "run.name",
    "--steps": "schedule.steps",
}
_NO_SWITCH = ("objective.constant_length", "objective.kl_target")
_ABOUT = """\
Train a model with reinforcement learning from verifiable rewards.

  olmorl-launch deploy/recipes/demo.toml                         a whole run on this machine, no GPU needed
  olmorl-launch deploy/recipes/demo.toml --dry-run               what would run where
  olmorl-launch deploy/recipes/demo.toml --preflight             what is missing for it, with the fix
  olmorl-launch RECIPE.toml --schedule.max_lag 4                 any key of the recipe, by its dotted name
  olmorl-launch RECIPE.toml --resume                             go on after a stop or a crash
  olmorl-launch RECIPE.toml --resume --change --steps 200        go on, with another configuration than before
  olmorl-launch deploy/recipes/olmo3-32b-think.toml --ray-address auto --learner-nodes 8 --actor-nodes 20

Ctrl-C stops after the current micro-batch with a checkpoint; a second Ctrl-C stops at once.
"""


@dataclass(frozen=True)
class Arguments:
    """The parsed command line."""

    recipe: Path
    overrides: tuple[tuple[str, str], ...]
    dry_run: bool
    preflight: bool
    resume: bool
    change: bool
    """Accept the differences from the earlier start."""
    from_step: int | None
    command_line: tuple[str, ...]


def parse(argv: Sequence[str]) -> Arguments:
    """Read the command line.

    Raises:
        ConfigError: an option that is neither known nor a dotted key with a value.
    """
    parser = _parser()
    words, keys = dotted(argv)
    known, unknown = parser.parse_known_args(words)
    for word in unknown:
        meant = _meant(word, flags_of(parser))
        raise ConfigError(f"{word}: unknown argument{meant}; keys of the recipe are written --section.key value")
    overrides = [
        (key, str(value)) for flag, key in _SHORT.items() if (value := getattr(known, _name(flag))) is not None
    ]
    if known.strict_data:
        overrides.append(("data.strict", "true"))
    overrides += keys
    _refuse_twice(argv, overrides)
    resume = known.resume or known.from_step is not None
    if known.change and not resume:
        raise ConfigError("--change needs --resume: it accepts the differences from the earlier start")
    return Arguments(
        recipe=known.recipe,
        overrides=tuple(overrides),
        dry_run=known.dry_run,
        preflight=known.preflight,
        resume=resume,
        change=known.change,
        from_step=known.from_step,
        command_line=tuple(argv),
    )


def _refuse_twice(argv: Sequence[str], overrides: Sequence[tuple[str, str]]) -> None:
    """Refuse two values for one key: one of them would be lost silently."""
    flags = [word.partition("=")[0] for word in argv if word.startswith("--")]
    values: dict[str, list[str]] = {}
    for key, value in overrides:
        values.setdefault(key.replace("-", "_"), []).append(value)
    for key, given in values.items():
        if len(given) > 1:
            said = " and ".join(given)
            raise ConfigError(f"{key} is given {len(given)} times on the command line ({said}): keep one of them")
    for outer, inner in product(values, values):
        if inner.startswith(f"{outer}.") and values[outer][0].startswith("{"):
            raise ConfigError(
                f"{outer} and {inner} are both given on the command line: write one table, or only its keys"
            )
    for flag in (*_SHORT, "--from-step"):
        if flags.count(flag) > 1:
            raise ConfigError(f"{flag} is given {flags.count(flag)} times on the command line: keep one of them")


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def dotted(argv: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Take `--section.key value` and `--section.key=value` out of a command line.

    Returns its other words, then keys and values.

    Raises:
        ConfigError: a key without a value.
    """
    others: list[str] = []
    pairs: list[tuple[str, str]] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        key, given, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in key:
            others.append(word)
            continue
        if not given:
            if not words or words[0].startswith("--"):
                raise ConfigError(f"{word}: needs a value, as in {word} VALUE")
            value = words.pop(0)
        pairs.append((key, value))
    return others, pairs


def _meant(flag: str, options: Sequence[str]) -> str:
    """A hint: a section of this name, keys that end in it, or a similar option."""
    word = flag.partition("=")[0]
    name = word.removeprefix("--")
    if name in config.Config.model_fields:
        return f" ({name} is a section: its keys are --{name}.KEY)"
    keys = config.keys_named(name)
    return f" (did you mean {' or '.join(f'--{key}' for key in keys)}?)" if keys else nearest(word, options)


class _Keys(argparse.Action):
    """`--help-keys`: every key of a recipe with its type, choices, bounds, default and meaning."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for key in config.reference():
            is_switch = key.key.startswith("objective.") and key.key not in _NO_SWITCH
            default = key.default or ("of the preset" if is_switch else "none")
            print(f"--{key.key}   {key.wanted}   [default: {default}]")
            print(textwrap.fill(key.meaning, 100, initial_indent="      ", subsequent_indent="      "))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="olmorl-launch",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        type=Path,
        metavar="RECIPE.toml",
        help="the configuration; see deploy/recipes/. Or a script of verl's PPO trainer that ends in .sh",
    )
    parser.add_argument("--learner-nodes", type=int, metavar="N", help="nodes of the learner")
    parser.add_argument("--actor-nodes", type=int, metavar="M", help="nodes of the actors")
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help='join this Ray cluster ("auto": the one running here)'
    )
    parser.add_argument("--name", help="name of the run: its folder under run.directory")
    parser.add_argument("--steps", type=int, help="learner steps in the whole run")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and the placement, then stop"
    )
    parser.add_argument(
        "--preflight",
        action="store_true",
        help="check model, tokenizer, Redis, every host, and that an engine and the learner agree; then stop",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run of this name")
    parser.add_argument(
        "--change",
        action="store_true",
        help="with --resume: accept the keys that differ from the earlier start",
    )
    parser.add_argument(
        "--from-step",
        type=int,
        metavar="S",
        help="resume from the checkpoint of step S; later files move to abandoned/",
    )
    parser.add_argument("--strict-data", action="store_true", help="a row that cannot be used is an error")
    about_keys = "list every key with type, choices, bounds, default and meaning"
    parser.add_argument("--help-keys", action=_Keys, nargs=0, help=about_keys)
    parser.add_argument("--version", action="version", version=f"olmorl {__version__}")
    return parser
