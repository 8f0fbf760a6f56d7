"""Writes values as TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ESCAPED = {chr(code): f"\\u{code:04x}" for code in (*range(32), 127)} | {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
"""Escapes in a TOML string."""


def literal(value: Any) -> str:
    """One value, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_ESCAPED.get(sign, sign) for sign in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)} = {literal(v)}" for k, v in value.items()) + "}"
    return repr(value)


def document(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections with values and tables of values. TOML has no None, so no value may be None."""
    lines: list[str] = []
    for section, values in tree.items():
        tables = {key: value for key, value in values.items() if isinstance(value, dict)}
        lines += [f"[{section}]", *(f"{key} = {literal(v)}" for key, v in values.items() if key not in tables), ""]
        for key, table in tables.items():
            lines += [f"[{section}.{key}]", *(f"{literal(k)} = {literal(v)}" for k, v in table.items()), ""]
    return "\n".join(lines)


def line_of(text: str, key: str) -> int | None:
    """The number of the line of a TOML document that sets a dotted key; None: no line sets this key alone."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("=")[0].strip()
        if name.startswith("["):
            section = name.partition("]")[0].strip("[ ") + "."
        elif section + name == key:
            return number
    return None
