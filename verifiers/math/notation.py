"""Rewrites the different spellings of an answer into one notation."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from olmorl.verifiers.math.words.languages import units_in_english
from olmorl.verifiers.math.words.wording import harmless_ahead

TEXT, END_TEXT = "\x02", "\x03"
"""Mark the start and the end of the text in `\\text{}` and similar commands."""
ROW = "\x04"
"""The sign for `\\\\`, which separates the rows of a matrix."""
DOLLAR = "\x05"
"""The sign for the currency: `$` alone is LaTeX's delimiter."""

_SIGNS = {
    "−–—﹣－": "-", "×✕": r"\times ", "·⋅∙•": r"\cdot ", "÷": r"\div ", "∕⁄": "/", "°º˚": r"^\circ ", "√": r"\sqrt ",
    "≤⩽": r"\le ", "≥⩾": r"\ge ", "≠": r"\ne ", "≈≃": r"\approx ", "≡": r"\equiv ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "∞": r"\infty ", "π": r"\pi ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ",
    "ω": r"\omega ", "σ": r"\sigma ", "ρ": r"\rho ", "φϕ": r"\phi ", "Δ": r"\Delta ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "∠": r"\angle ",
    "＜": "<", "＞": ">", "≦": r"\le ", "≧": r"\ge ",
    "△": r"\triangle ", "∑": r"\sum ", "∫": r"\int ", "…": r"\ldots ", "→": r"\to ", "∨": r"\lor ", "∧": r"\land ",
    "∴": r"\therefore ", "⇒⟹": r"\Rightarrow ",
    "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}",
    "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}",
    "\u00a0\u2002\u2003\u2009\u200a\u202f\u3000": " ", "\u200b\u200c\u200d\u2060\ufeff": "", "’′": "'", "，": ",",
    "％": "%", "（": "(", "）": ")", "＝": "=", "＋": "+", "：": ":",
}  # fmt: skip
_FULL_WIDTH = {0xFF10 + digit: str(digit) for digit in range(10)}
_CHARACTERS = {ord(sign): plain for signs, plain in _SIGNS.items() for sign in signs} | _FULL_WIDTH
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_RAISED_PLAIN = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = re.compile(r"[₀₁₂₃₄₅₆₇₈₉]+")
_LOWERED_PLAIN = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def _function(match: re.Match[str]) -> str:
    """`f: x \\mapsto` as `f(x) =`."""
    return f"{match[1] or 'f'}({match[2]}) ="


def _combinations(match: re.Match[str]) -> str:
    """`5C2` as a binomial coefficient. A numeral such as 2C335 stays."""
    return rf"\binom{{{match[1]}}}{{{match[2]}}}" if int(match[1]) >= int(match[2]) else match[0]


def _quantity(match: re.Match[str]) -> str:
    """`\\SI{30}{\\volt}` as the number and the unit in words."""
    unit = (match[2] or "").replace("\\per", "/").replace("\\", " ")
    number = match[1] + (r"^\circ" if match[0].startswith("\\ang") else "")
    return rf"{number}\text{{{unit}}}" if unit else number


_COMMANDS: tuple[tuple[tuple[str, ...], re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (("\\begin",), re.compile(
        r"\\left\s*\\\{\s*\\begin\s*\{(array|matrix)\}(?:\{[lcr| ]*\})?((?:(?!\\begin|\\end).){0,1000})"
        r"\\end\s*\{\1\}\s*\\right\s*\.", re.DOTALL), r"\\begin{cases}\2\\end{cases}"),
    (("\\begin",), re.compile(
        r"\\left\s*\\\{\s*\\begin\s*\{(aligned)\}(?:\{[lcr| ]*\})?((?:(?!\\begin|\\end).){0,1000})"
        r"\\end\s*\{\1\}\s*\\right\s*\.", re.DOTALL), r"\\begin{aligned}\2\\end{aligned}"),
    (("\\\\", "\\cr", "\\newline"), re.compile(r"\\\\(?:\s*\[[^\]]*\])?|\\cr(?![a-zA-Z])|\\newline(?![a-zA-Z])"), ROW),
    ((ROW, "\\end"), re.compile(rf"[.,;]\s*(?={ROW}|\\end\s*\{{)"), ""),
    (("C",), re.compile(r"(?<![\w.\\^{])(\d{1,3})C(\d{1,3})(?![\w.]|\)?\s*_)"), _combinations),
    (("C_",), re.compile(r"(?<![a-zA-Z\\])C_(?:\{([3-9]|\d\d)\}|([3-9]))\s*\^(?:\{(\d{1,2})\}|(\d))"),
     r"\\binom{\1\2}{\3\4}"),
    (("C_",), re.compile(r"(?:\{\s*\}|^)\s*[_^](?:\{(\w{1,4})\}|(\w))\s*C_(?:\{(\w{1,4})\}|(\w))"),
     r"\\binom{\1\2}{\3\4}"),
    (("{e", "{E"), re.compile(r"(?<=\d)\s*\\(?:text|mathrm)\s*\{\s*[eE]\s*([-+])\s*\}\s*(?=\d)"), r"e\1"),
    (("...", "dots"), re.compile(r"\.\.\.+|\\(?:dots[a-z]?|cdots)(?![a-zA-Z])"), r"\\ldots "),
    (("\\mapsto",), re.compile(
        r"(?:([a-zA-Z])\s*(?::|\\colon(?![a-zA-Z]))\s*)?([a-z])\s*\\mapsto(?![a-zA-Z])"), _function),
    ((",-", ",–"), re.compile(r"(?<=\d),[-–—](?=\s*$)"), ""),
    (("\\SI", "\\qty", "\\num", "\\ang"), re.compile(
        r"\\(?:SI|qty|num|ang)\s*\{([^{}]*)\}(?:\{([^{}]*)\})?"), _quantity),
    (("\\mid", "|"), re.compile(
        r"^([A-Z])\s*\(\s*(-?[\d./]+)\s*(?:\||\\mid(?![a-zA-Z]))\s*(-?[\d./]+)\s*\)$"), r"\1(\2, \3)"),
    (("\\ne",), re.compile(r"(?:\\quad|\s)*\(\s*[a-z]\s*\\neq?\s[^()]{1,10}\)$"), ""),
    (("{,}",), re.compile(r"(?<=\d)\{,\}(?=(?:\d{1,2}|\d{4,})(?!\d))"), "."),
    (("\\math",), re.compile(r"\\mathbin\s*\{([^{}]*)\}|\\mathrm\s+([a-zA-Z])(?![a-zA-Z])"), r"\1\2"),
    (("\\text",), re.compile(r"\\text\s+([a-zA-Z])(?![a-zA-Z])"), r"\\text{\1}"),
    ((",",), re.compile(r",\\[!,]\s*|\s*\{\s*,\s*\}\s*"), ","),
    ((":",), re.compile(r"\{\s*:\s*\}"), ":"),
    (("\\dfrac", "\\tfrac", "\\cfrac", "\\nicefrac", "\\sfrac"), re.compile(r"\\(?:[dtcs]|nice)frac(?![a-zA-Z])"),
     r"\\frac"),
    (("\\bbox", "\\framebox", "\\enclose", "\\colorbox"), re.compile(
        r"\\(?:bbox|framebox|enclose|colorbox)\s*(?:\[[^\[\]]*\]){0,2}(?:\{[^{}]*\}(?=\{))?\{([^{}]*)\}"), r"\1"),
    (("\\mathrm", "\\text", "\\rm"), re.compile(
        r"\\(?:mathrm|text|rm)\s*\{\s*\\frac\s*\{([a-zA-Z\s^\d]+)\}\s*\{([a-zA-Z\s^\d]+)\}\s*\}"), r"\\text{\1/\2}"),
    (("\\dbinom", "\\tbinom"), re.compile(r"\\[dt]binom(?![a-zA-Z])"), r"\\binom"),
    (("left", "right", "\\middle", "\\big", "\\Big"), re.compile(
        r"\\(?:left|right|middle|m?left|m?right|[bB]igg?[lrm]?)(?![a-zA-Z])\.?"), ""),
    (("color", "space", "phantom"), re.compile(
        r"\\(?:text)?color\s*\{[^{}]*\}|\\[hv]space\*?\s*\{[^{}]*\}|\\h?phantom\s*\{[^{}]*\}"), ""),
    (("\\",), re.compile(
        r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|bf|it|rm|sf|tt|cal|large|Large|LARGE|huge|small"
        r"|tiny|underline|ensuremath|mathop|mathrel|mathord|mathstrut|strut|!)(?![a-zA-Z])"), ""),
    (("\\", "~"), re.compile(
        r"\\(?:[,;:> ]|q?quad(?![a-zA-Z])|(?:neg)?(?:thin|med|thick|en)space(?![a-zA-Z]))|~"), " "),
    (("\\%", "\\#", "\\&", "\\_"), re.compile(r"\\([%#&_])"), r"\1"),
    (("\\$",), re.compile(r"\\\$"), DOLLAR),
    (("\\(", "\\)", "\\[", "\\]"), re.compile(r"\\[()\[\]]"), ""),
    (("\\imath", "\\jmath"), re.compile(r"\\([ij])math(?![a-zA-Z])"), r"\1"),
    (("hat",), re.compile(r"\\(?:hat|widehat)\s*\{\s*\\(?:mathbf|boldsymbol|bm|mathrm)\s*\{?([ijk])\}?\s*\}"),
     r"\\vec{\1}"),
    (("\\mathbf", "\\b", "\\vec", "hat", "\\overrightarrow"), re.compile(
        r"\\(?:mathbf|boldsymbol|bm|vec|hat|widehat|overrightarrow)\s*(?:\{\s*([ijk])\s*\}|\s([ijk])\b)"),
     r"\\vec{\1\2}"),
    (("\\math", "\\b", "\\vec", "\\hat", "\\overrightarrow"), re.compile(
        r"\\(?:mathbf|boldsymbol|bm|mathit|mathsf|mathcal|mathscr|mathfrak|vec|hat|overrightarrow)(?![a-zA-Z])"
        r"(?!\s*\{[ijk]\})"), ""),
    (("\\mathbb",), re.compile(r"\\mathbb\s*([A-Z])(?![a-zA-Z])"), r"\\mathbb{\1}"),
    (("\\le", "<="), re.compile(r"\\(?:leqslant|leqq|leq|le)(?![a-zA-Z])|<="), r"\\le "),
    (("\\ge", ">="), re.compile(r"\\(?:geqslant|geqq|geq|ge)(?![a-zA-Z])|>="), r"\\ge "),
    (("\\n", "!="), re.compile(r"\\(?:neq|ne|not\s*=)(?![a-zA-Z])|(?<![\d)])!="), r"\\ne "),
    (("\\varnothing",), re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (("\\dot",), re.compile(r"\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?(?!\d)"), r"\\overline{\1\2\3}"),
    (("\\lt",), re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (("\\gt",), re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (("\\circ",), re.compile(r"\{\s*\}\s*(?=\^\s*\{?\s*\\circ)"), ""),
    (("\\deg", "\\circ"), re.compile(r"\\(?:degree|deg)(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?"), r"^\\circ "),
    (("\\in",), re.compile(r"[\s,]*\(\s*([a-zA-Z]\s*\\in\s*\\mathbb\s*\{?[ZN]\}?)\s*\)$"), r", \1"),
)  # fmt: skip
"""Parts, pattern, replacement. The pattern is tried only on a text with one of the parts, which saves time."""
MAX_NESTED_TEXT = 2
_ESCAPED_TWICE = re.compile(
    r"(?<!\\)\\\\(?=(?:left|right|[dt]?frac|sqrt|boxed|text|mathrm|le|ge|leq|geq|pi|cdot|times|infty|cup|cap|in|pm|circ)(?![a-zA-Z]))"
)
"""Two backslashes in front of a command, in data that was escaped once too often."""
_NOTATION = re.compile(r"[\\~{^<>!|]|\.\.\.|,[-–—]|\dC\d")
"""Every pattern above needs one of these."""
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|textup|textsc|emph|mathrm|mbox|hbox|operatorname\*?)"
    r"\s*\{((?:[^{}]|[_^]\{[^{}]*\})*)\}"
)
_FOR_ALL = re.compile(
    rf"(?:{TEXT}\s*)?(?:\bfor (?:all|every|each|any|some)\b(?!\s*\d)|\\forall(?![a-zA-Z]))"
    rf"(?:(?!\b(?:or|and)\b|\\lor|\\land)[^,;={TEXT}]){{0,80}}$"
)
"""A remark at the end that says where a formula holds."""
_DELIMITER = re.compile(r"(?<!\\)\$")
_PRICE = re.compile(r"(?<!\\)\$(?=\s*[\d.])")
_BOLD = re.compile(r"(?<![\w)}])\*\*([^*\s](?:[^*]{0,200}[^*\s])?)\*\*(?![\w({])")
_SUBJECT = re.compile(
    rf"{TEXT}?([A-Za-z][A-Za-z' ]{{1,80}}?)\s*(?:(?:\s(?:is|are|equals)\s*)?:|\s(?:is|are|equals|(?:simplif|reduc"
    rf"|evaluat)(?:ies|es|s) to|comes to|becomes)\b)\s*{END_TEXT}?\s*"
    rf"(?=[-+\d\\(\[{{.{DOLLAR}]|[a-zA-Z](?![a-zA-Z']))(?!\d+:)"
)
"""Words in front of a formula that name it: `Solution is: x = 3`."""
_MEASURE = re.compile(
    rf"^(?:(?:\\?Pr?|\\mathbb\{{[PE]\}}|{TEXT}?(?:Pr|Var|Cov){END_TEXT}?|[nCEV])\s*[(\[]"
    rf"(?=[^()]*(?:\||\\c[au]p|,|{TEXT}|[a-zA-Z]{{2}})|[^(),]*\])[^()=\[\]]{{1,60}}[)\]]"
    r"|\|\s*[A-Z](?:\s*\\(?:cap|cup|setminus)\s*[A-Z])*\s*\|)\s*="
    r"|^\\(?:(?:sum|prod|i{0,2}int|oint|lim)(?![a-zA-Z])|frac\s*\{\s*d\s*\}\s*\{\s*d\s*[a-z]\s*\})(?:[^={}]|\{(?:[^{}]|\{[^{}]*\}){0,60}\}){0,100}=(?=[^=]*$)|^d[a-z]/d[a-z]\s*="
)
"""The measured or calculated thing in front of its value: `P(A | B) =`, `\\int x dx =`."""
_EXCEPTION = re.compile(
    r"^((?:(?!\\(?:[lg]e|ne|in|cup|cap)(?![a-zA-Z]))[^<>,;]){1,200}),\s*[a-zA-Z]\s*(?:[<>]|\\(?:ne|[lg]e)(?![a-zA-Z]))\s*-?\d+$"
)
"""A formula, and where it has a value: `x + 1, x \\ne 2`."""
_APOSTROPHES = re.compile(r"(?<![\w.'])\d{1,3}(?:'\d{3})+(?![\d'])")
_GOES_ON = re.compile(r"(?<!\d)(\d{0,40})\.(\d{2,40})\s*\\ldots(?![a-zA-Z]) ?(?!\d)")
_DIGITS_GO_ON = re.compile(r"=\s*-?\d+\.\d+\s*\\ldots\s*(?=\\approx)|[+-]\s*\\ldots\s*$")
"""Digits that are rounded next, and terms of a series that are left out."""
_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?!\.?\d)")
_LEADING = re.compile(
    r"^(?:either\s(?=[^\s]* ?=)|(?:so|thus|hence|therefore|then|finally|consequently)\b,?\s+(?:(?:we (?:get|have"
    r"|find|obtain)|it follows)\s(?:that\s)?)?"
    r"(?=[^\s])|\\approx|=>?|:|\\implies|\\Rightarrow|\\therefore|(?:approximately|approx\.?|about|roughly)\s)\s*",
    re.IGNORECASE,
)
_INNER_SPACE = re.compile(r"(?<!\d)(?<!\d,) | (?!\d)|(?<=,) (?!\d{3}(?!\d))")
"""A space without meaning. A space between digits groups them, and `1, 200` is not 1200."""
_ANY_SPACE_BUT_GROUPS = re.compile(r"(?<!\d) | (?!\d)")
_WORD = re.compile(r"(?<![a-zA-Z\\])[A-Za-z][a-z]{2,}(?![a-zA-Z])")


@lru_cache(1024)  # one check normalises its answer several times
def normalise(text: str) -> str:
    """Bring spacing, delimiters, fractions, signs and text into one notation. Text stays marked."""
    text = text.strip()
    if "\\\\" in text:
        text = _ESCAPED_TWICE.sub(r"\\", text)
    if not text.isascii():
        text = _ascii(text)
    if "$" in text:
        text = _undelimited(text)
    if _NOTATION.search(text):
        text = _plain_commands(text)
    if "'" in text:
        text = _APOSTROPHES.sub(lambda m: m[0].replace("'", ","), text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text).strip(" *").replace("**", "^")
    if text.count(".") > 1:
        text = _GROUPS.sub(lambda number: number[0].replace(".", ""), text)
    text = " ".join(text.split()).strip(" *`")
    return _bare(_LEADING.sub("", text)).rstrip(f" .,;:\\{ROW}")


def _bare(text: str) -> str:
    """The text without the name of the formula in front and a remark at the end."""
    if "=" in text:
        text = _MEASURE.sub("", text)
    if "\\ldots" in text:
        text = _DIGITS_GO_ON.sub("", text)
    if "," in text:
        text = _EXCEPTION.sub(r"\1", text)
    if text[:1].isalpha() or text.startswith(TEXT):
        text = _without_subject(text)
    return _FOR_ALL.sub("", text) if "for " in text or "\\forall" in text else text


def _ascii(text: str) -> str:
    """The text with LaTeX commands for signs outside ASCII."""
    text = _RAISED.sub(_raised, text)
    text = units_in_english(text)
    text = _LOWERED.sub(lambda m: f"_{{{m[0].translate(_LOWERED_PLAIN)}}}", text)
    return text.translate(_CHARACTERS).strip()


def _plain_commands(text: str) -> str:
    """The text with one spelling for each command, and marks around text."""
    for parts, pattern, replacement in _COMMANDS:
        for part in parts:
            if part in text:
                text = pattern.sub(replacement, text)
                break
    if "\\" in text:
        for _ in range(MAX_NESTED_TEXT):
            text = _TEXT_COMMAND.sub(_marked, text)
        text = text.replace(f"{TEXT}{DOLLAR}{END_TEXT}", DOLLAR)
    return _GOES_ON.sub(_repeating, text) if "\\ldots" in text else text


def _marked(match: re.Match[str]) -> str:
    return TEXT + unmark(match[1]) + END_TEXT


def _raised(match: re.Match[str]) -> str:
    """Raised digits as a power. A single digit gets no braces, because `\\text{cm²}` could not hold them."""
    plain = match[0].translate(_RAISED_PLAIN)
    return f"^{plain}" if len(plain) == 1 else f"^{{{plain}}}"


def _without_subject(text: str) -> str:
    """The text without leading words that name the formula. Words that deny or bound it stay."""
    subject = _SUBJECT.match(text)
    return text[subject.end() :] if subject and harmless_ahead(subject[1]) and len(subject[1]) > 1 else text


def _repeating(match: re.Match[str]) -> str:
    """A decimal with dots, as a repeating one if its last digits were written at least twice."""
    digits = match[2]
    for size in range(1, len(digits) // 2 + 1):
        cycle = digits[-size:]
        if digits[-2 * size : -size] == cycle:
            fixed = digits[: -2 * size]
            while fixed.endswith(cycle):
                fixed = fixed[:-size]
            return rf"{match[1]}.{fixed}\overline{{{cycle}}}"
    return match[0]


def _undelimited(text: str) -> str:
    """The text without LaTeX's delimiters. An odd `$` in front of a number is the currency."""
    if len(_DELIMITER.findall(text)) % 2:
        text = _PRICE.sub(DOLLAR, text, count=1)
    return _DELIMITER.sub("", text)


def last_side(text: str) -> tuple[str, str, str]:
    """What stands in front of the last equals sign outside of braces, the sign, and what stands behind it."""
    if "=" not in text:
        return "", "", text
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in "})]") - (text[place] in "{([")
        if text[place] == "=" and not depth:
            return text[:place], "=", text[place + 1 :]
    return "", "", text


def unmark(text: str) -> str:
    """The text without the marks of `\\text{}`."""
    return text.replace(TEXT, "").replace(END_TEXT, "")


def key(text: str) -> str:
    """The key that equal spellings share. Spaces count between digits and in lists of numbers."""
    if " " not in text:
        return unmark(text)
    spaces = _ANY_SPACE_BUT_GROUPS if any(bracket in text for bracket in "([{") else _INNER_SPACE
    return spaces.sub("", unmark(text))


def folded(text: str) -> str:
    """The key of normalised text, ignoring the case of words. Names of points, such as ABC, keep their case."""
    return key(_WORD.sub(lambda match: match[0].lower(), unmark(text)))
