"""Removes ASCII punctuation from text, as the published checkers do."""

from __future__ import annotations

from string import punctuation

from olmorl.verifiers.instructions.texts.words import tokens

_NONE = str.maketrans("", "", punctuation)


def without(text: str) -> str:
    """The text without any mark: `don't` becomes `dont`."""
    return text.translate(_NONE)


def trimmed(text: str) -> str:
    """The text without marks and spaces at its ends. Other white space stays."""
    return text.strip(punctuation + " ")


def plain_words(text: str) -> list[str]:
    """The words in lower case, without marks."""
    return without(text.lower()).split()


def word_tokens(text: str) -> list[str]:
    """The tokens with a letter or digit."""
    return [token for token in tokens(text) if any(character.isalnum() for character in token)]
