"""Writes `docs/configuration.md` from the models of the configuration: `python -m olmorl.reference` prints the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from pydantic import BaseModel

from olmorl import config, toml
from olmorl.keys import Key

_ABOUT = """\
# Configuration

A recipe is a TOML file with these tables. Every key is optional; `deploy/recipes/` has examples. Each line below has
the key with its default, in parentheses its other values or bounds, and its meaning. A key without `=` has no default.

- Any key can be set on the command line, which wins: `olmorl-launch RECIPE.toml --schedule.max_lag 4`.
- `extends = "demo.toml"` at the top of a recipe takes the keys of that recipe, beside it; the recipe's own go on top.
- Unknown keys, values outside their bounds, infinities and NaN are refused before anything starts.
- The run writes the resolved configuration to `config.toml` in its folder.
- A key that an earlier version had is refused with what to do instead, unless it has the value that holds anyway.
- `olmorl-launch --help-keys` prints this list. `make docs` writes this page from `olmorl/config.py`.
"""
_QUOTED = ("text", "path")
_SEEN_IN_DEFAULT = ("true or false", "integer", "number", *_QUOTED)
"""Types that a reader sees in the default."""


def page() -> str:
    """Returns the page as Markdown."""
    sections, places = _sections("", config.Config), dict[str, str]()
    parts = [_ABOUT]
    for section, keys in groupby(config.reference(), lambda key: key.key.rpartition(".")[0]):
        parts.append(f"## `[{section}]`\n\n{sections[section]}\n\n{_lines(section, list(keys), places)}")
    rules = "\n".join(f"- {rule}" for rule in config.agreements())
    parts.append(f"## Rules over several keys\n\nA recipe that breaks one of these rules is refused.\n\n{rules}\n")
    return "\n".join(parts)


def _lines(section: str, keys: list[Key], places: dict[str, str]) -> str:
    """Returns the lines of a section. Keys that an earlier section has in the same words, see `places`, are named."""
    named: dict[str, list[str]] = {}
    lines = []
    for key in keys:
        if (place := places.setdefault(line(key), section)) == section:
            lines.append(line(key))
        else:
            named.setdefault(place, []).append(f"`{key.key.rpartition('.')[2]}`")
    lines += [f"- As in `[{place}]`: {', '.join(names)}." for place, names in named.items()]
    return "".join(f"{each}\n" for each in lines)


def line(key: Key) -> str:
    """Returns the line of one key: name, default, values that it takes, meaning."""
    name = key.key.rpartition(".")[2]
    default = toml.literal(key.default) if key.type in _QUOTED else key.default
    values = f" ({_values(key)})" if _values(key) else ""
    return f"- `{name} = {default}`{values}: {key.meaning}" if key.default else f"- `{name}`{values}: {key.meaning}"


def _values(key: Key) -> str:
    """Returns the values that a key takes, without what its default or its meaning names already."""
    bounds = f"matching `{key.bounds.removeprefix('matching ')}`" if key.bounds.startswith("matching ") else key.bounds
    numbers = bounds if key.default and key.type in _SEEN_IN_DEFAULT else f"{key.type} {bounds}".strip()
    choices = [f"`{choice}`" for choice in key.choices if choice != key.default]
    if key.choices and key.type == "text":
        numbers = ""
        if all(choice in key.meaning for choice in choices):
            choices = []
    return " or ".join([*([numbers] if numbers else []), *choices])


def _sections(prefix: str, section: type[BaseModel]) -> Mapping[str, str]:
    """The description of every section, by its dotted name."""
    return dict(_described(prefix, section))


def _described(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield f"{prefix}{name}", " ".join((type(field.default).__doc__ or "").split())
            yield from _described(f"{prefix}{name}.", type(field.default))


if __name__ == "__main__":
    print(page(), end="")
