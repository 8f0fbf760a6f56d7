"""Splits text into words and tokens, as the published checkers do."""

from __future__ import annotations

import re

from olmorl.verifiers.instructions.texts.sentences import sentences

_WORD = re.compile(r"\w+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores. `don't` gives two words."""
    return _WORD.findall(text)


_BORDER = "\ue000"
"""The separator between two sentences."""
_TREEBANK = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Opening quotes.
        (r"([«“‘„]|`+)", r" \1 "),
        (rf'(?:\A|(?<={_BORDER}))"', " `` "),
        (r"``", " `` "),
        (r"([ (\[{<])(?:\"|'')", r"\1 `` "),
        (r"(?i)'(?!re|ve|ll|[mtsdn])(?=\w\b)", "' "),
        # Punctuation. The final dot of a sentence is a separate token.
        (rf"([^.{_BORDER}])(\.)([\])}}>\"'»”’ ]*+)\s*(?={_BORDER}|\Z)", r"\1 \2 \3 "),
        (r"([:,])(\D|\Z)", r" \1 \2"),
        (r"(\.{2,}|[;@#$%&?!*\[\](){}<>])", r" \1 "),
        (r"(?<=[^'])' ", " ' "),
        (r"--", " -- "),
        # Closing quotes and contractions.
        (rf"{_BORDER}|\A|\Z", r" \g<0> "),
        (r"([»”’]|'')", r" \1 "),
        (r'"', " '' "),
        (r"\s+", " "),
        (r"(?<=[^' ])('[sSmMdD]?) ", r" \1 "),
        (r"(?<=[^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r" \1 "),
        (r"(?i)\b(can)(not)\b", r" \1 \2 "),
        (r"(?i)\b(d(?='ye)|more(?='n))('ye|'n)\b", r" \1 \2 "),
        (r"(?i)\b(gim(?=me)|lem(?=me)|gon(?=na)|got(?=ta))([mnt][ea])\b", r" \1 \2 "),
        (r"(?i)\b(wan)(na)(?=\s)", r" \1 \2 "),
        (r"(?i) ('t)(is|was)\b", r" \1 \2 "),
    )
)


def tokens(text: str) -> list[str]:
    """Words and marks in the Penn Treebank convention, sentence by sentence: `don't.` gives `do`, `n't`, `.`."""
    spaced = _BORDER.join(sentences(text.replace(_BORDER, " ")))
    for pattern, replacement in _TREEBANK:
        spaced = pattern.sub(replacement, spaced)
    return spaced.replace(_BORDER, " ").split()
