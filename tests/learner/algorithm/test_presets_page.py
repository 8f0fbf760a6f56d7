"""The table of presets in `docs/algorithms.md` has the values of the code."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from olmorl.config import Objective, Preset
from olmorl.learner.algorithm.presets import spelled_out

PAGE = Path(__file__).resolve().parents[3] / "docs" / "algorithms.md"
MAX_TOKENS = 1000


def table() -> dict[str, dict[str, str]]:
    """Each preset's cells by the name of their column."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| preset |"))
    head = cells(lines[start])
    rows = [dict(zip(head, cells(line), strict=True)) for line in lines[start + 2 :][: len(get_args(Preset))]]
    return {row["preset"].strip("`"): row for row in rows}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_preset_has_a_row() -> None:
    assert set(table()) == set(get_args(Preset))


@pytest.mark.parametrize("preset", get_args(Preset))
def test_a_row_has_the_switches_of_its_preset(preset: Preset) -> None:
    row = table()[preset]
    known = spelled_out(Objective(preset=preset), MAX_TOKENS)
    for name in ("advantage", "normalize", "ratio", "clip"):
        assert row[name] == getattr(known, name), name
    for name in ("eps_low", "eps_high", "kl_beta"):
        assert float(row[name]) == getattr(known, name), name
    assert row["rho"] == str(known.rho)
    share = row["overlong_buffer"]
    buffer = int(share.rstrip("%")) * MAX_TOKENS // 100 if share.endswith("%") else int(share)
    assert buffer == known.overlong_buffer
    assert known.proximal == "old"
    assert known.rho == "off" or known.rho_kind == row["rho_kind"]
