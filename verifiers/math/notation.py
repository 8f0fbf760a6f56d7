"""Rewrites the different spellings of an answer into one notation. Labels and answers go through the same steps."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

TEXT, END_TEXT = "\x02", "\x03"
"""Mark the start and the end of the text in `\\text{}` and similar commands."""
ROW = "\x04"
"""The sign for `\\\\`, which separates the rows of a matrix."""
DOLLAR = "\x05"
"""The sign for the currency: `$` alone is LaTeX's delimiter."""
QUAD = "\x06"
"""The sign for a wide space, which may separate two equations."""

_SIGNS = {
    "−–—﹣－": "-", "×✕": r"\times ", "·⋅∙•": r"\cdot ", "÷": r"\div ", "∕⁄": "/", "°º˚": r"^\circ ", "√": r"\sqrt ",
    "≤⩽≦": r"\le ", "≥⩾≧": r"\ge ", "≠": r"\ne ", "≈≃": r"\approx ", "≡": r"\equiv ", "∪": r"\cup ", "∩": r"\cap ",
    "∈": r"\in ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "∅": r"\emptyset ", "∞": r"\infty ", "π": r"\pi ",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ",
    "ω": r"\omega ", "σ": r"\sigma ", "ρ": r"\rho ", "φϕ": r"\phi ", "Δ": r"\Delta ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "∠": r"\angle ", "Ω": r"\Omega ",
    "＜": "<", "＞": ">", "△": r"\triangle ", "∑": r"\sum ", "∫": r"\int ", "…": r"\ldots ", "→": r"\to ",
    "∨": r"\lor ", "∧": r"\land ", "∴": "", "⇒⟹": r"\Rightarrow ", "’′": "'", "，": ",", "％": "%", "（": "(",
    "）": ")", "＝": "=", "＋": "+", "：": ":", "。": ".", "¬": r"\neg ", "✓✅✔□■∎": " ",
    "\u00a0\u2002\u2003\u2009\u200a\u202f\u3000": " ", "\u200b\u200c\u200d\u2060\ufeff": "",
}  # fmt: skip
_CHARACTERS = {ord(sign): plain for signs, plain in _SIGNS.items() for sign in signs}
_SMALL = re.compile(r"(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+)|(?P<lowered>[₀-₉]+)|(?P<part>[¼-¾⅐-⅞])")

_GONE = """displaystyle textstyle scriptstyle limits nolimits bf it rm sf tt cal large Large LARGE huge small tiny
underline ensuremath mathop mathrel mathord mathbin mathstrut strut ! checkmark blacksquare qed therefore ( ) [ ]
mathit mathsf mathcal mathscr mathfrak boldsymbol bm mathbf overrightarrow vec hat"""
_NAMES = {
    **dict.fromkeys(_GONE.split(), ""),
    **dict.fromkeys((*",;:>", "thinspace", "medspace", "thickspace", "enspace", "space"), " "),
    **dict.fromkeys(("negthinspace", "negmedspace", "negthickspace"), ""),
    " ": " ", "\n": " ", "quad": QUAD, "qquad": QUAD, "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac",
    "nicefrac": r"\frac", "sfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom", "dots": r"\ldots ",
    "dotsc": r"\ldots ", "cdots": r"\ldots ", "leqslant": r"\le ", "leqq": r"\le ", "leq": r"\le ", "le": r"\le ",
    "geqslant": r"\ge ", "geqq": r"\ge ", "geq": r"\ge ", "ge": r"\ge ", "neq": r"\ne ", "ne": r"\ne ", "lt": "<",
    "gt": ">", "varnothing": r"\emptyset", "degree": r"^\circ ", "imath": "i", "jmath": "j", "%": "%",
    "#": "#", "&": "&", "_": "_", "$": DOLLAR, "cr": ROW, "newline": ROW, "\\": ROW, "colon": ":",
}  # fmt: skip
"""Commands without an argument, and what stands in their place."""
_COMMAND = re.compile(
    r"\\(?:m?left|m?right|middle|[bB]igg?[lrm]?)(?![a-zA-Z])\s*\.?"
    r"|\\(?:(?:text)?color|[hv]space\*?|[hv]?phantom|tag\*?|label)\s*\{[^{}]*\}"
    r"|,\\[!,]\s*|\\\\(?P<twice>[a-zA-Z]{2,})|\\(?P<row>\\)\s*\[[^\]]*\]|\\(?P<name>[a-zA-Z]+|.)\s?(?P<operand>\{\s*[ijk]\s*\})?",
    re.DOTALL,
)
_BASIS = re.compile(
    r"\\(?:hat|widehat|mathbf|boldsymbol|bm|vec|overrightarrow)\s*(?:\{\s*\\(?:mathbf|boldsymbol|bm|mathrm)\s*\{?\s*"
    r"([ijk])\s*\}?\s*\}|\{\s*\\?([ijk])(?:math)?\s*\}|\s([ijk])\b)"
)
"""A unit vector, `\\hat{\\mathbf{i}}`."""
_TWICE = (
    "left", "right", "frac", "dfrac", "tfrac", "sqrt", "boxed", "text", "mathrm", "le", "ge", "leq", "geq", "pi",
    "cdot", "times", "infty", "cup", "cap", "in", "pm", "circ",
)  # fmt: skip
"""Commands that data has with two backslashes if it was escaped once too often."""
_CASES = re.compile(
    r"\\left\s*\\\{\s*\\begin\s*\{(array|matrix|aligned)\}(?:\{[lcr| ]*\})?((?:(?!\\begin|\\end).){0,1000})"
    r"\\end\s*\{\1\}\s*\\right\s*\.",
    re.DOTALL,
)
_TEXT_COMMAND = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|textup|textsc|emph|mathrm|mbox|hbox|operatorname\*?)"
    r"\s*(?:\{((?:[^{}]|[_^]\{[^{}]*\}|\\frac\s*\{[^{}]*\}\s*\{[^{}]*\})*)\}|([a-zA-Z])(?![a-zA-Z]))"
)
MAX_NESTED_TEXT = 2
_BRACED = re.compile(r"(?<=\d)\s*\{\s*([,:])\s*\}\s*(\d{3}(?!\d))?")
"""A comma or a colon in braces, and three digits behind it."""
_SHAPES = (
    ("\\", re.compile(rf"[.,;]\s*(?={ROW}|\\end\s*\{{)"), ""),
    ("circ", re.compile(r"(?:\{\s*\}\s*)?\^\s*\{?\s*\\circ\s*\}?"), r"^\\circ "),
    ("C", re.compile(
        r"(?:(?:\{\s*\}|^)\s*[_^](?:\{(\w{1,4})\}|(\w))\s*C_|(?<![a-zA-Z\\])C_(?:\{([3-9]|\d\d)\}|([3-9]))\s*\^)"
        r"(?:\{(\w{1,4})\}|(\w))"), r"\\binom{\1\2\3\4}{\5\6}"),
)  # fmt: skip
"""A part, a pattern with that part, and its replacement."""
_TYPED = (("<=", r"\le "), (">=", r"\ge "), (" != ", r" \ne "), ("...", r"\ldots "), ("~", " "))
"""Signs as they are typed, and as commands."""
_GOES_ON = re.compile(r"(?<!\d)(\d{0,40})\.(\d{2,40})\s*\\ldots(?![a-zA-Z]) ?(?!\d)")
_DELIMITER = re.compile(r"(?<!\\)\$(?P<price>(?=\s*[\d.]))?")
_GROUPED = re.compile(r"(?<![\w.'])\d{1,3}(?:'\d{3})+(?![\d'])|(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?!\.?\d)")
_POWER = re.compile(r"(?<=[\w)}])\*\*(?=[\w({-])")
_LEADING = re.compile(
    r"(?:\\approx(?![a-zA-Z])|=>?|:|\\(?:implies|Rightarrow)|(?:so|thus|hence|therefore|then|approximately|approx\.?"
    r"|about|roughly|exactly|either(?=[^ ]* ?=))(?![a-zA-Z]),?)\s*",
    re.IGNORECASE,
)
_RELATION = re.compile(r"[=<>]|\\(?:[lg]e|ne|in|equiv|approx)(?![a-zA-Z])")
_REMARK = re.compile(
    rf"(?P<head>.*[^\s,])(?:(?:[\s,]+|(?<=[\d}})]))\((?P<inside>(?:[^()]|\([^()]*\))*)\)"
    rf"|[\s,]+{TEXT}?\s*(?P<domain>(?:for (?:all|every|each|any|some)\b(?!\s*\d)|\\forall(?![a-zA-Z]))[^,;=]{{0,80}})"
    r"|,\s*(?P<exception>[a-zA-Z]\s*(?:[<>]|\\(?:ne|[lg]e)(?![a-zA-Z]))\s*-?\d+))",
    re.DOTALL,
)
"""A formula, and what it says of itself: `(x > 0)`, `for all x`, `, x \\ne 2`."""
_GROUPED_SPACE = re.compile(r"(?<!\d)(?<!\d,) | (?!\d)|(?<=,) (?!\d{3}(?!\d))")
_BOUNDED = (",", "<", ">", "\\le ", "\\ge ", "\\ne ", "\\in")
"""Signs of a list or a region, whose last part is no remark."""
_BETWEEN_DIGITS = re.compile(r"(?<!\d) | (?!\d)")
"""A space without meaning. A space between digits groups them, and `1, 200` is not 1200."""
_WORD = re.compile(r"(?<![a-zA-Z\\])[A-Za-z][a-z]{2,}(?![a-zA-Z])")


@lru_cache(2048)
def normalise(text: str) -> str:
    """Bring spacing, delimiters, fractions, signs and text into one notation. Text stays marked."""
    text = text.strip()
    if not text.isascii():
        text = _ascii(text)
    if "$" in text:
        priced = len(_DELIMITER.findall(text)) % 2
        text = _DELIMITER.sub(lambda sign: DOLLAR if priced and sign["price"] is not None else "", text)
    if "\\" in text:
        text = _plain_commands(text)
    text = " ".join(_separated(_plain_signs(text)).split()).strip(" *`")
    leading = _LEADING.match(text)
    return text[leading.end() if leading else 0 :].rstrip(f" .,;:\\{ROW}").strip()


def _plain_signs(text: str) -> str:
    """The text with one spelling for what is typed without a command."""
    for typed, command in _TYPED:
        text = text.replace(typed, command)
    if "{" in text:
        text = _BRACED.sub(_separator, text)
    for part, pattern, replacement in _SHAPES:
        if part in text:
            text = pattern.sub(replacement, text)
    if "\\ldots" in text:
        text = _GOES_ON.sub(_repeating, text)
    if "'" in text or text.count(".") > 1:
        text = _GROUPED.sub(lambda number: number[0].replace("'", "").replace(".", ""), text)
    return _POWER.sub("^", text).replace("**", "") if "**" in text else text


def _ascii(text: str) -> str:
    """The text with LaTeX commands and digits for signs outside ASCII."""
    text = _SMALL.sub(_small, text)
    text = "".join(str(unicodedata.decimal(sign)) if sign.isdecimal() else sign for sign in text)
    return text.translate(_CHARACTERS).strip()


def _small(match: re.Match[str]) -> str:
    """Raised digits as a power, lowered digits as an index, `½` as a fraction."""
    plain = unicodedata.normalize("NFKC", match[0]).replace("−", "-")
    if match["part"]:
        above, _, below = plain.partition("⁄")
        return rf"\frac{{{above}}}{{{below}}}"
    sign = "^" if match["raised"] else "_"
    return f"{sign}{plain}" if len(plain) == 1 else f"{sign}{{{plain}}}"


def _plain_commands(text: str) -> str:
    """The text with one spelling for each command, and marks around text."""
    if "\\begin" in text:
        text = _CASES.sub(_lines, text)
    text = _BASIS.sub(r"\\vec{\1\2\3}", text)
    text = _COMMAND.sub(_command, text)
    for _ in range(MAX_NESTED_TEXT):
        text = _TEXT_COMMAND.sub(lambda match: f"{TEXT}{unmark(match[1] or match[2] or '')}{END_TEXT}", text)
    return text.replace(f"{TEXT}{DOLLAR}{END_TEXT}", DOLLAR)


def _lines(match: re.Match[str]) -> str:
    name = "aligned" if match[1] == "aligned" else "cases"
    return rf"\begin{{{name}}}{match[2]}\end{{{name}}}"


def _command(match: re.Match[str]) -> str:
    name = match["name"] or match["twice"]
    if match["row"]:
        return ROW
    if name is None:
        return "," if match[0][0] == "," else ""
    behind = match[0][match.end("name") - match.start() :] if match["name"] else ""
    if match["twice"] and name not in _TWICE:
        return f"{ROW}{name}"
    if name == "vec" and match["operand"]:
        return match[0]
    return f"{_NAMES.get(name, chr(92) + name)}{behind}"


def _separator(match: re.Match[str]) -> str:
    """A comma that groups three digits, else a decimal comma; a colon as it is."""
    return f"{match[1]}{match[2] or ''}" if match[2] or match[1] == ":" else "."


def _separated(text: str) -> str:
    """Two relations with a wide space or a new row between them as items of a list."""
    if QUAD not in text and (ROW not in text or "\\begin" in text):
        return text
    if "\\begin" in text:
        return text.replace(QUAD, " ")
    parts = [part.strip(" ,;") for part in text.replace(ROW, QUAD).split(QUAD)]
    relations = sum(bool(_RELATION.search(part)) for part in parts)
    return (", " if relations > 1 else " ").join(filter(None, parts))


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


def without_remark(text: str) -> tuple[str, str]:
    """A normalised answer without the remark at its end, and the remark."""
    found = _REMARK.fullmatch(text) if text[-1:] == ")" or "," in text or "for" in text else None
    if found is None:
        return text, ""
    remark = found["inside"] or found["domain"] or found["exception"] or ""
    if remark.startswith("mod"):
        return text, ""
    speaks = _RELATION.search(remark) or any(word.islower() for word in _WORD.findall(unmark(remark)))
    if not speaks or (found["exception"] and any(sign in found["head"] for sign in _BOUNDED)):
        return text, ""
    return found["head"], remark


def last_side(text: str) -> tuple[str, str, str]:
    """What stands in front of the last equals sign outside of braces, the sign, and what stands behind it."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] in "})]") - (text[place] in "{([")
        if text[place] == "=" and not depth:
            return text[:place], "=", text[place + 1 :]
    return "", "", text


def unmark(text: str) -> str:
    """The text without the marks of `\\text{}`."""
    return text.replace(TEXT, "").replace(END_TEXT, "")


@lru_cache(4096)
def key(text: str) -> str:
    """The key that equal spellings share. Spaces count between digits and in lists of numbers."""
    text = unmark(text)
    return _BETWEEN_DIGITS.sub("", text) if any(bracket in text for bracket in "([{") else _GROUPED_SPACE.sub("", text)


@lru_cache(4096)
def folded(text: str) -> str:
    """The key of normalised text, ignoring the case of words. Names of points, such as ABC, keep their case."""
    return key(_WORD.sub(lambda match: match[0].lower(), unmark(text)))
