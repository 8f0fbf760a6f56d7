"""IFBench: brackets, quotes, lists, lines and templates.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import re
from itertools import pairwise
from string import digits, punctuation

from emoji import is_emoji

from olmorl.verifiers.instructions.constraint import constraint, text
from olmorl.verifiers.instructions.texts.punctuation import trimmed, without
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.words import tokens

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]")
_STRAIGHT = str.maketrans("“”", '""')
_BESIDE_QUOTES = digits + punctuation.replace('"', "")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


def _nests_brackets(answer: str) -> bool:
    """Brackets are five deep, and one is closed after that. A wrong closing mark restarts the count."""
    expected: list[str] = []
    deep = False
    for character in answer:
        if character in _CLOSING:
            expected.append(_CLOSING[character])
            deep = deep or len(expected) >= 5
        elif character in ")]}":
            if not expected or expected.pop() != character:
                expected, deep = [], False
            elif deep:
                return True
    return False


def _nests_quotes(answer: str) -> bool:
    """The answer nests double and single quotes in turn, and closes three of them."""
    still_open: list[str] = []
    deepest = 0
    for character in answer:
        if still_open and character == still_open[-1]:
            still_open.pop()
            if deepest - len(still_open) >= 3:
                return True
        elif character in "\"'":
            still_open.append(character)
            deepest = max(deepest, len(still_open))
    return False


def _is_option(answer: str, options: str) -> bool:
    """The answer is one of the options, separated by `/`, else `or`, else `,`. Lettered options must match exactly."""
    separator = "/" if "/" in options else "or" if "or" in options else ","
    choices = [option.strip() for option in options.split(separator)]
    if _LETTERED.match(options):
        return answer in choices
    chosen = trimmed(answer).lower()
    return bool(chosen) and chosen in [trimmed(choice).lower() for choice in choices]


def _has_word_per_line(answer: str) -> bool:
    """Empty lines do not count, and lines of spaces do."""
    plain = without(answer).strip()
    return sum(line != "" for line in plain.split("\n")) == len(plain.split())


def _ends_in_emoji(answer: str) -> bool:
    """Each sentence ends with an emoji, or the next sentence starts with it."""
    parts = [without(sentence).strip() for sentence in sentences(answer)]
    # A variation selector may follow the emoji.
    last = [part[-2:] + following[:1] for part, following in pairwise([*parts, ""])]
    return all(parts) and all(any(map(is_emoji, characters)) for characters in last)


def _makes_stairs(answer: str) -> bool:
    """Each line with text has more leading spaces than the one before it."""
    indents = [len(line) - len(line.lstrip(" ")) for line in answer.split("\n") if line.strip()]
    return all(one < other for one, other in pairwise(indents))


def _explains_quotes(answer: str) -> bool:
    """Text follows each quote, before the next quote and at the end."""
    straight = answer.translate(_STRAIGHT).replace("'\"'", "")
    joined = "".join(straight.split())
    return '""' not in joined and not joined.strip(_BESIDE_QUOTES).endswith('"')


def _starts_with_thesis(answer: str) -> bool:
    """The first italic text and the text after it both have content."""
    for opening in ("<i>", "<em>"):
        _, found, rest = answer.partition(opening)
        if found:
            closing = "</i>" if "</i>" in rest else "</em>"
            thesis, found, text = rest.partition(closing)
            return bool(found and thesis.strip() and text.strip())
    return False


def _has_sentences_then_bullets(answer: str) -> bool:
    """Two sentences without a blank line between them, then two bullets in consecutive lines."""
    num_sentences = num_bullets = 0
    prose = True
    for line in map(str.strip, answer.split("\n")):
        if line.startswith("*"):
            if num_sentences < 2:
                return False
            prose = False
            num_bullets += 1
        elif prose:
            prose = line != ""
            num_sentences += len(sentences(line)) if num_sentences < 2 else 0
        else:
            return False
    return num_bullets >= 2


def _is_title(answer: str) -> bool:
    """No token is in lower case, and none has a small first letter before capitals."""
    return not any(_is_small(token) for token in tokens(answer))


def _is_small(token: str) -> bool:
    first, rest = token[0], token[1:]
    return first.isalpha() and first.islower() and (not rest or rest.islower() or rest.isupper())


TABLE = (
    constraint("format:parentheses", _nests_brackets),
    constraint("format:quotes", _nests_quotes),
    constraint("format:options", _is_option, wordless=True, options=text),
    constraint("format:newline", _has_word_per_line),
    constraint("format:emoji", _ends_in_emoji),
    constraint("format:line_indent", _makes_stairs),
    constraint("format:quote_unquote", _explains_quotes),
    constraint("format:list", lambda answer, sep: answer.count(sep) >= 2, sep=text),
    constraint("format:thesis", _starts_with_thesis),
    constraint("format:sub-bullets", lambda answer: all("-" in bullet for bullet in answer.split("*")[1:])),
    constraint("format:no_bullets_bullets", _has_sentences_then_bullets),
    constraint("format:title_case", _is_title),
    constraint("format:output_template", lambda answer: all(part in answer for part in _TEMPLATE)),
    constraint("format:no_whitespace", lambda answer: not any(character.isspace() for character in answer)),
)
