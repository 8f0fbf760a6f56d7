"""Defines a section of a recipe, and describes its keys as the models of the configuration have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from olmorl import toml
from olmorl.extension import OwnFunction


class Section(BaseModel):
    """Is frozen. Refuses unknown keys, infinities and NaN."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )


class Key(NamedTuple):
    """The description of one key of a recipe."""

    key: str
    default: str
    """Empty: no default."""
    meaning: str
    type: str
    choices: tuple[str, ...]
    bounds: str
    """For instance `>= 0, < 1`. Empty: no bounds."""

    @property
    def wanted(self) -> str:
        """Type, bounds and choices in one line."""
        number = "" if self.type == "text" and self.choices else f"{self.type} {self.bounds}".strip()
        return " or ".join([*([number] if number else []), *(f'"{choice}"' for choice in self.choices)])


def keys(prefix: str, section: type[BaseModel]) -> list[Key]:
    """All keys of a section and its sub-sections. `prefix` is put in front of each name."""
    rows: list[Key] = []
    for key, leaf in section.model_fields.items():
        default = leaf.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            rows += keys(f"{prefix}{key}.", type(default))
            continue
        shown = "" if default is None else str(default) if isinstance(default, str | Path) else toml.literal(default)
        rows.append(describe(leaf)._replace(key=f"{prefix}{key}", default=shown))
    return rows


_TYPES: Mapping[Any, str] = {
    str: "text",
    Path: "path",
    int: "integer",
    float: "number",
    bool: "true or false",
    Any: "value",
}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_RANGES: Mapping[str, str] = {"min_length": "at least {} long", "pattern": "matching {}"}


def describe(field: FieldInfo) -> Key:
    """Type, choices, bounds and meaning of a key. The caller adds its name and default."""
    kind, choices, inner = _kind(field.annotation)
    bounds = ", ".join(filter(None, (_bounds(field.metadata), inner)))
    return Key("", "", " ".join((field.description or "").split()), kind, choices, bounds)


def _kind(annotation: Any) -> tuple[str, tuple[str, ...], str]:
    """Type, choices and bounds of an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _TYPES:
        return _TYPES[annotation], (), ""
    if origin is Literal:
        return "text", tuple(map(str, arguments)), ""
    if annotation == OwnFunction:
        return "module:function", (), ""
    if origin is Annotated:
        kind, choices, inner = _kind(arguments[0])
        return kind, choices, ", ".join(filter(None, (inner, _bounds(arguments[1:]))))
    if origin in (list, tuple, dict):
        of = _kind(arguments[-1 if origin is dict else 0])
        number = "" if origin is list or Ellipsis in arguments else f"{len(arguments)} "
        names = {kind: f"list of {number}{_plural(of[0])}" for kind in (list, tuple)}
        return names.get(origin, f"table of {_plural(of[0])} by name"), of[1], of[2]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "table", (), ""
    # A union: None says that the key may be left out.
    parts = [_kind(part) for part in arguments if part is not type(None)]
    kinds = {kind: None for kind, chosen, _ in parts if not chosen} or {"text": None}
    return (
        " or ".join(kinds),
        tuple(c for _, chosen, _ in parts for c in chosen),
        ", ".join(p[2] for p in parts if p[2]),
    )


def _plural(kind: str) -> str:
    return kind if kind == "true or false" else f"{kind}s"


def _bounds(metadata: Sequence[Any]) -> str:
    found = []
    for item in metadata:
        if isinstance(item, FieldInfo):
            found.append(_bounds(item.metadata))
            continue
        found += [
            f"{sign} {value}" for name, sign in _SIGNS.items() if (value := getattr(item, name, None)) is not None
        ]
        found += [text.format(value) for name, text in _RANGES.items() if (value := getattr(item, name, None))]
    return ", ".join(filter(None, found))
