"""Options of a command. A mistake in an option is a ConfigError that names the allowed values."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from olmorl.errors import ConfigError


class Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse prints the usage and leaves."""

    _commands: Any = None

    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        hint = nearest(choice[1], re.findall(r"[\w-]+", choice[2])) if choice else ""
        raise ConfigError(f"{message.removeprefix('argument ')}{hint}; see --help")

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """The values of a command line. Raises ConfigError for a mistake in it."""
        arguments, unknown = self.parse_known_args(argv)
        if unknown:
            raise self.unknown(unknown[0])
        return arguments

    def unknown(self, word: str) -> ConfigError:
        """The error for an unknown option."""
        flag = word.partition("=")[0]
        return ConfigError(f"{flag}: unknown argument{nearest(flag, self._flags())}; see --help")

    def add_subparsers(self, **options: Any) -> Any:
        """As argparse does, and keep the commands."""
        self._commands = super().add_subparsers(**options)
        return self._commands

    def _flags(self) -> list[str]:
        """The options of this parser and its commands."""
        commands = self._commands.choices.values() if self._commands else ()
        return list(dict.fromkeys(flag for parser in (self, *commands) for flag in flags_of(parser)))


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the options that the help of a parser shows."""
    lines = re.findall(r"^ +(-.*)", parser.format_help(), re.MULTILINE)
    return re.findall(r"(?<!\S)--?[a-z][\w-]*", "\n".join(lines))


def nearest(word: str, known: Sequence[str]) -> str:
    """` (did you mean ...?)`, or nothing when no known word is near."""
    close = get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def count(text: str) -> int:
    """A whole number of 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:  # nor NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def column(text: str) -> str:
    """A name of a column."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name of a column is empty")
    return text


def check_verifier(option: str, name: str) -> None:
    """Raises ConfigError for a name that no built-in verifier has, in any spelling that rows may use."""
    from olmorl.learner.data.readers import ALIASES
    from olmorl.verifiers.registry import NAMES, unknown

    if ALIASES.get(name.lower(), name.lower()) not in NAMES:
        raise ConfigError(f"{option}: {unknown(name)}")
