"""Reads what a question tells about its label: the units of a bare number, its base, the options, whether it counts."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

from olmorl.messages import Prompt
from olmorl.verifiers.math.notation import last_side, normalise, unmark
from olmorl.verifiers.math.numbers import Policy, quantity
from olmorl.verifiers.math.units import DOLLARS, ONE, YEAR, Dimensions, Unit, is_known, measured, named
from olmorl.verifiers.math.words.languages import COMMA_LANGUAGES, language, unit_words
from olmorl.verifiers.math.words.wording import conclusion, doubtful, words

MAX_EXPRESSION = 200
"""Characters of an answer that may be an expression of the question."""
MAX_QUESTION = 4096
"""Characters at the end of a prompt that are read."""

_KINDS = {
    "radian": "angle", "fahrenheit": "celsius", "kelvin": "celsius", "months": "time",
    "euro": "money", "sterling": "money", "yen": "money", "rupee": "money",
}  # fmt: skip
"""Dimensions that measure the same thing as another, though they do not convert."""
_SYMBOLS = re.compile(r"(?:\d\s?|\bin )([a-zA-Zμ°Ω/]{1,8})(?![a-zA-Z])")
"""What may be symbols of units: behind a number, or behind `in`."""
_WORD = re.compile(r"[a-zA-Z]{3,}|[€£¥₹¢°%]|\^?\\circ")
_IMPLIED = (
    (re.compile(r"\\?\$\s?\d[\d,.]*(?![^\s$]*\$)"), DOLLARS),
    (re.compile(r"\bhow old\b|\bages?\b", re.IGNORECASE), YEAR),
)
"""A dollar in front of a number that is no formula; and ages."""
_SECOND = re.compile(r"\b(?:the|a|his|her|every|each) second\b|\bsecond\s+[a-z]", re.IGNORECASE)
"""The ordinal number."""
_ASKED = re.compile(
    r"\b(?:how many|in|into|to|to the nearest|number of)"
    r"(\s\$?(?=[\\a-zA-Z])(?:(?!\s(?:is|are|was|were|do|does|did)\b)[^,;?!]){1,40})",
    re.IGNORECASE,
)
"""In front of the unit that is asked for."""
_UNKNOWN = re.compile(
    r"\bsolve (?:[^.?!]{0,100} )?for \$?(?P<name>[a-zA-Z])\b(?!,| and)|\bmake \$?(?P<subject>[a-zA-Z])\$? the subject"
    r"|\b(?:find|determine|compute|calculate|what is|what's)(?: the)?(?: [a-z]+){0,3}? (?:values?|number) (?:of )?\$?"
    r"(?P<value>[a-z])\$?(?=[.?:]|$| (?:if|such|so|when|in|from|given|for|that|which))"
    r"|\b(?:find|determine|what is) (?:\$(?P<marked>[a-z])\$|(?P<plain>[b-z]))"
    r"(?=[.?:]|$| (?:if|such|so|when|in|given))",
    re.IGNORECASE,
)
"""In front of the variable that is asked for, or around it."""
_SOLVED = re.compile(r"([a-zA-Z])\s*=")
_NONE = re.compile(
    r"(?:^none\b|^no (?=(?:[a-z-]+ ){0,3}[a-z]+s\b)|\b(?:has|have|are|is|exists?|were|was)\s(?:no|none)\b)"
    r"(?!\s(?:more|less|fewer|other|longer|doubt|need|one|idea|clue|way|answer|problem|reason|information)\b)"
    r"[^\d,;]{0,100}(?:,?\s(?:because|since|as)\b.*)?$",
    re.IGNORECASE | re.DOTALL,
)
_OPTIONS = (re.compile(r"\(([A-J])\)\s*"), re.compile(r"(?<![\w(])([A-J])[).:]\s+"))
_MARKUP = re.compile(
    r"^(?:\s|\\ )*\}(?:\s|\\ )*"
    r"|(?:\s|\\q?quad(?![a-zA-Z])|\\[,;: \\]|\$|\\(?:text(?:bf|rm|up)?|mathrm|mathbf)\s*\{|~)+$"
)
"""Around the text of an option: what belongs to the letter before or behind it."""
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+(?!\.?\d)")
_DECIMAL = re.compile(r"(?<![\d,(])\d+,(?:\d{1,2}|\d{4,})(?![\d,)])")
_ACCENT = re.compile(r"[À-ÖØ-öø-ÿ¿¡]")
_ENGLISH = re.compile(r"\b(?:the|is|of|what|how|find|if|are|and|to)\b", re.IGNORECASE)
_COMMA = re.compile(r"(?<![\d(\[{,;])(\d+)\{?,\}?(?=(?:\d{1,2}|\d{4,})(?![\d,;)\]}]))")
_SPACE = re.compile(r"[\s$]|\\[,;!]")
_OPTIONAL_SPACE = r"(?:[\s$]|\\[,;!])*"
_BOUND = re.compile(r"(?:there (?:are|is) )?at (most|least)\s+", re.IGNORECASE)
_MOST = re.compile(r"\b(?:largest|greatest|maxim\w*|highest|most)\b", re.IGNORECASE)
_LEAST = re.compile(r"\b(?:smallest|least|minim\w*|fewest|lowest)\b", re.IGNORECASE)
_ASKS = (
    r"\b(?:what is|find|determine|calculate|compute) (?:the|its) "
    r"(?:(?:total|exact|shaded|lateral|surface|maximum) ){0,2}"
)
_SIZES = {"perimeter": 1, "circumference": 1, "area": 2, "volume": 3}
"""What is measured in a power of a length."""
_SIZE = re.compile(rf"{_ASKS}({'|'.join(_SIZES)})\b", re.IGNORECASE)
_BASES = {"binary": "2", "octal": "8", "hexadecimal": "16", "decimal": "10"}
_BASE = re.compile(r"\b(?:in|to|into) (?:(binary|octal|hexadecimal|decimal)|base[- ](\d{1,2}))\b", re.IGNORECASE)
_REWRITES = re.compile(
    r"\b(?:simplif\w*|reduce|lowest terms|simplest form|factor(?:i[sz]\w+|s|ing|ed)?|expand\w*|rationali[sz]\w+"
    r"|convert|express|rewrite|write|round|evaluate|compute|calculate)\b",
    re.IGNORECASE,
)
"""Asks for another form of an expression."""
_NUMERIC_FRACTION = re.compile(r"\\[dt]?frac\s*\{?(\d+)\}?\s*\{?(\d+)\}?")
_LOOKS = re.compile(r"[{}$~]|\\(?:left|right|displaystyle|[,;:!])(?![a-zA-Z])|(?<=\\)[dt](?=frac)")
_TIMES = re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|[×·]")
_SPELLINGS = (
    (re.compile(r"≤|\\leq(?:slant|q)?(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"≥|\\geq(?:slant|q)?(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"≠|\\neq(?![a-zA-Z])"), r"\\ne "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\[lr]?vert(?![a-zA-Z])"), "|"),
)
"""Signs of relations that are written in several ways."""
_SIGN = re.compile(r"\\[a-zA-Z]+|\d+|\S")
_OPERATION = re.compile(r"[+*/^-]|\\(?:cdot|times|frac)")
_RELATION = re.compile(r"=|[<>]|\\(?:[lg]e|neq?)(?![a-zA-Z])")
_SET = re.compile(r"\\?\{\s*[a-zA-Z](?:(?!\\mid)[^:|]){0,40}(?::|\||\\mid)(.+?)\\?\}", re.DOTALL)
"""All numbers with a property."""
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CLAIMS = re.compile(r"[,;<>≤≥∈]|\\(?:[lg]eq?|in|to|cup|ne)(?![a-zA-Z])")
_POLAR = re.compile(
    r"(?:^|[.?!:,;]\s+|\n)(?:is|are|was|were|does|do|did|can|could|will|has|have|must)\s([^.?!]*)\?(?=[^?]*$)",
    re.IGNORECASE,
)
"""The last question, if yes or no answers it."""
_LETTER = re.compile(r"[a-zA-Z]")
_LONG_WORD = re.compile(r"(?<![\\\w])[a-z]{4,}(?!\w)")
_NEGATIONS = {"not", "never", "no", "cannot", "fails", "fail", "neither", "none"}
_OPPOSITES = ("in", "ir", "un", "im", "non")
_ORDERED = re.compile(
    r"\b(?:increasing|decreasing|ascending|descending|numerical|chronological|alphabetical) order\b"
    r"|\bfrom (?:the )?(?:least|smallest|lowest|shortest|greatest|largest|highest|longest|biggest) to\b",
    re.IGNORECASE,
)
_SHARES = re.compile(
    r"%|percent|probab|chance|fraction|\brate|ratio|proportion|portion|share|interest|likel|odds", re.IGNORECASE
)
"""What may be a percentage."""
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")
_NO_NAMES = frozenset(
    """
    How What Which Who When Where Why The There Then This That These Those Find Compute Determine Calculate Let Given
    Suppose Assume Each Every All Some She Her His They Their Its After Before For From With Without During Today
    Yesterday Tomorrow Now Later Next Last First Second Third Express Write Give Your Answer Round Simplify Solve
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August
    September October November December And But Not One Two Three Four Five Six Seven Eight Nine Ten Please
    """.split()  # noqa: SIM905
)
"""Words with a capital that name no person."""
_COUNT = re.compile(r"\bhow many\b|\bnumber of\b|\bhow much\b", re.IGNORECASE)


class MathQuestion(NamedTuple):
    """What is known of a question."""

    units: frozenset[Unit] = frozenset()
    """All units in it."""
    asked: frozenset[Unit] = frozenset()
    """Those that it asks for: `how many minutes`, `in degrees`."""
    is_count: bool = False
    """Whether it asks for a number of things."""
    options: tuple[tuple[str, str], ...] = ()
    """Letter and text of each option of a multiple choice."""
    decimal_comma: bool = False
    """Whether its language writes 2.000 for two thousand and 0,5 for a half."""
    base: str = ""
    """Of the numeral that it asks for."""
    text: str = ""
    unknown: str = ""
    """The variable that it says to solve for."""

    asks_form: bool = False
    """Whether it asks for another form of an expression: `simplify`."""

    is_ordered: bool = False
    """Whether it asks for a list in an order."""

    names: frozenset[str] = frozenset()
    """The names in it."""
    subject: str = ""
    """The only name in the sentence that asks."""

    def policy(self, policy: Policy, is_percentage: bool) -> Policy:
        """The rules of agreement for its answers: their order, and whether 25% can be 25.

        Args:
            is_percentage: the label has a percent sign.
        """
        in_english = bool(_ENGLISH.search(self.text))
        about_none = not is_percentage and in_english and not _SHARES.search(self.text)
        return policy._replace(
            ordered=policy.ordered or self.is_ordered,
            strict_percent=policy.strict_percent or about_none,
            decimal_comma=not in_english,
        )

    def solved_for_another(self, label: str, answer: str) -> bool:
        """Whether an answer, unlike the label, gives another variable than the question asks for.

        A label without a name gives the variable that is asked for.
        """
        names = [name[1] if (name := _SOLVED.match(text)) else "" for text in (label, answer)]
        return bool(self.unknown and names[1]) and names[0] in (self.unknown, "") and names[1] != self.unknown

    def option(self, letter: str) -> str:
        """The text of an option. Empty if there is none of that letter."""
        return dict(self.options).get(letter, "")

    def restates(self, answer: str, is_number: bool) -> bool:
        """Whether an answer is an expression of the question, as it is written there.

        A plain number is none, unless the question asks for another form of it.
        """
        if (is_number and not self.asks_form) or len(answer) > MAX_EXPRESSION:
            return False
        ahead, _, value = last_side(answer)
        if _OPERATION.search(ahead):
            return False
        if _CLAIMS.search(value) or (not self.asks_form and quantity(normalise(value))):
            return False
        signs, question = _SIGN.findall(_written(value)), _written(self.text)
        if not signs or value.strip().isalpha():
            return False
        return _stands_in(signs, question)

    def repeats(self, claim: str) -> bool:
        """Whether an equation or an inequality, or the set of its solutions, is the question's own, as it is written.

        One that is solved, `x = 4`, is none. `x > 2` is one if the question asks for another form of it.
        """
        inner = _SET.fullmatch(claim.strip())
        claim = inner[1] if inner else claim
        if len(claim) > MAX_EXPRESSION or not _RELATION.search(claim) or not _LETTER.search(_COMMAND.sub("", claim)):
            return False
        if _is_solved(claim) and (not self.asks_form or _RELATION.findall(claim) == ["="]):
            return False
        return _stands_in(_SIGN.findall(_written(claim)), _written(self.text))

    def polarity(self, sentence: str) -> str:
        """`yes` or `no`, if a sentence answers a question of that kind in its words: `It is not prime`. Else empty."""
        asked = _POLAR.search(self.text)
        content = _LONG_WORD.findall(asked[1].lower()) if asked else []
        found = words(conclusion(unmark(normalise(sentence))))
        if not content or doubtful(" ".join(word for word in found if word not in _NEGATIONS and "n't" not in word)):
            return ""
        stem = content[-1][: max(4, len(content[-1]) - 2)]
        stated = any(word.startswith(stem) for word in found)
        opposite = any(word.startswith(tuple(prefix + stem for prefix in _OPPOSITES)) for word in found)
        if stated == opposite:
            return ""
        denied = sum(word in _NEGATIONS or word.endswith("n't") for word in found)
        return "" if denied > 1 else "no" if bool(denied) != opposite else "yes"

    def value_side(self, answer: str) -> str:
        """The value in an answer that repeats the asked expression: `10x + 3 = 11`. Else the answer."""
        ahead, _, value = last_side(answer)
        signs = _SPACE.sub("", ahead)
        if len(signs) < 2 or not value.strip() or not set(self.text).issuperset(signs):
            return answer
        asked = rf"(?<![\w+*/^\\-]){_OPTIONAL_SPACE.join(map(re.escape, signs))}(?![\w+*/^=(]|\s*[+*/^=(<>-])"
        return value.strip() if re.search(asked, self.text) else answer

    def without_bound(self, answer: str) -> str:
        """The number in `at most 3`, if the question asks for the most, or in `at least 3` for the least."""
        bound = _BOUND.match(answer)
        asks = bound and (_MOST if bound[1].casefold() == "most" else _LEAST)
        return answer[bound.end() :] if bound and asks and asks.search(self.text) else answer

    def counts_none(self, sentence: str) -> bool:
        """Whether a sentence says that there are none of the things that the question counts."""
        return self.is_count and bool(_NONE.search(unmark(normalise(sentence))))

    def label_units(self, given: Unit) -> list[Unit] | None:
        """The units that a bare label may be in, beside an answer in a given unit.

        None if it may be in the given one: it is asked for, or the question has no unit for the same thing.
        """
        if not is_known(given):
            return None
        if _is_size(given) and (sizes := self._sizes()) and all(size.dimensions != given.dimensions for size in sizes):
            return sizes
        alike = _alike(self.asked, given) or _alike(self.units, given) + self._composed(given)
        return None if given in alike or not alike else alike

    def _sizes(self) -> list[Unit]:
        """The lengths, areas or volumes that the question asks for."""
        asked = _SIZE.search(self.text)
        return (
            [Unit(dimensions=(("length", _SIZES[asked[1].lower()]),))] if asked else list(filter(_is_size, self.asked))
        )

    def _composed(self, given: Unit) -> list[Unit]:
        """The products, powers and quotients of the question's units for what the given one measures."""
        alike: list[Unit] = []
        choices = [[unit for unit in self.units if unit.dimensions == ((name, 1),)] for name, _ in given.dimensions]
        if all(choices):
            powers = [power for _, power in given.dimensions]
            alike += [
                Unit(prod(map(pow, (unit.factor for unit in chosen), powers), start=ONE), given.dimensions)
                for chosen in product(*choices)
            ]
        return alike


UNKNOWN = MathQuestion()


def asked(prompt: Prompt) -> MathQuestion:
    """The question in a prompt: its last message, or its text."""
    if isinstance(prompt.messages, str):
        return _question(prompt.messages[-MAX_QUESTION:])
    content = prompt.messages[-1].get("content") if prompt.messages else ""
    return _question(content[-MAX_QUESTION:]) if isinstance(content, str) else UNKNOWN


@lru_cache(4096)
def _question(text: str) -> MathQuestion:
    text = _SECOND.sub(" ", text)
    words = [
        *_WORD.findall(text),
        *" ".join(unit_words(text)).split(),
        *(word for symbols in _SYMBOLS.findall(text) for word in symbols.split("/")),
    ]
    units = {unit for word in words if (unit := named("°" if "circ" in word else word)) and is_known(unit)}
    units |= {unit for pattern, unit in _IMPLIED if pattern.search(text)}
    asked = {
        found.unit
        for words in _ASKED.findall(text)
        if (found := measured(f" {normalise(words)}")) and is_known(found.unit)
    }
    unknown, base = _UNKNOWN.search(text), _BASE.search(text)
    radix = (base[2] or _BASES[base[1].lower()]) if base else ""
    return MathQuestion(
        frozenset(units),
        frozenset(asked),
        bool(_COUNT.search(text)),
        _options(text),
        _with_comma(text),
        radix,
        text,
        next(filter(None, unknown.groups())) if unknown else "",
        bool(_REWRITES.search(text)),
        bool(_ORDERED.search(text)),
        frozenset(_NAME.findall(text)) - _NO_NAMES,
        _subject(text),
    )


def _subject(text: str) -> str:
    named = set(_NAME.findall(re.split(r"[.!]\s|\n", text.strip())[-1])) - _NO_NAMES
    return named.pop() if len(named) == 1 else ""


def _options(text: str) -> tuple[tuple[str, str], ...]:
    """The options, if their letters are A, B, C and so on, each once."""
    for marks in _OPTIONS:
        found = list(marks.finditer(text))
        letters = [mark[1].upper() for mark in found]
        if len(found) > 1 and "".join(letters) == "ABCDEFGHIJ"[: len(found)]:
            ends = [*(mark.start() for mark in found[1:]), len(text)]
            return tuple(
                (letter, _MARKUP.sub("", text[mark.end() : end]).strip(" \n,;."))
                for letter, mark, end in zip(letters, found, ends, strict=True)
            )
    return ()


def _with_comma(text: str) -> bool:
    """Whether its language has decimal commas, or it has one and is no English."""
    if _ENGLISH.search(text):
        return False
    return language(text) in COMMA_LANGUAGES or bool(_DECIMAL.search(text) or _ACCENT.search(text))


@lru_cache(256)  # the completions of a group have one question
def _written(text: str) -> str:
    """A formula without signs that do not change how it is read."""
    text = _TIMES.sub("*", _LOOKS.sub("", _NUMERIC_FRACTION.sub(r"\1/\2", text)))
    for pattern, sign in _SPELLINGS:
        text = pattern.sub(sign, text)
    return text


def _stands_in(signs: list[str], question: str) -> bool:
    """Whether a question has these signs as a formula of their own."""
    if not all(sign in question for sign in signs):
        return False
    expression = r"\s*".join(map(re.escape, signs))
    return bool(re.search(rf"(?<![\w.+*/^-])(?<![+*/^-]\s){expression}(?![\w^(]|\.\d|\s*[+*/-])", question))


def _is_solved(claim: str) -> bool:
    """Whether one variable stands alone on a side, and no other side has a variable."""
    sides = [_COMMAND.sub("", side).strip() for side in _RELATION.split(claim)]
    rest = [side for side in sides if not re.fullmatch(r"[a-zA-Z]", side)]
    return len(sides) - len(rest) == 1 and not any(_LETTER.search(side) for side in rest)


def comma_as_point(text: str) -> str:
    """A text of a language with decimal commas, with points: `2.000,5` is 2000.5."""
    return _COMMA.sub(r"\1.", _THOUSANDS.sub(lambda number: number[0].replace(".", ""), text))


def _alike(units: frozenset[Unit], given: Unit) -> list[Unit]:
    """The units for what the given one measures."""
    return [unit for unit in units if _kinds(unit.dimensions) == _kinds(given.dimensions)]


def _is_size(unit: Unit) -> bool:
    """Whether it measures a length, an area or a volume."""
    return len(unit.dimensions) == 1 and unit.dimensions[0][0] == "length"


def _kinds(dimensions: Dimensions) -> Dimensions:
    return tuple(sorted((_KINDS.get(name, name), power) for name, power in dimensions))
