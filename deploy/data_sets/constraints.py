"""Composes prompts with verifiable constraints, as IF-RLVR does (arXiv 2507.02833): up to five for each prompt.

The wording and what goes together are in `constraints.toml`; the verifier's own table reads the parameters.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from olmorl import seeds
from olmorl.deploy.data_sets.conversion import RowCounts, Rows
from olmorl.learner.data.readers import USER_PREFIX, Conversation, layout
from olmorl.verifiers.instructions.constraint_table import find

WORDS = (
    "river", "lantern", "harvest", "pattern", "journey", "copper", "window", "garden", "signal", "market", "bridge",
    "forest", "measure", "season", "engine", "letter", "island", "winter", "balance", "thunder", "village", "mirror",
    "ladder", "saddle",
)  # fmt: skip
LANGUAGES = ("de", "fr", "es", "it", "pt", "nl", "ru", "hi", "ar", "ko", "vi", "tr", "pl", "sv")
_ALL = "all"
_TRIES = 200


class Wording(NamedTuple):
    """A constraint in words."""

    text: str
    topics: frozenset[str]

    def goes_with(self, other: Wording) -> bool:
        """Whether an answer can meet both, as far as the topics say."""
        return not (self.topics & other.topics or _ALL in self.topics | other.topics)


def wordings() -> dict[str, Wording]:
    """The constraints that are sampled, by id."""
    tree = tomllib.loads(Path(__file__).with_name("constraints.toml").read_text(encoding="utf-8"))
    return {name: Wording(one["text"], frozenset(one.get("topics", ()))) for name, one in tree.items()}


def compose(rows: Rows, most: int, seed: int, keep: Sequence[str], counts: RowCounts) -> Iterator[dict[str, Any]]:
    """Each prompt with 1 to `most` constraints in its last turn, and a label for the verifier `ifeval`.

    The constraints of a prompt depend on its text and the seed alone.
    """
    table = wordings()
    for place, values in rows:
        counts.columns |= dict.fromkeys(values)
        try:
            # The verifier and the label of a row do not matter here.
            given = {key: value for key, value in values.items() if key in ("messages", "prompt")}
            messages = layout(given, None, True).messages
            if isinstance(messages, str) and "dataset" in values:
                messages = messages.removeprefix(USER_PREFIX)
        except ValueError as error:
            counts.refuse(place, str(error))
            continue
        counts.written += 1
        kept = {name: values[name] for name in keep if values.get(name) is not None}
        yield _composed(messages, table, most, seed) | kept


def _composed(messages: Conversation, table: Mapping[str, Wording], most: int, seed: int) -> dict[str, Any]:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    request = turns[-1]["content"].strip()
    rng = random.Random(seeds.derive(seed, json.dumps(turns, sort_keys=True)))
    names = _sampled(table, rng.randint(1, most), rng)
    words = rng.sample(WORDS, len(WORDS))
    parameters = [_parameters(name, request, words, rng) for name in names]
    said = " ".join(_said(table[name], given) for name, given in zip(names, parameters, strict=True))
    return {
        "messages": [*turns[:-1], {**turns[-1], "content": f"{request} {said}"}],
        "ground_truth": json.dumps({"instruction_id": names, "kwargs": parameters}, ensure_ascii=False),
        "dataset": "ifeval",
        "constraint": said,
    }


def _sampled(table: Mapping[str, Wording], number: int, rng: random.Random) -> list[str]:
    """Names of `number` constraints that go together. A constraint that goes with none stands alone."""
    names = list(table)
    if number > 1:
        names = [name for name in names if _ALL not in table[name].topics]
    while True:
        chosen: list[str] = []
        for name in rng.sample(names, len(names)):
            if all(table[name].goes_with(table[other]) for other in chosen):
                chosen.append(name)
            if len(chosen) == number:
                return chosen


def _said(wording: Wording, given: Mapping[str, Any]) -> str:
    plain = {name: ", ".join(value) if isinstance(value, list) else value for name, value in given.items()}
    return wording.text.format(**plain)


def _parameters(name: str, request: str, words: list[str], rng: random.Random) -> dict[str, Any]:
    """Values for all parameters of a constraint. The verifier's table has the last word on whether they fit.

    Takes its words from `words`, so that no two constraints of a prompt have the same.
    """
    constraint = find(name)
    for _ in range(_TRIES):
        left = list(words)
        given = {parameter: _value(name, parameter, request, left, rng) for parameter in constraint.readers}
        try:
            constraint.bind(given)
        except ValueError:
            continue
        words[:] = left
        return given
    raise AssertionError(f"{name}: no parameters fit")


def _value(constraint: str, parameter: str, request: str, words: list[str], rng: random.Random) -> Any:
    """One sampled parameter, by its published name."""
    if parameter == "prompt_to_repeat":
        return request
    if parameter == "keyword" and constraint == "keywords:exclude_word_harder":
        return rng.choice(re.findall(r"[A-Za-z]{4,}", request) or WORDS)
    if parameter in ("n_start", "n_end"):
        return rng.randrange(len(request) + 1)
    if parameter in _WORD_LISTS:
        return [words.pop() for _ in range(rng.randint(1, 3))]
    if parameter in _SINGLE_WORDS:
        return words.pop()
    if parameter in _CHOICES:
        return rng.choice(_CHOICES[parameter])
    low, high = _RANGES.get((constraint, parameter)) or _RANGES["", parameter]
    return rng.randint(low, high)


_RELATIONS = ("less than", "at least")
_WORD_LISTS = ("keywords", "forbidden_words")
_SINGLE_WORDS = ("keyword", "keyword1", "keyword2", "first_word", "last_word")
_CHOICES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("relation", "let_relation", "capital_relation"), _RELATIONS),
    "letter": tuple("abcdefghilmnoprstu"),
    "language": LANGUAGES,
    "postscript_marker": ("P.S.", "P.P.S"),
    "section_spliter": ("Section", "Part", "Chapter"),
    "end_phrase": ("Is there anything else I can help with?", "That is all you need to know.", "Any other questions?"),
    "phrase": ("the river runs to the sea", "a lantern in the dark", "every season brings new work"),
}
_RANGES = {
    ("", "frequency"): (1, 4),
    ("", "let_frequency"): (2, 12),
    ("", "num_sentences"): (3, 12),
    ("", "num_paragraphs"): (2, 5),
    ("", "nth_paragraph"): (1, 5),
    ("", "num_words"): (50, 400),
    ("", "num_placeholders"): (1, 4),
    ("", "num_bullets"): (2, 6),
    ("", "num_highlights"): (1, 4),
    ("", "num_sections"): (2, 5),
    ("", "capital_frequency"): (2, 10),
    ("", "small_n"): (2, 3),
    ("", "N"): (2, 4),
    ("count:lowercase_counting", "N"): (5, 40),
    ("letters:letter_counting", "N"): (100, 800),
    ("", "n_sent"): (2, 3),
    ("", "n_words"): (4, 8),
    ("", "n"): (1, 3),
    ("", "m"): (1, 5),
}
"""Bounds of numbers, by constraint and parameter; a constraint without an entry takes the parameter's."""
