"""Decides whether an English text starts with a verb, with the part-of-speech tagger HanTa and rules for its gaps.

The tagger was trained on the British National Corpus of the 1990s. It tags newer verbs, such as `unfollow`, and verbs
that are mostly nouns, such as `research`, as nouns. An object after such a word shows that it is a verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import takewhile

from HanTa.HanoverTagger import HanoverTagger

from olmorl.verifiers.instructions.texts.vocabulary import vocabulary

MAX_TOKENS = 12
MAX_TOKEN = 30
"""The most characters of a token, because the tagger takes quadratic time."""
_MODAL = "VM0"
_NO_NAME = ("NN0", "NN1", "AJ", "UNC")
"""Tags of words that may be unknown verbs: singular nouns, adjectives, unclassified words."""
_VARIABLES = frozenset("bcdefghijklmnopqrstuvwxyz")


def starts_with_verb(said: Sequence[str]) -> bool:
    """Whether the first token is a verb in any form, except modals such as `can` and `should`.

    Args:
        said: the first tokens of the text.
    """
    said = list(takewhile(lambda token: len(token) <= MAX_TOKEN, said[:MAX_TOKENS]))
    if not said or not said[0].replace("-", "").isalpha():
        return False
    tags: list[str] = [tag for _, _, tag in _tagger().tag_sent(said)]
    if tags[0].startswith("V"):
        return tags[0] != _MODAL
    word, following = said[0].lower(), said[1] if len(said) > 1 else ""
    if word in vocabulary("verbs"):
        return following not in vocabulary("after_nouns")
    if word.endswith("ing") and tags[0].startswith(_NO_NAME):
        return _is_participle(word, following, tags)
    known = tags[0].startswith(_NO_NAME) or word in vocabulary("verbs_or_adverbs")
    return known and _is_object(following, tags[1:3])


def _is_participle(word: str, following: str, tags: Sequence[str]) -> bool:
    """Whether a word in -ing is a verb, as in `giggling, she left`, `planning helps` and `whirring`."""
    if following.endswith("ly") or following in vocabulary("objects"):
        return True
    if any(tag == "VVG" for tag, _ in _tagger().tag_word(word, casesensitive=False)):
        return following == "," or (tags[0] == "NN1" and any(tag.startswith("V") for tag in tags[1:2]))
    return tags[0] == "NN1" and word not in vocabulary("nouns_in_ing")


def _is_object(following: str, tags: Sequence[str]) -> bool:
    """Whether the next token starts the object of a verb: `the`, `x`, or `three` before a plural."""
    counted = len(tags) == 2 and tags[0] == "CRD" and tags[1] == "NN2"
    return counted or following in _VARIABLES or following in vocabulary("objects")


@cache
def _tagger() -> HanoverTagger:
    return HanoverTagger("morphmodel_en.pgz")
