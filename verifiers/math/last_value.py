"""Finds the answer of a text that marks none: its last number, or the formula, the list or the sentence around it."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from typing import NamedTuple

from olmorl.verifiers.math.notation import normalise
from olmorl.verifiers.math.numbers import Quantity, quantity
from olmorl.verifiers.math.prose import MAX_SENTENCE, stated
from olmorl.verifiers.math.units import MULTI_LETTER, is_known, with_unit
from olmorl.verifiers.math.words.spelled import in_digits
from olmorl.verifiers.math.words.wording import (
    changes_behind,
    changes_nearby,
    doubtful,
    imagined,
    is_subject,
    leads,
    refuted,
    taken_back,
)

SEARCHED = 8192
"""Characters at the end of the text that are searched."""

_GROUP = "[ \u00a0\u2009\u202f]"
NUMBER = re.compile(
    rf"(?=[-.\\\d])(?<![\w.\\^_])(?<!\d[,':])(?<!√)(?<![\^_]\{{)(?<!sqrt\{{)-?(?:\\[dt]?frac\{{-?\d{{1,40}}\}}\{{\d{{1,40}}\}}"
    rf"|(?:\d{{1,3}}(?:{_GROUP}\d{{3}}){{1,9}}(?!\d)|\d{{1,3}}(?:'\d{{3}}){{1,9}}(?!\d)|\d{{1,40}}(?:,\d{{1,40}}){{0,20}})"
    r"(?:[.,]\d{1,40}(?:\.\.\.(?!\.)|…)?)?(?:[eE][+-]?\d{1,4})?(?:\s?/\s?\d{1,40}"
    r"|(?::\d{1,40}| : \d{1,40}){1,3}(?:\s?[aApP]\.?[mM]\b)?|\s?π|\s[aApP]\.?[mM]\b)?|\.\d{1,40})(?:\s?\\?%)?"
    r"(?!(?!(?:[cdkm]?m|in|ft|yd)\^)[\w^]*\^|[_!√‰⁰¹²³⁴⁵⁶⁷⁸⁹]|\s?π|-[a-zA-Z]{2}|(?![mhgslL][²³]?(?!\w))[a-zA-Z](?![a-zA-Z])|(?:st|nd|rd|th)\b"
    r"|\s?\\(?!text|mathrm|%)[a-zA-Z]|[.,/]?\d)"
)
"""A number on its own: not an exponent, and not a factor."""
_FORMULA = re.compile(
    r"\$\$([^$]{1,200})\$\$|\$(?!\s)([^$]{1,200})(?<!\s)\$|\$([^$]{0,100}\\[a-zA-Z][^$]{1,100})\$"
    r"|\\\(((?:(?!\\\)).){1,200})\\\)|\\\[((?:(?!\\\]).){1,200})\\\]"
    r"|(?<!\$)(\\begin\{(?P<lines>align\*?|aligned|gather\*?|gathered|equation\*?|split)\}(?:(?!\\begin).){1,1000}?\\end\{(?P=lines)\})",
    re.DOTALL,
)
"""Between single dollars with spaces around there must be a command: they may be prices."""
_ROWS = re.compile(
    r"\s*\\begin\{(?:align\*?|aligned|gather\*?|gathered|equation\*?|split)\}(.*)\\end\{[a-z]+\*?\}[\s.]*", re.DOTALL
)
_ASSIGNED = re.compile(
    r"^\s*((?:\\[a-zA-Z]+|[a-zA-Z])(?:_\{?\w+\}?)?|\([a-z](?:,\s?[a-z]){1,3}\))\s*&?\s*(?:=|\\in(?![a-zA-Z]))"
)
_OPERATOR_OF = re.compile(r"\s*\\(?:operatorname|det|dim|gcd|lcm|min|max|ker|deg)(?![a-zA-Z])")
_CLAIMS = re.compile(r"=|\\(?:in|equiv)(?![a-zA-Z])")
_STEP = re.compile(r"\s*(?:[fgh]\([^=]*\)|[^=a-zA-Z]*[a-zA-Z]?[^=a-zA-Z]*)=\s*-?[\d./]+\s*")
"""A value of a function, or of an expression in one letter: steps of a calculation are no list."""
_BOLD_END = re.compile(r"(?:^|\s)\*\*([^*\n]{1,200})\*\*[.!]?\s*$")
"""A formula in bold that ends the text."""
_CLAIMED = re.compile(r".*(?:\b(?:is|are|equals)|:|[A-Za-z]{2} =)\s((?:(?!\.\s)[^!?]){1,100}?)[.!]?\s*$", re.DOTALL)
"""The end of a text after its last `is`."""
_SAME_AGAIN = re.compile(r",?\s(?:i\.e\.|that is|or equivalently|equivalently),?\s.*$")
_UNIT_BEHIND = re.compile(
    rf"(?<=[\d}})π])\s(?:(?:square|cubic|sq\.?) )?(?:{'|'.join(MULTI_LETTER)}|m)s?(?:\^?[23²³])?$"
)
"""Behind a formula."""
_TOTAL_ROW = re.compile(
    r"\|[\s*_]*(?:(?:grand|final) )?(?:total|answer|result|sum)\b"
    r"[^|\n]*\|(?:[^|\n]*\|)*?[\s*]*([^|\n*]+?)[\s*]*\|\s*$",
    re.IGNORECASE,
)
"""The last row of a table, and its last cell."""
_RULE = re.compile(r"\n\s*(?:[-*_]\s?){3,40}\s*$|\s*(?:Q\.?E\.?D\.?|\$?\\(?:blacksquare|square|qed)\$?|[□∎■])\s*$")
"""A line across the page, or the end of a proof."""
MAX_RULE = 100
MARKS = "✓✔✅☑🎉👍 "
_FIELD = re.compile(r"\{\s*\"\w+\"\s*:\s*\"?([^\"{}]*)\"?\s*\}")
"""A record of one field, in JSON."""
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?!\.?\d)")
"""Groups of three digits with points between them."""
_QUOTED = re.compile(r"^ {0,3}> ?(?=[*A-Za-z$\\])", re.MULTILINE)
_SIGNS = {ord("−"): "-", ord("⟹"): r"\implies ", ord("⇒"): r"\implies "}
_VULGAR = re.compile("(?:(?<=(\\d)))?([½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞])")
_ASIDE = re.compile(
    r"\s\(((?:indeed|which|that is|since|because|as|the other|i\.e\.|equivalently|approx\w*|about|≈|using|by|check"
    r"|also|where"
    r"|with|from|rounded)\b[^()]{0,200}(?:\([^()]{0,100}\)[^()]{0,100}){0,3}|(?:we )?(?:reject|discard"
    r"|exclud)\w*\s[^()]{1,100}|\$?[a-z]\s?=\s?[^()\s]{1,20}\$? (?:fails?|is|does|gives|makes|would)\b[^()]{0,100}"
    r"|(?:his|her|their|my|our|[A-Z][a-z]+)\s(?:[a-z]+\s)?(?:is|are|was|has|have|had|gets?|pays?)\s[^()]{1,100}"
    r"|(?:its|an?|the|from|all|both|only|to|on|at|per|for|after|before|of|this|it)\s[^()]{1,200}|\$[^$()]{1,80}=[^$()]{1,80}\$|≈?\s?\$?[\d.]{1,10}\$?\s?(?:°|\^\\circ|\\?%)\$?)\)"
)
"""A remark in brackets on what stands in front."""
MAX_DENIED = 40
_OF_ANOTHER = re.compile(r"the other|(?:we )?(?:reject|discard|exclud)|not\b|\$?[a-z]\s?=")
_EXCLUDED = re.compile(
    r",?\s(?:but|and|where|however,?)\s(?:(?:the|since) )?(?:(?:root|solution"
    r"|value) )?\$?(?:[a-z] ?= ?)?(-?[\d./]+)\$?\s"
    r"(?:is|must be|has to be|fails|does not|doesn't)\b(?:\s(?:extraneous|rejected|discarded|invalid|excluded"
    r"|impossible|inadmissible|spurious"
    r"|not (?:valid|allowed|a solution|possible|admissible|in the domain)|satisfy|work|check"
    r"|fit)\b[^\d]{0,60})?[.\s]*$",
    re.IGNORECASE,
)
_IMPLIES = re.compile(
    r"(?<=\d)\s?(?:=>|→|->)|\\(?:implies|Rightarrow|therefore|Longrightarrow|because|iff|Leftrightarrow)(?![a-zA-Z])"
)
_THEN = re.compile(
    r"^(?:by|using|from|with|since|because)\s[^,\d]{1,80},\s"
    r"|(?:[,;:]|\.\s)\s*(?:and )?(?:so|thus|hence|therefore|then|meaning|which (?:means|gives|yields|implies))"
    r"(?: that)?[,:]?\s|\s(?:means|gives|yields|implies)(?: that)?\s",
    re.IGNORECASE,
)
_TITLE = re.compile(r"^\*{0,2}(?:so|thus|hence|therefore|then|[A-Z][a-z]{2,15}:)[,:]?\*{0,2}:?\s+", re.IGNORECASE)
"""In front of a formula that a line concludes."""
_AND = re.compile(
    r"°?(?:[\s,;]|\band\b|\bor\b){1,12}(?:(?:(?<=[,;] )|(?<=and )|(?<=or ))[a-zA-Z](?:_?\{?\d\}?|[₀-₉])? = )?"
)
"""Between the items of one list."""
_NAME = re.compile(r"[a-zA-Z](?:_?\{?\d\}?|[₀-₉])? = $")
"""In front of the first item of a list that repeats it: `x = 1, x = 2`."""
_DRESS = re.compile(r"\*{0,2}(?:-(?=[$€£¥₹]))?(?:(?:R|US)?\\?[$€£¥₹]\s?)?$")
"""Right in front of a number: bold, a currency."""
_LED = re.compile(r"[A-Za-z=:,]\s*[$*]{0,2}$")
"""In front of a number that ends a sentence and is all that the sentence says."""
SENTENCE_END = re.compile(r"[.!?]\s|\n")
_BEHIND = re.compile(r"[.!](?:\s|$)|\n")
_EQUAL = re.compile(r"=|\\equiv(?![a-zA-Z])")
_COPULA = re.compile(r".*(?:\b(?:is|are|was|were|equals)\b|=>?|\\approx)", re.DOTALL | re.IGNORECASE)
_MONTH = re.compile(r"\b(?:January|February|March|April|May|June|July|August|September|October|November|December)\s+$")
_NAMING = re.compile(
    r"(?:(?:So|Thus|Hence|Therefore|Then|Finally),? )?[A-Za-z\d' ]{1,100}"
    r"(?:\s(?:is|are|was|were|be|falls on)|'s)\s+(?:(?:an?|the|on)\s+)?[*]{0,2}[A-Za-z]{2,20}$"
)
_KNOWN = re.compile(
    r"[A-Za-z', ]{1,100}\s(?:is|are)\s+(all real numbers|all reals|the empty set|undefined)$", re.IGNORECASE
)
_REASON = re.compile(
    r",?\s(?:because|since|given that|both of which|while|whereas|as(?=\s(?:[√$\\(]|\d+/\d|[a-z]\s?=))"
    r"|(?:down|up) from(?=\s\D{0,2}\d)|(?:instead of|rather than|compared (?:to|with)|as opposed to)(?=\s\D{0,2}\d)"
    r"|(?:which|that) is(?=\s\D{0,2}[\d.]+(?: [a-z]+)? (?:less|more|fewer|[a-z]+er) than\b)"
    r"|from(?=\s\d+ (?:up )?(?:to|through) \d)|with(?=\s(?:0|zero)\s)|which (?:occurs|happens) (?:when|at|for|if)"
    r"|(?:which (?:is|are) )?(?:achieved|attained|reached|obtained) (?:when|at|by|for|if))\s",
    re.IGNORECASE,
)
_RESULT = r"(?: (?:it|this|that|(?:the|our|my) (?:answer|result|solution)))?"
_NEW_CLAIM = re.compile(r",\s*[A-Za-z]|\b(?:so|thus|hence|therefore|then)\b")
"""After a reason: its consequence."""
_DEFINED = re.compile(
    r",?\s{1,4}(?:where|with|for)\s+(?:(?:all|any|some|every|each|an|integers?|positive|nonnegative|real|natural|numbers?)\s+)*"
    r"[$(\\]{0,2}[a-zA-Z](?:[$)\\]{0,2}\s+(?:is|are|denotes|being|an?|any)\s[^.$=\d]{3,60}"
    r"|\s*(?:\\in|∈)\s*[^.$=\d]{1,30}[$)\\]{0,2}|[$)\\]{0,2})[\s.]*$"
)
"""A remark at the end that says what a letter is: `, where $k$ is an integer`."""
_COUNTED = re.compile(
    r"\b(?:there (?:are|exist)|has|have)\s+(?:(?:exactly|only|just|precisely)\s+)?"
    r"[*$]{0,3}(\d{1,2}|[a-z]{3,6})[*$]{0,3}(?:\s[a-z-]+){1,5}(?:\s?[:—–(]|,\s+(?:namely|which are))\s*$",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[,;]\s*(?:\band\b|\bor\b)?|\band\b|\bor\b")
_OPTION = re.compile(r"(?:\(?[A-Ja-j]\)|[A-J]\.)\s+(?=\S)")
_PLACE = re.compile(r",?\s(?:when|at|where|for) (?=[$\\(]{0,2}[a-zA-Z] ?= ?[$\\\d-])")
"""Between the value of a function and where it has that value: `-7 at x = 2`."""
_CALLED = re.compile(r"\b(?:equation|formula)\s*$", re.IGNORECASE)
"""In front of a formula. In front of a number it is a reference: `equation 3`."""
_EXTREME = re.compile(r"\b(?:minimum|maximum|largest|smallest|greatest|least|value)\b", re.IGNORECASE)
_APPROXIMATELY = re.compile(
    r"(?:,?\s(?:(?:or|which is|that is|i\.e\.,?)\s|\()(?:approximately|approx\.?|about|roughly|around|≈)|\s?(?:≈"
    r"|\\approx))\s*[*$]*$",
    re.IGNORECASE,
)
_FORMULA_ENDS = re.compile(r"(?:\$|\\\)|π|√\d+)(?:\s?[a-zA-Z²³/]{1,20}){0,2}$")
"""An exact formula in front of its approximation, with its unit."""
_CHECK = re.compile(
    r"(?:(?<=[.!?])\s|\n)[\s*_#>✓✔✅-]*(?:(?:let(?: me|'s|’s| us)|(?:we|i) can|i(?:'ll|’ll| will)|now) "
    r"(?:(?:now|also|quickly) )?(?:double[- ]?)?(?:check|verify|confirm)"
    rf"(?:{_RESULT}(?: by [^:.,]{{1,60}})?[\s*]*[:.,!]|{_RESULT} by\b| that(?=\s[$\d\\(]))|verification\b"
    rf"|(?:quick |sanity )?check(?:ing)?{_RESULT}[\s*]*[:,—]|to (?:verify|double[- ]?check|check){_RESULT}[:,]"
    r"|this (?:makes sense|checks out|is consistent|is reasonable)\b)",
    re.IGNORECASE,
)
"""Begins a check of the answer in front of it."""
_NOTE = re.compile(
    r"\n[\s*_#>-]*(?:explanation|justification|note)\b[^:\n]{0,40}:|\n\s*\((?=[A-Za-z]{3,20}[\s:][^()]{1,300}\)\s*$)",
    re.IGNORECASE,
)
"""Begins a remark on the answer in front of it."""
_CONCLUDES = re.compile(
    r"\b(?:so|thus|hence|therefore|then|answer|finally?|next|total|actually|should|corrected|correction|giv(?:es|ing)"
    r"|yields?|leav(?:es|ing))\b|≠|\\ne(?:q|\b)",
    re.IGNORECASE,
)
_DENIED_AFTER = re.compile(r"[\s.!*_]*(?:no|actually|nope|wait|oops|sorry|scratch that)\b", re.IGNORECASE)
MAX_CHECK = 400
_BEFORE_ASIDE = re.compile(r",\s*[$*]{0,2}$")
_COMPARED = re.compile(r"[*]{0,2}\s*(?:\w+\s+){0,2}(?:more|less|fewer|\w{2,20}er)\s+than\b", re.IGNORECASE)
"""Behind a number that says how far the answer in front of it is from something: `24 clips, 6 more than Tom`."""
_MINUS = re.compile(r"\s*[-–—−]\s*")
_PACKED = re.compile(r"\s*[a-z]+\s+of\s*[*$]{0,2}", re.IGNORECASE)
"""Between two numbers to multiply: `3 packs of 36`."""
_TOTAL_OF = re.compile(r"(?:\s[a-z]+){1,4}:\s*[*$]{0,2}", re.IGNORECASE)
"""Between a number that begins a sentence and its first part: `17 apples: 11 red`."""
_CHOOSING = re.compile(r"\b(?:between|either)\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[,;]")
_NEW_CLAUSE = re.compile(r"[,;:]|\b(?:so|thus|hence|therefore|then|and|but|which|because|since)\b", re.IGNORECASE)
_LIST = re.compile(r"[\s$]*(?:-?\d[\d./]*(?:[\s$]*(?:,|;|and\b|or\b)[\s$]*|\s+|$)){2,64}")
_CONTEXT = re.compile(r"\w\s+(?:after|before|when|once|while|back from)\s[^,;:=]*$|\d\s+in\s$", re.IGNORECASE)
"""In front of a number that belongs to the words before it: `She has 12 after spending 8`, `1 in 4`."""
_CONCLUDED = re.compile(r",\s+(?:and\s+)?(?:so|thus|hence|therefore)\b", re.IGNORECASE)
_ITEMS = re.compile(r"(?:^|\n)((?:[ \t]*(?:[-*•]|\d{1,2}[.)])[ \t]+[^\n]{1,80}(?:\n+|$)){2,20})\s*$")
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d{1,2}[.)])[ \t]+", re.MULTILINE)
"""A list of lines at the end of the text."""
_WHERE = re.compile(
    r"\b(?:when|where|iff?|if and only if|for|for (?:all|every|each|any)|with|with (?:\w+ )?constants?"
    r"|provided(?: that)?"
    r"|with equality(?: exactly)? (?:at|iff?|when|if and only if|for)|(?:attained|occurs|achieved|reached) (?:at|by"
    r"|when|for))\s*$",
    re.IGNORECASE,
)
"""Between the answer and the place that it belongs to."""
_AT = re.compile(r"(?:\$|\\\))\s*,?\s*(?:(?:attained|reached|achieved) )?at\s*$")
_SPAN = re.compile(r"(?:after|in|for|within)(?: about| exactly)?", re.IGNORECASE)
"""All that stands in front of an answer such as `after 120 minutes`."""
_COMMAND = re.compile(
    r"\b[A-Z]{2,4}\b|\\(?:text|mathrm|mathbf|mathbb|operatorname)\s?\{[^{}]*\}|\\(?:begin|end)\s?\{[a-z*]+\}(?:\{[a-z|]+\})?"
    r"|\\[a-zA-Z]+|\b(?:sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|log|ln|exp|sqrt|pi|or|and|[ijk]|[a-z]{2}(?=[\^)(]))\b"
)
_WORD = re.compile(r"[^\W\d_⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]{2}")
_DIGITS = re.compile(r"\d+")
_LARGE_WORD = re.compile(r"\b(?:\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundred|thousand)\b", re.IGNORECASE)
"""A number in words that is seldom said by the way."""
_LETTER = re.compile(r"[a-zA-Z]")
_NOT_A_VALUE = re.compile(r"[<>,;&]|\\\\|\\begin|\b(?:and|or)\b|\\[lg]eq?(?![a-z])")
_ROW_END = re.compile(r"\\\\(?:\s*\[[^\]]*\])?")
_OPERATOR = re.compile(r"[×·÷\\=+*/^_()\[\]{}|<>≤≥√∪π∞−-]|\d[a-zA-Z]|[a-zA-Z]\d")
_NO_FORMULA = re.compile(
    r"[$?;%#]|\\[()\[]|^\s*[-+*>=|]\s|^\s*(?:\d+[.)]|\([A-Ja-j]\)|[A-J][.):])\s|[.!:]\s|\d\s[a-zA-Z]\b|\*\*|\\(?:boxed|fbox)|^\s*\\\]"
)
_ONE_WORD = re.compile(
    r"[A-Za-z]{2,20}!?|(?:option\s+)?\(?[A-J]\)?|(?:yes|no|true|false)[,;].{1,200}"
    r"|(?:(?:the limit|it) )?does not exist|(?:there (?:is|are) )?no (?:real )?solutions?|all real(?:s| numbers)"
    r"|\d{1,2}:\d\d(?::\d\d)?(?:\s?[ap]\.?m\.?)?|\w+ (?:past|to) \w+|(?:it|the \w{1,20}) is [A-Za-z]{2,20}",
    re.IGNORECASE,
)


class Value(NamedTuple):
    """The answer as written, and how it was found."""

    text: str
    how: str
    num_items: str = ""
    """The number of items of a list, if the text says it: 3 in `There are 3 solutions: 1, 2 and 5`."""


def closing_sentence(text: str) -> str:
    """The last sentence. Empty if it is no sentence, or a question."""
    line = _ended(text[-SEARCHED:]).strip().strip("*_`> ").strip().rpartition("\n")[2].strip("*`_ ")
    sentence = SENTENCE_END.split(line)[-1].replace("**", "")
    return sentence.rstrip(" .") if len(sentence) <= MAX_SENTENCE and not sentence.endswith("?") else ""


def _ended(text: str) -> str:
    """The text without a line across the page or the end of a proof behind it."""
    if field := _FIELD.fullmatch(text.strip()[-MAX_RULE:]):
        return field[1]
    return text[:-MAX_RULE] + _RULE.sub("", text[-MAX_RULE:].rstrip(MARKS))


def last_value(text: str) -> Value | None:
    """The answer of a text without a box or a marker, or None."""
    text = _ended(_QUOTED.sub("", normal_signs(text[-SEARCHED:])))
    text = _without_excluded(text)
    text = _DEFINED.sub("", _without_check(text))
    text = _with_digits(_ASIDE.sub(_aside, text) if "(" in text else text)
    whole = text.strip().strip("*_`> ")
    line = whole.rstrip("" if whole.endswith("...") else ".").strip("*_`> ").rpartition("\n")[2].strip("*` ")
    if value := _of_end(text, line):
        return value
    number, formula = _last(NUMBER, text), _last(_FORMULA, text)
    within = formula and (number is None or formula.start() <= number.start() < formula.end())
    behind = formula and number and formula.start() > number.start() and _DIGITS.search(formula[0])
    if formula and (within or behind):
        return _of_formula(text, formula)
    if number is None:
        if len(line) > MAX_SENTENCE:
            return None
        if known := _KNOWN.match(line):
            return Value(known[1], "line")
        naming = _NAMING.match(line)
        return Value(line.replace("*", "") if naming else line, "line") if naming or _said(line) else None
    return _of_number(text, number)


def _aside(remark: re.Match[str]) -> str:
    """Nothing in place of a remark in brackets that leaves the number in front as it is, or denies another."""
    if refuted(remark[1]) or not doubtful(remark[1]):
        return remark[0] if refuted(remark[1]) else ""
    here = _DIGITS.findall(remark.string[max(0, remark.start() - MAX_DENIED) : remark.start()])
    denied = _DIGITS.findall(remark[1])
    return "" if _OF_ANOTHER.match(remark[1]) and here and denied and here[-1] not in denied else remark[0]


def _without_excluded(text: str) -> str:
    """The items that are left when the end of a text excludes one: `x = 2 or x = 3, but x = 3 is extraneous`."""
    excluded = _EXCLUDED.search(text, max(0, len(text) - MAX_SENTENCE))
    if excluded is None:
        return text
    start = max((stop.end() for stop in SENTENCE_END.finditer(text, 0, excluded.start())), default=0)
    items = _SEPARATOR.split(text[start : excluded.start()])
    kept = [item for item in items if quantity(normalise(_without_name(item))) != quantity(normalise(excluded[1]))]
    return text[:start] + ", ".join(item.strip() for item in kept) if 0 < len(kept) < len(items) else text


def _without_name(item: str) -> str:
    return item.rpartition("=")[2].strip(" $.")


def normal_signs(text: str) -> str:
    """The text with one spelling of minus signs and of fractions such as `⅔`."""
    text = _GROUPED.sub(lambda number: number[0].replace(".", ""), text)
    if text.isascii():
        return text
    return _VULGAR.sub(
        lambda one: f"{' ' if one[1] else ''}{unicodedata.normalize('NFKC', one[2]).replace('⁄', '/')}",
        text.translate(_SIGNS),
    )


def _with_digits(text: str) -> str:
    """The text with digits for the numbers in words in its last sentence, if that states a result."""
    end = len(text.rstrip(" .!*_\n"))
    start = max((stop.end() for stop in SENTENCE_END.finditer(text, max(0, end - MAX_SENTENCE), end)), default=0)
    alone = text[:start].endswith("\n") or _LARGE_WORD.search(text, start)
    states = alone or _DIGITS.search(text, start) or _CONCLUDES.match(text, start) or not _DIGITS.search(text)
    return text[:start] + in_digits(text[start:]) if states else text


def _of_end(text: str, line: str) -> Value | None:
    """The answer, if the whole text, its last line, its bullet points or the bold words at its end are one."""
    whole = text.strip().strip("*_`.> ").strip()
    if len(whole) <= MAX_SENTENCE and "\n" not in whole and (_ONE_WORD.fullmatch(whole) or _LIST.fullmatch(whole)):
        return Value(whole, "line")
    for formula in (line, _TITLE.sub("", _THEN.split(line)[-1])):
        if _bare(formula):
            return Value(_result(formula.strip("$ ") if formula != line else formula), "line")
    if (option := _OPTION.match(line)) and (quantity(rest := normalise(line[option.end() :])) or _bare(rest)):
        return Value(line, "line")
    if listed := _listed(text):
        return Value(listed, "last_list")
    total = _TOTAL_ROW.fullmatch(line)
    if total and quantity(normalise(total[1])):
        return Value(total[1], "line")
    bold = _BOLD_END.search(text)
    claimed = bold or (_CLAIMED.match(line) if len(line) <= MAX_SENTENCE else None)
    if claimed and _bare(_SAME_AGAIN.sub("", _UNIT_BEHIND.sub("", claimed[1]))):
        ahead, behind = _beside(text if bold else line, claimed)
        if not unsure(ahead, behind):
            formula = _SAME_AGAIN.sub("", claimed[1])
            return Value(_result(formula), "last_formula", _count(ahead, formula))
    return None


def _listed(text: str) -> str:
    """The values of bullet points that end the text, as a list. Empty if they are anything but values."""
    items = _ITEMS.search(text[-MAX_SENTENCE:])
    lines = [line.strip(" *`$.,;") for line in _BULLET.sub("", items[1]).split("\n") if line.strip()] if items else []
    names = {name[1] if (name := _ASSIGNED.match(line)) else "" for line in lines}
    values = [quantity(normalise(line)) for line in lines]
    return ", ".join(lines) if None not in values and len(names) == 1 else ""


def _bare(line: str) -> bool:
    """Whether a line is a formula and nothing else, so that its last number would be a part of it."""
    if len(line) > MAX_SENTENCE or _NO_FORMULA.search(line) or ("\\end{" in line and "\\begin{" not in line):
        return False
    return bool(_OPERATOR.search(line)) and not _WORD.search(_COMMAND.sub(" ", line))


def _of_number(text: str, number: re.Match[str]) -> Value | None:
    """The number, with its unit, or the list that it ends; or its sentence, where that says something else."""
    sentence, start, end = _around(text, number.start(), number.end())
    if (prefix := _before_remark(text, number.start(), sentence, start)) is not None:
        return last_value(prefix)
    first = _first_of_list(NUMBER, sentence, start)
    if refusal := _refusal(sentence[:first], sentence, end, text[number.end() + len(sentence) - end :]):
        return refusal
    if first < start:
        named = _NAME.search(sentence, max(0, first - 8), first)
        first = named.start() if named else first
        items = sentence[first:end]
        return Value(items, "last_list", _count(sentence[:first], items))
    return _of_single(text, sentence, start, number[0])


def _of_single(text: str, sentence: str, start: int, number: str) -> Value | None:
    """A number that ends no list."""
    end = start + len(number)
    month = _MONTH.search(sentence[:start])
    alone = month is None and NUMBER.search(sentence[:start]) is None
    if alone and sentence == text.strip() and _SPAN.fullmatch(sentence[:start].strip()):
        return _dressed(sentence, start, number)
    if alone and (not leads(_DRESS.sub("", sentence[:start])) or is_subject(sentence[end:])):
        return Value("", "aside")
    plain = quantity(normalise(number))
    if not month and _CONTEXT.search(sentence[:start]) and (value := _other(sentence, plain)):
        return value
    if end == len(sentence) and not month and (not start or _LED.search(sentence, max(0, start - 8), start)):
        return Value(number, "last_number")
    aside = _BEFORE_ASIDE.search(sentence, max(0, start - 5), start)
    if aside and _COMPARED.match(sentence, end) and NUMBER.search(sentence[: aside.start()]):
        return Value(sentence[: aside.start()], "sentence")
    if month:
        return Value(sentence[month.start() : end], "line")
    if not alone and (value := _other(sentence, plain) or _other(_CONCLUDED.split(sentence)[-1], plain)):
        return value
    return _dressed(sentence, start, number)


def _dressed(sentence: str, start: int, number: str) -> Value:
    """The number at `start`, with its currency and its unit."""
    plain = quantity(normalise(number))
    dressed = _DRESS.search(sentence, max(0, start - 5), start)
    rest = sentence[dressed.start() if dressed else start :]
    said = _said(rest)
    if said is not None and (is_known(said.unit) or said.percent or plain is None or said.value != plain.value):
        return Value(rest, "sentence")
    return Value(with_unit(number, sentence[start + len(number) :]) if plain is None else number, "last_number")


def _other(sentence: str, last: Quantity | None) -> Value | None:
    """The sentence, if it states another number than its last."""
    said = _said(sentence)
    return Value(sentence, "sentence") if said and (not last or said.value != last.value) else None


def _of_formula(text: str, formula: re.Match[str]) -> Value | None:
    """The formula, with those in front of it that are of the same list."""
    sentence, start, end = _around(text, formula.start(), formula.end())
    if (prefix := _before_remark(text, formula.start(), sentence, start)) is not None:
        return last_value(prefix)
    content = next(filter(None, formula.groups())).strip()
    first = _first_of_list(_FORMULA, sentence, start)
    after = text[formula.end() + len(sentence) - end :]
    if refusal := _refusal(_CALLED.sub("", sentence[:first]), sentence, end, after):
        return refusal
    if first < start and _alike(_inside(sentence[first:start]), content):
        return Value(sentence[first:end], "last_list", _count(sentence[:first], sentence[first:end]))
    if (_WHERE.search(sentence[:start]) or _AT.search(sentence[:start])) and (
        before := _last(_FORMULA, sentence[:start])
    ):
        place, content = content, next(filter(None, before.groups())).strip()
        if _LETTER.fullmatch(content):  # `all real numbers $x$ with $x > 3$`
            content = place
    return Value(with_unit(_result(content), sentence[end:]), "last_formula", _count(sentence[:start], content))


def _count(ahead: str, items: str) -> str:
    """The number of items that the words in front of a list say, if the list has so many."""
    said = _COUNTED.search(ahead)
    number = quantity(said[1]) if said else None
    separate = [item for item in _SEPARATOR.split(items) if item.strip(" $.")]
    return str(number.value) if number and len(separate) == number.value and not doubtful(ahead) else ""


def _result(formula: str) -> str:
    """The result of a calculation: its last row, and the last side of a chain `A = B = 5` if that is a number."""
    formula = _IMPLIES.split(formula)[-1].strip() or formula
    rows = _ROWS.fullmatch(formula)
    if rows and formula.count("\\begin") == 1:
        lines = [line for line in _ROW_END.split(rows[1]) if line.strip(" &.,\n")]
        names = [name[1] for name in map(_ASSIGNED.match, lines) if name]
        last = lines[-1].partition("&&")[0].replace("&", "").strip(" .,\n") if lines else ""
        if len(set(names)) < len(lines) and (_ASSIGNED.match(last) or _is_value(last.partition("=")[0])):
            formula = last
    ahead, _, behind = formula.rpartition(", ")
    if "=" in ahead and _ASSIGNED.match(behind) and not _ASSIGNED.match(ahead) and "(" not in behind:
        formula = behind
    sides = _EQUAL.split(formula)
    chain = len(sides) > 2 and not _NOT_A_VALUE.search(formula) and _is_value(sides[-2])
    return sides[-1].strip() if chain and sides[-1].strip() and _is_value(sides[-1]) else formula


def _is_value(formula: str) -> bool:
    """Whether a formula has no variables."""
    return not _LETTER.search(_COMMAND.sub(" ", formula)) or quantity(normalise(formula)) is not None


def _inside(formula: str) -> str:
    """The formula of a list's first item, without its delimiters."""
    found = _FORMULA.match(formula)
    return next(filter(None, found.groups())).strip() if found else formula


def _alike(first: str, last: str) -> bool:
    """Whether two formulas may be items of one list: an equation to solve and its solution are none."""
    claims, assigned = ([bool(pattern.search(one)) for one in (first, last)] for pattern in (_CLAIMS, _ASSIGNED))
    if all(claims) and not any(assigned) and _STEP.fullmatch(last):
        return False
    if all(claims) and not first.startswith("\\begin") and (assigned[0] != assigned[1] or _OPERATOR_OF.match(last)):
        return False
    return bool(_ASSIGNED.match(first)) or "=" not in first or not _ASSIGNED.match(last)


def _without_check(text: str) -> str:
    """The text without a check of the answer, or a remark on it, at its end. One with a new result is kept."""
    start = max(0, len(text) - MAX_CHECK)
    for pattern in (_CHECK, _NOTE):
        for found in pattern.finditer(text, start):
            ahead, behind = text[: found.start()], text[found.end() :]
            new = (
                pattern is _NOTE
                and found[0][-1] == ":"
                and not set(_DIGITS.findall(behind)) <= set(_DIGITS.findall(ahead))
            )
            if ahead.strip() and not new and not doubtful(behind) and not _CONCLUDES.search(behind):
                return ahead
    return text


def _before_remark(text: str, place: int, sentence: str, start: int) -> str | None:
    """The text in front of a reason or an approximation that the last number is part of: `17, because 13 fails`."""
    about = _APPROXIMATELY.search(sentence[:start])
    if about and _FORMULA_ENDS.search(sentence[: about.start()]):
        return text[: place - start + about.start()]
    where = _PLACE.search(sentence)
    if (
        where
        and where.end() <= start <= where.end() + 8
        and _EXTREME.search(sentence[: where.start()])
        and NUMBER.search(sentence[: where.start()])
    ):
        return text[: place - start + where.start()]
    for reason in _REASON.finditer(sentence):
        if reason.end() > start or _NEW_CLAIM.search(sentence, reason.end(), start):
            continue
        if NUMBER.search(sentence[: reason.start()]) and not refuted(sentence[reason.start() :]):
            return text[: place - start + reason.start()]
    return None


def _beside(text: str, found: re.Match[str]) -> tuple[str, str]:
    """The text before a place and after it, in the same sentence."""
    sentence, start, end = _around(text, found.start(1), found.end(1))
    return sentence[:start].rstrip("*"), sentence[end:].lstrip("*")


def _first_of_list(pattern: re.Pattern[str], sentence: str, start: int) -> int:
    """Where the list begins whose last item is at `start`: items with only `and`, `or`, commas and spaces between."""
    for before in reversed(list(pattern.finditer(sentence[:start]))):
        if not _AND.fullmatch(sentence, before.end(), start):
            break
        start = before.start()
    return start


def _around(text: str, start: int, end: int) -> tuple[str, int, int]:
    """The sentence around a place, and the place in it."""
    first = max(0, start - MAX_SENTENCE)
    for stop in SENTENCE_END.finditer(text, first, start):
        first = stop.end()
    behind = _BEHIND.search(text, end, end + MAX_SENTENCE)
    sentence = text[first : behind.start() if behind else end + MAX_SENTENCE]
    first += len(sentence) - len(sentence.lstrip())
    return sentence.strip(), start - first, end - first


def unsure(ahead: str, behind: str) -> bool:
    """Whether the words around the last number deny it, leave it open or compute with it."""
    if imagined(ahead):
        return True
    before = _last(NUMBER, ahead)
    near = ahead[before.end() if before else 0 :]
    if before and (_MINUS.fullmatch(near) or _PACKED.fullmatch(near)):
        return True
    if before and _TOTAL_OF.fullmatch(near) and not ahead[: before.start()].strip(" $*"):
        return True
    said = _COPULA.sub("", near, count=1)
    if said == near:
        chosen = bool(_CHOOSING.search(ahead))
    else:
        chosen = taken_back(_NEW_CLAUSE.split(near[: len(near) - len(said)])[-1])
    return chosen or changes_nearby(_CLAUSE.split(said)[-1]) or changes_behind(behind)


def _refusal(ahead: str, sentence: str, end: int, after: str) -> Value | None:
    """The reading for a value that the words around it, or the next sentence, take back."""
    if unsure(ahead, sentence[end:]):
        return Value(sentence, "sentence")
    return Value("", "denied") if _DENIED_AFTER.match(after) or refuted(after.lstrip(" .!*_\n")) else None


def _said(sentence: str) -> Quantity | None:
    """The quantity that a sentence states."""
    text = normalise(sentence)
    said = quantity(text)
    if said is None and (found := stated(text, reasons=False)):
        said = found[0]
    return said


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)
