"""Reads an answer once: as a number, the letter of an option, words or a numeral of some base.

`settle` compares two readings in microseconds and says None when it takes algebra to decide.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from string import ascii_letters, ascii_lowercase
from typing import NamedTuple

from olmorl.verifiers.math.algebra.tree import FUNCTIONS
from olmorl.verifiers.math.extraction import CLAUSE
from olmorl.verifiers.math.notation import END_TEXT, TEXT, folded, key, last_side, normalise, unmark, without_remark
from olmorl.verifiers.math.numbers import Policy, Quantity, equal, quantity
from olmorl.verifiers.math.question import MathQuestion
from olmorl.verifiers.math.units import NO_LETTERS, is_known, letters_of, measured, shown
from olmorl.verifiers.math.words import (
    NUMBER_WORD,
    SPOKEN,
    changed_ahead,
    changed_behind,
    doubtful,
    other_number,
    words,
)

_PLAIN_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?", re.ASCII)
_BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "sixteen": "16",
}  # fmt: skip
_BASE = re.compile(rf"\(?([0-9A-Fa-f]+)\)?_\{{?\s*\(?(\d{{1,2}}|{'|'.join(_BASES)})\)?\s*\}}?")
_SUMMED = re.compile(r"(?=.*[\d)]\s*(?:[+\-*]|\\times|\\cdot)\s*[\d(+\-])(?:[\d\s.,()+\-*/]|\\times|\\cdot)+")
_UNDONE = re.compile(r"\\(?:sum|prod|i*int|oint|lim)(?![a-zA-Z])|\\frac\s*\{\s*(?:d|\\partial)\s*\}")
_DECIMAL_COMMA = re.compile(r"([+-]?\d+(?:[ .]\d{3})*),(\d+)(?![\d,.]*\d)([^\d,]*)")
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?\s*([ap])\.?\s?m\.?|(\d{1,2}):(0\d)|\d{4}-\d\d-\d\d", re.IGNORECASE)
"""A time of day, or a date."""
_SUBJECT = re.compile(
    rf"{TEXT}?([A-Za-z][A-Za-z' ]{{2,80}}?)(?:\s(?:is|are|equals)(?:\s*:)?|\s?:)\s*{END_TEXT}?\s*"
    r"(?=[-+\d(\[{.]|\\[a-z]|[a-zA-Z]\s*=)(?!\d+\s*:)"
)
"""What a formula is called in front of it: `The area is`."""
_LETTER = re.compile(r"(?<![\w\\])\(?([A-J])\)?(?![\w'])")
_OPTION = re.compile(
    rf"{TEXT}?(?:\(([A-Ja-j])\)[,.:]?(?:\s+|{END_TEXT})|([A-J])[).:])\s*{END_TEXT}?\s*(?=[^\s{END_TEXT}])"
    r"(?!\(?[A-J]\b|(?:is|are|and|or|was|has|can)\b)"
)
"""The letter in front of an option: `(A) 12`."""
_SHARE = re.compile(
    r"(\d[\d,.]*)(?: (?!out )[a-zA-Z]+)? (?:(out of )(?:the )?|of (?:the|her|his|these) )(\d+)(?: [a-zA-Z ]*)?"
)
"""A count and the whole that it is a part of: `2 out of 5`, which is also a fraction; `41 of the 60 pupils`."""
_START = re.compile(rf"(?:(?<![\w\\^_{{.])[-+]?[\x05€£¥₹]?\s?(?:\d|\.\d|\\frac)|\b{NUMBER_WORD})", re.IGNORECASE)
_TAIL_UNIT = re.compile(r"(?<=[\d\s}])([a-zA-Zμ°Ω][a-zA-Zμ°Ω./^{}\d\s-]*)$")
_CLAIMS = ("=", ":", " is", " are", " was", " equals", " makes", " leaves", " gives")
_NAMES_AHEAD = {"is", "are", "was", "be", "on", "it's", "the", "a", "an"}
_MATH = frozenset((*"and pi infty alpha beta theta phi sqrt".split(), *FUNCTIONS))  # noqa: SIM905
"""Names of mathematics, which are no words."""
MAX_UNIT_LETTERS = 2
"""Letters of the unit behind a sum of numbers. More are variables."""
_CHOICES = "ABCDEFGHIJ"
_BETWEEN = str.maketrans(",;&()[]{}", "         ")


class Reading(NamedTuple):
    """One answer. At most one field after `subject` is set, except that a sentence may be words and state a number."""

    text: str
    """Normalised, without its subject and a remark."""
    key: str
    """Equal keys are the same spelling."""
    remark: str = ""
    """What it says of itself at its end: `x > 0`."""
    subject: str = ""
    number: Quantity | None = None
    stated: Quantity | None = None
    """The number that a sentence states. Such a label is no number."""
    letter: str = ""
    """The letter of an option."""
    word: str = ""
    numeral: tuple[str, str] | None = None
    """Digits and base."""

    @property
    def is_choice(self) -> bool:
        """Whether it is the letter of an option and nothing else."""
        return bool(self.letter) and unmark(self.text).strip("(). ") == self.letter


def _read(answer: str, letters: frozenset[str] = NO_LETTERS) -> Reading:
    """Read one answer. If it has none of the simple forms, only `text` and `key` are set."""
    if plain_number := _PLAIN_NUMBER.fullmatch(answer):
        plain, places = answer.replace(",", ""), len(plain_number[1] or "")
        return Reading(answer, plain, number=Quantity(Fraction(plain), Fraction(1, 10**places) if places else None))
    text, remark = without_remark(normalise(answer))
    plain = unmark(text).strip()
    if plain.startswith("{") and plain.endswith("}") and "{" not in plain[1:]:
        plain = plain[1:-1].strip()
    if signs := SPOKEN.get(plain.lower().rpartition(" is ")[2].strip(" .!")):
        text = plain = signs
    subject = _SUBJECT.match(text)
    if subject and not doubtful(subject[0]):
        text = text[subject.end() :]
        plain = unmark(text).strip()
    letter = ""
    if (option := _OPTION.match(text)) and option.end() < len(text):
        letter, text = (option[1] or option[2]).upper(), text[option.end() :]
        plain = unmark(text).strip()
    whole = Reading(text, key(text), remark, subject[1].strip().lower() if subject else "", letter=letter)
    return _in_simple_form(whole, plain, letters)


read = lru_cache(4096)(_read)
read_label = lru_cache(65536)(_read)
"""Cached: every completion of a group has the same label."""


def _in_simple_form(whole: Reading, plain: str, letters: frozenset[str]) -> Reading:
    text = whole.text
    if numeral := _BASE.fullmatch(plain.rpartition("=")[2].strip()) if "_" in plain else None:
        return whole._replace(numeral=(numeral[1].lower().lstrip("0"), _BASES.get(numeral[2], numeral[2])))
    if clock := _CLOCK.fullmatch(plain):
        return whole._replace(word=_time(clock))
    if share := _SHARE.fullmatch(" ".join(plain.split())):
        count, whole_of = quantity(share[1]), Fraction(share[3])
        if count is not None and share[2] and whole_of:
            return whole._replace(number=count._replace(value=count.value / whole_of), stated=count)
        return whole._replace(number=count)
    in_text = text[:1] + text[-1:] == TEXT + END_TEXT and text.count(TEXT) == 1
    if number := _literal(plain) or quantity(plain if in_text else text, letters):
        return whole._replace(number=number)
    return whole._replace(
        stated=_stated(plain, letters), letter=whole.letter or _letter(plain), word=_words(text, plain)
    )


def _literal(plain: str) -> Quantity | None:
    """A number in base 16, 2 or 8 as in a program."""
    try:
        is_literal = plain.lstrip("-")[:2].lower() in ("0x", "0b", "0o")
        return Quantity(Fraction(int(plain, 0)), None) if is_literal else None
    except ValueError:
        return None


def _stated(plain: str, letters: frozenset[str]) -> Quantity | None:
    """The only number of a sentence, or its last one if the sentence says so: `The sum of 3 and 5 is 8`."""
    starts = list(_START.finditer(plain))
    if not starts or "\\" in plain.replace("\\frac", "").replace("\\times", ""):
        return None
    for start in (starts[0], starts[-1]):
        ahead = plain[: start.start()]
        number = quantity(plain[start.start() :].strip(), letters)
        claimed = ahead.removesuffix("the ").removesuffix("about ").rstrip().endswith(_CLAIMS)
        named = words(ahead.replace("\\", " \\").replace("\\frac", ""))
        if number and any(len(one) > 1 for one in named) and (claimed or start is starts[0]):
            return None if changed_ahead(ahead) or not _MATH.isdisjoint(named) else number
    return None


def _time(clock: re.Match[str]) -> str:
    """`6:00 p` for `6 PM`."""
    if not (clock[1] or clock[4]):
        return clock[0]
    return f"{clock[1] or clock[4]}:{clock[2] or clock[5] or '00'} {(clock[3] or '').lower()}".strip()


def _letter(plain: str) -> str:
    """The letter of a multiple choice: the only one, or the one that follows from the rest: `A is wrong, so B`."""
    alone = plain.lower().removeprefix("option").removeprefix("choice").removeprefix("answer").strip("() .:")
    if len(alone) == 1:
        return alone.upper()
    found = list(_LETTER.finditer(plain))
    if not found or not any(len(one) > 1 for one in words(plain)):
        return ""
    ahead, behind = plain[: found[-1].start()], plain[found[-1].end() :]
    near = CLAUSE.split(ahead)[-1]
    several = len({one[1] for one in found}) > 1 and near == ahead
    return "" if several or doubtful(near) or changed_behind(behind) else found[-1][1]


def _words(text: str, plain: str) -> str:
    """The text as words, to be compared letter by letter. Empty if its letters may be variables."""
    tokens = " ".join(plain.replace("-", " ").split()).strip(" .,!?'").split()
    bare = [token.strip(".,;:!?'\"&/()").replace("'", "").replace(".", "") for token in tokens]
    marked = text.startswith(TEXT) and any(len(token) > 1 and token.isalpha() for token in bare)
    spoken = all(token.isalnum() or not token for token in bare)
    return " ".join(tokens) if spoken and (marked or any(map(_is_word, bare))) else ""


def _is_word(token: str) -> bool:
    named = token.lower() in _MATH or (len(token) > 2 and token in ascii_lowercase)
    return token.isalpha() and not named and (len(token) > 2 or token.lower() in ("no", "dne"))


# --- label and answer ---------------------------------------------------------------------------


def same_text(label: str, answer: str, exact_case: bool) -> bool:
    """Whether two spellings are the same text."""
    one, other = normalise(label), normalise(answer)
    return bool(other) and (key(one) == key(other) or (not exact_case and folded(one) == folded(other)))


def unit_letters(question: MathQuestion, *answers: str) -> frozenset[str]:
    """The single letters that are units, because the question, the label or the answer says so."""
    texts = [text for text in map(normalise, answers) if TEXT in text or not _is_sum(text)]
    return letters_of(question.units.union(*map(shown, texts)))


def in_signs(text: str, letters: frozenset[str]) -> str:
    """A normalised answer with its unit as text, for the grammar: a letter there is a variable."""
    tail = None if _is_sum(text) else _TAIL_UNIT.search(text)
    found = measured(f" {tail[1]}", letters) if tail else None
    if tail is None or found is None or not is_known(found.unit) or found.remark.strip():
        return text
    return f"{text[: tail.start()]}{TEXT}{tail[1]}{END_TEXT}"


def _is_sum(text: str) -> bool:
    """Whether it is a sum of terms with variables: `28ms + 9s` has no milliseconds."""
    first, *others = text.partition(TEXT)[0].split("\\")
    signs = first + "".join(part.lstrip(ascii_letters) for part in others)
    return ("+" in text[1:] or "-" in text[1:]) and sum(map(str.isalpha, signs)) > MAX_UNIT_LETTERS


def settle(label: Reading, answer: Reading, policy: Policy, question: MathQuestion) -> tuple[bool, str] | None:
    """Whether they agree and by which rule, or None when only algebra can tell."""
    if not answer.key:
        return False, "blank"
    if label.subject and answer.subject and label.subject != answer.subject:
        return False, "subject"
    other = answer.number is not None and other_number(answer.remark, answer.number.value)
    if doubtful(answer.remark) or other or not _same_remark(label, answer):
        return False, "remark"
    if label.key == answer.key or (not policy.exact_case and folded(label.text) == folded(answer.text)):
        return True, "identical"
    for compare in (_as_letters, _as_sequences, _as_numbers, _as_words):
        if (verdict := compare(label, answer, policy, question)) is not None:
            return verdict
    return None


def _same_remark(label: Reading, answer: Reading) -> bool:
    """Whether two remarks do not contradict each other. One side may have none."""
    return not (label.remark and answer.remark) or key(label.remark) == key(answer.remark)


def _as_letters(label: Reading, answer: Reading, _: Policy, question: MathQuestion) -> tuple[bool, str] | None:
    """Compare letters of options. Several have no order."""
    if label.is_choice:
        return label.letter == answer.letter, "choice"
    several, given = (
        "".join(unmark(one.text).translate(_BETWEEN).replace("and", "").split()) for one in (label, answer)
    )
    if len(several) > 1 and set(several) <= set(_CHOICES) and list(several) == sorted(set(several)):
        return (sorted(given) == list(several), "choice") if set(given) <= set(_CHOICES) else None
    return None


def is_sequence(text: str) -> bool:
    """Whether a label is numbers or letters with only spaces between them: a row or a grid. They are no product."""
    items = text.split()
    numbers = all(item.lstrip("-").replace(".", "", 1).isdigit() for item in items)
    signs = len(items) > 2 and all(len(item) == 1 and (item.isdigit() or item.isupper()) for item in items)
    return len(items) > 1 and (numbers or signs)


def _as_sequences(label: Reading, answer: Reading, _: Policy, question: MathQuestion) -> tuple[bool, str] | None:
    """Compare rows of numbers or letters, item by item."""
    if label.number or not is_sequence(label.text):
        return None
    return answer.text.translate(_BETWEEN).split() == label.text.split(), "sequence"


def _as_numbers(label: Reading, answer: Reading, policy: Policy, question: MathQuestion) -> tuple[bool, str] | None:
    """Compare numbers and numerals. A sum of numbers, a `\\sum` or an integral is not worked out."""
    if _UNDONE.search(last_side(answer.text)[2]) and not _UNDONE.search(label.text):
        return False, "restated"
    if label.numeral or answer.numeral:
        return _same_numeral(label, answer, question), "numeral"
    if decimals := _decimals(label, answer, question):
        return equal(*decimals, policy), "number"
    if label.number is None:
        return None
    counted = answer.stated if answer.number is None or question.is_count else None
    given = [one for one in (answer.number, counted) if one is not None]
    if not given and label.number.finest.dimensions:
        return False, "unit"
    if not given and _SUMMED.fullmatch(answer.text):
        return False, "restated"
    if not given:
        none = question.is_count and not label.number.value and answer.key.startswith(("no", "Thereareno"))
        return (none, "word") if answer.word else None
    meant = ((one, number) for number in given for one in _meant(label.number, number, question))
    return any(equal(one, number, policy) for one, number in meant), "number"


def _meant(label: Quantity, answer: Quantity, question: MathQuestion) -> list[Quantity]:
    """What a bare label may be, by its question: a count of dozens, or a number in a unit of the question."""
    if label.unit.dimensions or label.percent:
        return [label]
    asked, others = (
        [one for one in units if one.dimensions == answer.unit.dimensions]
        for units in (question.asked, question.measures)
    )
    units = asked or others
    meant = [label._replace(unit=one) for one in units] if is_known(answer.unit) and units else [label]
    if answer.unscaled and answer.value / answer.unscaled in question.scales:
        meant.append(label._replace(value=label.value * answer.value / answer.unscaled))
    return meant


def _as_words(label: Reading, answer: Reading, policy: Policy, question: MathQuestion) -> tuple[bool, str] | None:
    """Compare words, or the words that an answer ends with: `The winner is Maria`."""
    if not label.word:
        return None
    wanted, given = (one.word or one.key for one in (label, answer))
    if not policy.exact_case:
        wanted, given = wanted.casefold(), given.casefold()
    wanted, given = (one.removeprefix("the ").removeprefix("a ").removeprefix("an ") for one in (wanted, given))
    ahead = given.removesuffix(f" {wanted}") if given.endswith(f" {wanted}") else ""
    claims = ahead.endswith(":") or (ahead and ahead.split()[-1] in _NAMES_AHEAD)
    yes = wanted in ("yes", "no", "true", "false") and given.startswith(tuple(wanted + sign for sign in ",.:;–—"))
    untimed = wanted.endswith((" a", " p")) and wanted[:-2] == given
    return bool(wanted == given or untimed or yes or (claims and not doubtful(ahead))), "word"


def _decimals(label: Reading, answer: Reading, question: MathQuestion) -> tuple[Quantity, Quantity] | None:
    """Both as decimals, if one is written with a comma and the other with a point."""
    comma, point = (label, answer) if _DECIMAL_COMMA.fullmatch(label.text) else (answer, label)
    written = _DECIMAL_COMMA.fullmatch(comma.text)
    if written is None or point.number is None or (comma is label and question.in_english):
        return None
    if len(written[2]) == 3 and written[1].lstrip("+-0") and not question.has_decimal_commas:
        return None
    number = quantity(f"{written[1].replace('.', '').replace(' ', '')}.{written[2]}{written[3]}")
    return None if number is None else (number, point.number) if comma is label else (point.number, number)


def _same_numeral(label: Reading, answer: Reading, question: MathQuestion) -> bool:
    """Whether digits and base agree. A plain answer is in the label's base; a plain label is in the question's."""
    if label.numeral and answer.numeral:
        return label.numeral == answer.numeral
    if label.numeral:
        return label.numeral[0] == answer.key.lower().lstrip("0")
    behind = question.text.lower().partition("in base")[2].lstrip(" -$")[:2].strip(" .,?$")
    return answer.numeral is not None and answer.numeral == (label.key, behind or "10")
