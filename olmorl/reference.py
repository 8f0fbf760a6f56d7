"""Writes `docs/configuration.md` from the models of the configuration: `python -m olmorl.reference` prints the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from pydantic import BaseModel

from olmorl import config
from olmorl.keys import Key

_ABOUT = """\
# Configuration

A recipe is a TOML file. Each table below is one of its sections. Every key is optional. `olmorl-launch --help-keys`
prints the same list. `make docs` writes this page from `olmorl/config.py`; do not edit it by hand.

- Any key can be set on the command line by its dotted name: `olmorl-launch RECIPE.toml --schedule.max_lag 4`.
- The command line wins over the recipe. A key may be given once on the command line.
- Unknown keys, values outside their bounds, infinities and NaN are refused before anything starts.
- A default of *none* means that no value is set; the meaning says what happens then.
- The run writes the resolved configuration to `config.toml` in its folder.
- Keys for tests, plans and comparisons are not listed: `[simulation]` (`olmorl/simulation.py`), `actors.batching` and
  `schedule.draw_ahead`.
- A key that an earlier version had is refused with what to do instead, unless it has the value that holds anyway.
- `deploy/recipes/` holds recipes for the demo and for the published Olmo 3 runs.
"""


def page() -> str:
    """The page as Markdown."""
    sections = _sections("", config.Config)
    parts = [_ABOUT]
    for section, keys in groupby(config.reference(), lambda key: key.key.rpartition(".")[0]):
        parts.append(f"## `[{section}]`\n\n{sections[section]}\n\n{_table(list(keys))}")
    rules = "\n".join(f"- {rule}" for rule in config.agreements())
    parts.append(f"## Rules over several keys\n\nA recipe that breaks one of these rules is refused.\n\n{rules}\n")
    return "\n".join(parts)


def _sections(prefix: str, section: type[BaseModel]) -> Mapping[str, str]:
    """The description of every section, by its dotted name."""
    return dict(_described(prefix, section))


def _described(prefix: str, section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, field in section.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield f"{prefix}{name}", " ".join((type(field.default).__doc__ or "").split())
            yield from _described(f"{prefix}{name}.", type(field.default))


def _table(keys: list[Key]) -> str:
    rows = [_row(key) for key in keys]
    return "\n".join(["| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _row(key: Key) -> str:
    wanted = key.wanted.replace("|", "\\|")
    default = f"`{key.default}`" if key.default else "*none*"
    return f"| `{key.key.rpartition('.')[2]}` | {wanted} | {default} | {key.meaning} |"


if __name__ == "__main__":
    print(page(), end="")
