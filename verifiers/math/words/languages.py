"""Translates the words around the numbers of an answer into English, which the readers of sentences know.

It covers only the words that state, deny, bound or compute with a number, from `languages.toml`. All others stay.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

MAX_ENDING = 300
"""Characters at the end of a text that show its language."""
_FILE = Path(__file__).with_name("languages.toml")
_LETTER = r"(?:[^\W\d_]|[\u0900-\u0963])"
"""Hindi's vowels are signs of their own."""
_WORD = re.compile(f"{_LETTER}+")
_ALSO_ENGLISH = frozenset(
    """
    ada al ale also as bo car circa co come da de der die do double du ed em en et fait falls fast faux font
    had hat hay have impossible in incorrect is it kali lee logo ma mal mas maximal maximum meet minder
    minus na ne ni no non of on or par per plus pro quasi rest reste rund se si so solution solutions son ten to tot
    total um unas vale van var ve vend want war ya
    cent cents cien dos due gramme litre litres metro mil mille minute minutes once ora sept six
    """.split()  # noqa: SIM905
)
"""Words of `languages.toml` that identify no language, because English texts have them too."""
_ENGLISH = frozenset(
    """
    the are of and to so we he she it they have had that this there therefore thus hence then answer for with by
    each which from or not be than what were if its
    """.split()  # noqa: SIM905
)
_UNITS = frozenset(
    """
    seconds minutes hours days weeks months years meters centimeters millimeters kilometers kilograms grams liters
    degrees percent yen cents square squared
    """.split()  # noqa: SIM905
) | {"square meters", "square centimeters", "cubic meters", "cubic centimeters"}
"""The glosses that are units."""
_SCRIPTS = (
    ("japanese", re.compile(r"[\u3040-\u30ff]")),
    ("korean", re.compile(r"[\uac00-\ud7a3]")),
    ("chinese", re.compile(r"[\u3400-\u9fff]")),
)
"""The scripts whose words touch each other or their endings, and their languages. Japanese has Chinese signs too."""
COMMA_LANGUAGES = frozenset(
    (
        "german",
        "french",
        "spanish",
        "portuguese",
        "italian",
        "dutch",
        "polish",
        "turkish",
        "vietnamese",
        "indonesian",
        "russian",
    )
)
"""Those that write a decimal comma, and a point or a space between thousands."""
_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3"
_TOUCHING = re.compile(rf"(?<=[{_UNSPACED}])(?=[-\d$\\*])|(?<=[\d$*])(?=[{_UNSPACED}])")
_STOPS = {
    ord(sign): stop
    for signs, stop in (("。।．", ". "), ("！", "! "), ("？؟", "? "), ("：", ": "), ("，،", ", "), ("；", "; "))
    for sign in signs
}
_NOT_IS = re.compile(r"\bnot\s+(is|are|has|there are|costs)\b")
"""The order of the Romance languages: `no es`."""
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_FORMULA = r"\$[^$]{1,300}\$|\\\((?:(?!\\\)).){1,300}\\\)|\\\[(?:(?!\\\]).){1,300}\\\]|\\[a-zA-Z]+"


def in_english(text: str) -> str:
    """The text with the words of one other language in English, if its last sentences are in that language."""
    spoken = language(text[-MAX_ENDING:])
    if spoken is None:
        return text
    text = text.translate(_STOPS)
    words, glosses = _table(spoken)
    if any(spoken == name for name, _ in _SCRIPTS):
        text = _TOUCHING.sub(" ", text)
    return _NOT_IS.sub(r"\1 not", words.sub(lambda found: glosses.get(found[0].lower(), found[0]), text))


def language(ending: str) -> str | None:
    """The language of which the ending has the most words. None for English, or if no word tells."""
    if not ending.isascii():
        for name, letter in _SCRIPTS:
            if letter.search(ending):
                return name
    words = _WORD.findall(_COMMAND.sub("", ending).lower())
    said: Counter[str] = Counter(language for word in words for language in _words().get(word, ()))
    told: Counter[str] = Counter()
    for word in words:
        if word not in _ALSO_ENGLISH and word not in _ENGLISH and (len(word) > 1 or not word.isascii()):
            told.update(dict.fromkeys(_words().get(word, ()), 1 if word.isascii() else 2))
    english = sum(word in _ENGLISH for word in words)
    return max((one for one in told if told[one] > english), key=lambda one: told[one] + said[one], default=None)


def unit_words(text: str) -> list[str]:
    """The units in a text of another language, in English."""
    spoken = language(text)
    if spoken is None:
        return []
    words, glosses = _table(spoken)
    found = (glosses.get(word.lower(), "").strip() for word in words.findall(_TOUCHING.sub(" ", text)))
    return [unit for unit in found if unit in _UNITS]


def units_in_english(text: str) -> str:
    """A number with the unit of another language behind it, with the English unit: `760円`, `26 см²`."""
    return _unit_table()[0].sub(lambda found: f" {_unit_table()[1][found[1].lower()]} ", text)


@cache
def _unit_table() -> tuple[re.Pattern[str], dict[str, str]]:
    names = {
        word.lower(): gloss
        for rows in _rows().values()
        for gloss, words in rows.items()
        if gloss in _UNITS
        for word in words.split("|")
        if not (word.isascii() and len(word) < 3)
    }
    either = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rf"(?<=[\dπ}}/])\s?({either})(?!{_LETTER})", re.IGNORECASE), names


@cache
def _words() -> dict[str, list[str]]:
    """The languages of each word."""
    languages: dict[str, list[str]] = {}
    for language, rows in _rows().items():
        for word in set(_WORD.findall(" ".join(rows.values()).lower())):
            languages.setdefault(word, []).append(language)
    return languages


@cache
def _table(language: str) -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern for the words of a language and for formulas, which stay; and the replacements of the words."""
    unspaced = any(language == name for name, _ in _SCRIPTS)
    single = _UNITS if unspaced else frozenset[str]()
    glosses = {
        word.lower(): f" {gloss} " if unspaced else gloss
        for gloss, found in _rows()[language].items()
        for word in found.split("|")
    }
    # A single sign is a unit only behind a number: 米 is a metre, 玉米 is corn.
    either = "|".join(
        (r"(?<=\d )" if len(word) == 1 and glosses[word].strip() in single else "") + re.escape(word)
        for word in sorted(glosses, key=len, reverse=True)
    )
    words = f"(?:{either})" if unspaced else rf"(?<!{_LETTER})(?:{either})(?!{_LETTER})(?!\s*=)"
    return re.compile(f"{_FORMULA}|{words}", re.IGNORECASE | re.DOTALL), glosses


@cache
def _rows() -> dict[str, dict[str, str]]:
    """For each language, the spellings of each English word."""
    table: dict[str, dict[str, str]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return table
