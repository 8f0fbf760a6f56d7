"""A protocol: which data, asked in which words, with which sampling, gives which numbers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from olmorl.deploy.control.options import nearest
from olmorl.deploy.data_sets.layouts import KINDS
from olmorl.errors import ConfigError

FOLDER = Path(__file__).with_name("protocols")


class Protocol(BaseModel):
    """How a data set is asked. The keys of a protocol file.

    Raises:
        ConfigError: by `load`, for a key that is unknown or a value that does not fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    about: str = ""
    source: str | None = None
    """A file, a folder or a hub name; `--input` replaces it."""
    split: str | None = None
    layout: str | None = None
    """A known layout of `olmorl-data`, such as `ifeval`; it replaces the three columns below."""
    question: str | None = None
    """Column of the question."""
    answer: str | None = None
    """Column of the label."""
    verifier: str = "math"
    template: str = "{question}"
    """The user's turn; `{question}` stands for the question."""
    system_prompt: str | None = None
    samples: int = Field(1, ge=1)
    """Answers for each prompt."""
    k: list[int] = Field(default_factory=list)
    """Of pass@k and maj@k. Default: powers of two up to `samples`, and `samples`."""
    temperature: float = Field(0.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(2048, ge=1)

    @field_validator("template")
    @classmethod
    def _has_place(cls, text: str) -> str:
        if "{question}" not in text:
            raise ValueError("it needs {question}, where the question goes")
        return text

    @model_validator(mode="after")
    def _fits(self) -> Protocol:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples = {self.samples} with temperature = 0 would be one answer {self.samples} times: set a "
                "temperature over 0, or samples = 1"
            )
        if wrong := [k for k in self.k if not 1 <= k <= self.samples]:
            raise ValueError(f"k = {wrong[0]} is not from 1 to samples = {self.samples}")
        if self.layout is not None and self.layout not in KINDS:
            raise ValueError(f"layout: {self.layout!r} is not known; known: {', '.join(KINDS)}")
        if self.layout is not None and (self.question, self.answer) != (None, None):
            raise ValueError("layout names all columns: leave out question and answer")
        if (self.question is None) != (self.answer is None):
            raise ValueError("question and answer name two columns: give both, or none for rows of training")
        return self

    @property
    def ks(self) -> list[int]:
        """The k of pass@k and maj@k."""
        powers = [2**i for i in range(self.samples.bit_length()) if 2**i < self.samples]
        return self.k or [*powers, self.samples]

    @property
    def converts(self) -> bool:
        """Whether its rows are in a layout of their own, not that of training."""
        return self.layout is not None or self.question is not None


def names() -> list[str]:
    """The protocols that are shipped."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def find(text: str) -> Path | None:
    """The file of a protocol: a shipped one by its name, or a TOML file; None for the name of data.

    Raises:
        ConfigError: there is no such TOML file.
    """
    if text in names() and not Path(text).exists():
        return FOLDER / f"{text}.toml"
    if not text.endswith(".toml"):
        return None
    if not Path(text).is_file():
        raise ConfigError(f"{text}: no such protocol{nearest(Path(text).stem, names())}; shipped: {', '.join(names())}")
    return Path(text)


def load(file: Path | None, options: dict[str, Any]) -> Protocol:
    """Read a protocol; values of `options` that are not None replace its own."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8")) if file else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: not a protocol file: {error}") from None
    given = {key: value for key, value in options.items() if value is not None}
    if "samples" in given and "k" not in given:
        tree["k"] = [k for k in tree.get("k", []) if isinstance(k, int) and k <= given["samples"]]
    try:
        return Protocol.model_validate(tree | given)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        hint = nearest(key, list(Protocol.model_fields)) if first["type"] == "extra_forbidden" else ""
        message = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{file or 'options'}: {f'{key}: ' if key else ''}{message}{hint}") from None
