"""The table of the families, as Markdown for `docs/cluster.md`, and what a result must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.models.families import FAMILIES

TOLERANCE: Final = 2e-3
"""Nats by which log-probabilities of two fp32 implementations may differ."""
VISIBLE: Final = 10 * TOLERANCE
"""A change of weights moves the learner's log-probabilities by at least this, so that a lost update would show."""
_HEAD: Final = (
    "| family | its models have | groups of weights | engine - learner at the start | after updates | packed - alone |"
    " export loads |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)


def problems(result: Mapping[str, Any]) -> list[str]:
    """What is wrong with a result."""
    if "failed" in result:
        return [str(result["failed"])]
    found = [f"{key} differs by {result[key]:.1g}" for key in ("before", "after", "packed") if result[key] > TOLERANCE]
    if result["moved_least"] < VISIBLE:
        found.append(f"a change of {result['least_group']} moves nothing")
    return found + ([] if result["export"] else ["the export differs"])


def render(results: Mapping[str, Mapping[str, Any]]) -> str:
    """One row for each family, largest differences in nats."""
    rows = [_row(name, results[name]) for name in FAMILIES if name in results]
    return "\n".join([*_HEAD, *rows])


def _row(name: str, result: Mapping[str, Any]) -> str:
    if wrong := problems(result):
        return f"| {name} | {FAMILIES[name].has} | refused: {'; '.join(wrong)} | | | | |"
    before, after, packed = (f"{result[key]:.0e}" if result[key] else "0" for key in ("before", "after", "packed"))
    return f"| {name} | {FAMILIES[name].has} | {result['groups']} | {before} | {after} | {packed} | yes |"
