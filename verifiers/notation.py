"""Rewrites what people and models write for one answer into one notation."""

from __future__ import annotations

import re

TEXT, END_TEXT = "\x02", "\x03"
"""Stand around what was inside `\\text{}` and its kin."""

_SIGNS = {
    "−–—﹣－": "-", "×✕": r"\times ", "·⋅∙": r"\cdot ", "÷": r"\div ", "∕⁄": "/", "°": r"^\circ ", "√": r"\sqrt ",
    "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "∅": r"\emptyset ", "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ", "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}",
    "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "²": "^2", "³": "^3", "⁴": "^4", "\u00a0\u2009\u202f": " ",
    "\u200b": "", "’": "'", "，": ",", "％": "%", "（": "(", "）": ")",
}  # fmt: skip
_FULL_WIDTH = {0xFF10 + digit: str(digit) for digit in range(10)}
_CHARACTERS = {ord(sign): plain for signs, plain in _SIGNS.items() for sign in signs} | _FULL_WIDTH
_COMMANDS = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|m?left|m?right|[bB]igg?[lr]?)(?=[^a-zA-Z])\.?"), ""),
    (re.compile(r"\\(?:displaystyle|textstyle|limits|!)(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:[,;: ]|q?quad(?![a-zA-Z])|thinspace(?![a-zA-Z]))|~"), " "),
    (re.compile(r"\{\s*,\s*\}"), ","),
    (re.compile(r"\\([%#&_])"), r"\1"),
    (re.compile(r"\\\$|\$|[€£¥₹]"), ""),
    (re.compile(r"\\[()\[\]]"), ""),
    (re.compile(r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|mathrm|mathbf|mathit|mathsf|mbox|operatorname)"
                r"\s*\{([^{}]*)\}"), TEXT + r"\1" + END_TEXT),
    (re.compile(r"\\(?:leqslant|leq|le)(?![a-zA-Z])|<="), r"\\le "),
    (re.compile(r"\\(?:geqslant|geq|ge)(?![a-zA-Z])|>="), r"\\ge "),
    (re.compile(r"\\(?:neq|ne)(?![a-zA-Z])|!="), r"\\ne "),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"\\(?:degree|deg)(?![a-zA-Z])|\^\s*\{?\s*\\circ\s*\}?"), r"^\\circ "),
)  # fmt: skip
_NOTATION = re.compile(r"[\\$~{^<>!]")
"""What every command above contains one of."""
_SPACES = re.compile(r"\s+")
_LEADING = re.compile(r"^(?:\\approx|=|:|\\implies|\\Rightarrow|\\therefore)\s*")


def normalise(text: str) -> str:
    """One notation for spacing, delimiters, fractions, signs and text; what was text stays marked."""
    text = text.strip() if text.isascii() else text.translate(_CHARACTERS).strip()
    if _NOTATION.search(text):
        for pattern, replacement in _COMMANDS:
            text = pattern.sub(replacement, text)
    text = _SPACES.sub(" ", text).strip(" *`")
    text = _LEADING.sub("", text)
    return text.rstrip(" .,;\\")


def unmark(text: str) -> str:
    """Without the marks around text."""
    return text.replace(TEXT, "").replace(END_TEXT, "")


def key(text: str) -> str:
    """What two equal spellings share, given normalised text."""
    return unmark(text).replace(" ", "")


def grouped_digits(text: str) -> str:
    """Join digits that a space or comma groups by thousands."""
    return re.sub(r"(?<![\d.])\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d])", lambda m: re.sub("[ ,]", "", m[0]), text)
