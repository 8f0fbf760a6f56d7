"""Text from models and functions is shown as text: no terminal obeys it."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

import olmorl
from olmorl.deploy.control.command import run_command
from olmorl.deploy.view.console import SafeConsole
from olmorl.errors import DataError
from olmorl.printable import printable

EVIL = "a\x1b]0;title\x07b\x1b[2Jc\x9b31md\re\u202ef\x7f"


def test_control_characters_become_visible_and_text_stays() -> None:
    assert printable(EVIL) == r"a\x1b]0;title\x07b\x1b[2Jc\x9b31md\re\u202ef\x7f"
    assert printable("α\tβ\nγ — 数") == "α\tβ\nγ — 数"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_tables_and_lines_of_a_console_keep_their_own_styles_only(is_terminal: bool) -> None:
    shown = io.StringIO()
    console = SafeConsole(
        file=shown,
        force_terminal=is_terminal,
        color_system="standard" if is_terminal else None,
        width=120,
        markup=False,
    )
    table = Table("what", title=EVIL)
    table.add_row(Text(EVIL, style="red"))
    console.print(table, EVIL, Text(EVIL))
    kept = re.sub(r"\x1b\[[\d;]*m", "", shown.getvalue())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", kept)
    assert ("\x1b[" in shown.getvalue()) is is_terminal
    assert r"\x1b]0;title" in kept


def test_errors_of_a_command_are_filtered(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise DataError(f"row 1: {EVIL}")

    assert run_command("olmorl-ctl", fail) == 2
    assert capsys.readouterr().err == f"olmorl-ctl: row 1: {printable(EVIL)}\n"


def test_every_console_of_the_project_is_the_filtering_one() -> None:
    folder = Path(olmorl.__file__).parent / "deploy"
    plain = [
        path.name
        for path in folder.rglob("*.py")
        if path.name != "console.py" and re.search(r"(?<![A-Za-z])Console\(|Live\(screen", path.read_text("utf-8"))
    ]
    assert plain == []
