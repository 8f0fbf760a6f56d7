"""Ends a command: with an exit code, and after an error with one line that says what to do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from olmorl.errors import OlmoRLError, UserError

INTERRUPTED = 130


def run_command(program: str, do: Callable[[], int]) -> int:
    """Run the body of a command; returns its exit code, or that of its error.

    A reader that has closed the pipe, such as `head`, is no error.
    """
    try:
        return do()
    except OlmoRLError as error:
        _say(f"{program}: {error}")
        return error.exit_code
    except PermissionError as error:
        _say(f"{program}: {error.filename}: {error.strerror}")
        return UserError.exit_code
    except (asyncio.CancelledError, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    finally:
        _let_go()


def _say(text: str) -> None:
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr)


def _let_go() -> None:
    """Drop buffered output for a reader that is gone: it would raise again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
