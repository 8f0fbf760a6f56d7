"""Detects the language of a text by character n-grams. The same text always gives the same result."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import langdetect
from langdetect.detector_factory import DetectorFactory

PROFILES = Path(langdetect.__file__).parent / "profiles"
MAX_TEXT = 20_000
"""The most characters that are used. The detector itself samples the first half of them."""
SURE = 0.5


def language_code(value: Any) -> str:
    """Reads a parameter: an ISO 639-1 code that `is_language` knows, `zh-cn` or `zh-tw`. `zh` means either."""
    if not isinstance(value, str) or value not in {"zh", *(path.name for path in _profiles())}:
        raise ValueError("must be the code of a known language, such as 'en'")
    return value


def is_language(text: str, language: str) -> bool:
    """Whether the text is most probably in the language. False if the detector is unsure or finds no letters."""
    detector = _factory().create()
    detector.append(text[:MAX_TEXT])
    try:
        ranking = detector.get_probabilities()
    except langdetect.LangDetectException:
        return False
    if not ranking or ranking[0].prob < SURE:
        return False
    return language in (ranking[0].lang, ranking[0].lang.partition("-")[0])


@cache
def _factory() -> DetectorFactory:
    factory = DetectorFactory()
    factory.load_json_profile([path.read_text(encoding="utf-8") for path in _profiles()])
    factory.set_seed(0)
    return factory


def _profiles() -> list[Path]:
    """The profile files in a fixed order, because sums of floats and ties depend on the order."""
    return sorted(path for path in PROFILES.iterdir() if not path.name.startswith("."))
