"""Finds the part of an answer that is compared with a label: a letter with an option, words with words."""

from __future__ import annotations

import re
from typing import NamedTuple

from olmorl.verifiers.math.answer_parser import Reading, in_signs, odds_for_probability, of_option, read, read_label
from olmorl.verifiers.math.extraction import Extracted
from olmorl.verifiers.math.forms import has_other_form, notation_of
from olmorl.verifiers.math.named_values import assigned, names_all, of_subject
from olmorl.verifiers.math.notation import folded, last_side, normalise, unmark
from olmorl.verifiers.math.numbers import Policy, equal
from olmorl.verifiers.math.question import MathQuestion
from olmorl.verifiers.math.units import apart, with_unit
from olmorl.verifiers.math.words import spoken
from olmorl.verifiers.math.words.wording import conclusion, imagined

_LENIENT = Policy()
_CHAIN = re.compile(r"\s*(?:[<>]|\\[lg]t(?![a-zA-Z]))\s*")
_MEASURED = re.compile(r"(-?[\d.]+)( [a-zA-Z][a-zA-Z/^\d ]{0,12})")
_YES_NO = re.compile(r"\W*(?:yes|no|true|false)\b(?! (?:real|such|solution))", re.IGNORECASE)
_LETTERS = re.compile(r"[A-J]")
_SEVERAL_LETTERS = re.compile(r"\(?[A-J]\)?(?:[\s,;&]+(?:and )?\(?[A-J]\)?)+")


class Match(NamedTuple):
    """A label and the part of an answer that is compared with it."""

    truth: str
    wanted: Reading
    found: Extracted


def refusal(truth: str, found: Extracted, question: MathQuestion) -> str:
    """Why an answer cannot agree with a label, whatever its value. Empty if it can."""
    if found.how == "sentence" and imagined(found.text):
        return "unclear"
    if odds_for_probability(truth, found.text):
        return "odds"
    solved = question.unknown and question.solved_for_another(read_label(truth).text, read(found.text).text)
    return "another unknown" if solved else ""


def match(question: MathQuestion, truth: str, found: Extracted) -> Match:
    """The label and the part of the answer that it asks for."""
    if found.whole and folded(normalise(found.whole)) == folded(normalise(truth)):
        found = found._replace(text=truth)
    truth, found = _of_options(question, truth, found)
    wanted = read_label(truth)
    found = _suited(found, wanted)
    if wanted.number and question.subject and (said := of_subject(question.subject, question.names, found.closing)):
        found = found._replace(text=said, how="subject")
    answer = found.num_items if found.num_items and wanted.number else of_option(found.text, wanted)
    if question.is_ordered and "," in wanted.text and "," not in answer:
        answer = _CHAIN.sub(", ", answer)
    return Match(truth, wanted, found._replace(text=question.without_bound(question.value_side(answer))))


def asked_again(question: MathQuestion, wanted: Reading, given: Reading) -> str:
    """Why an answer that may have the label's value is none: it repeats the question, or lacks the asked form."""
    if given.key == wanted.key or wanted.is_choice_label or wanted.choice:
        return ""
    if question.asks_form and has_other_form(question.text, wanted.text, given.text):
        return "form"
    if wanted.number and given.number and notation_of(wanted.text) == notation_of(given.text) != "fraction":
        return ""
    restated, own = (
        question.repeats(one.text) or question.restates(one.text, bool(one.number)) for one in (given, wanted)
    )
    return "restated" if restated and not own else ""


def in_words_of(
    question: MathQuestion, wanted: Reading, answer: Extracted, found: Extracted
) -> tuple[bool, str] | None:
    """Whether a sentence agrees with a label, where the words of the question decide it. None if they do not."""
    sentence = answer.closing or answer.text
    if wanted.number and not wanted.number.value and question.counts_none(sentence):
        return True, "none"
    if found.how == "closing" and wanted.number:
        return False, "no_answer"
    label = wanted.word.casefold()
    if label in ("yes", "no") and not _YES_NO.match(found.text) and (said := question.polarity(sentence)):
        return said == label, "word"
    return None


def in_terms_of(question: MathQuestion, wanted: Reading, given: Reading) -> Reading:
    """A bare label in the base of its question, or in its unit, if the answer is in another unit of the same kind."""
    if question.base and given.numeral and not wanted.numeral:
        return read(f"{wanted.key}_{question.base}")
    number, said = wanted.number, given.number or given.stated
    if number is None or number.unit.dimensions or number.percent or said is None:
        return wanted
    units = question.label_units(said.unit)
    if units is None:
        return wanted
    quantities = [number._replace(unit=unit) for unit in units]
    same = next((one for one in quantities if equal(one, said, _LENIENT)), quantities[0])
    return wanted._replace(number=same, key="")


def in_unit_of(question: MathQuestion, truth: str, answer: str) -> str | None:
    """A formula in the unit that the question gives to a bare label. None if it measures something else."""
    formula, given = apart(normalise(answer))
    if not given.dimensions or apart(normalise(truth))[1].dimensions:
        return answer
    units = question.label_units(given)
    if units is None:
        return answer
    if units[0].dimensions != given.dimensions:
        return None
    ratio = given.factor / units[0].factor
    return rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}({last_side(formula)[2]})"


def with_marked_unit(truth: str) -> str:
    """`0.68 m` with its unit as text, for the grammar: a letter there is a variable."""
    measured = _MEASURED.fullmatch(truth.strip())
    marked = with_unit(measured[1], measured[2]) if measured else truth
    return truth if measured and marked == measured[1] else marked


def _of_options(question: MathQuestion, truth: str, found: Extracted) -> tuple[str, Extracted]:
    """The texts of the options that a label names by letters, unless the answer has letters too."""
    label = read_label(truth)
    letters = [label.choice or label.key.strip("().")] if label.is_choice_label else []
    if _SEVERAL_LETTERS.fullmatch(truth.strip()):
        letters = _LETTERS.findall(truth)
        if found.text.isupper() and found.text.isalpha():
            return truth, found._replace(text=", ".join(found.text))
    elif question.options and not letters and read(found.text).is_choice_label:
        return truth, found._replace(text=question.option(read(found.text).key.strip("().")) or found.text)
    options = list(map(question.option, letters))
    if not options or "" in options:
        return truth, found
    named = _SEVERAL_LETTERS.fullmatch(found.text.strip()) if len(letters) > 1 else _gives_letter(found)
    return (truth, found) if named else (", ".join(options), found)


def _gives_letter(found: Extracted) -> bool:
    """Whether an answer names an option by its letter."""
    return any(read(text).choice for text in (found.text, found.closing) if text)


def _suited(found: Extracted, wanted: Reading) -> Extracted:
    """What suits the label in the place of the last number: the last sentence for words, named values for a list."""
    if found.ending and "," in wanted.text and "," not in found.text and found.how != "last_list":
        values = assigned(found.ending)
        if len(values) == wanted.text.count(",") + 1:
            return found._replace(text=", ".join(values))
    if found.ending and "," in wanted.text and found.how != "last_list" and names_all(wanted.text, found.ending):
        return found._replace(text=wanted.text)
    if not found.closing or wanted.number:
        return found
    for closing in (found.closing, found.closing.rpartition("$")[2]):
        said = spoken.in_signs(conclusion(unmark(normalise(closing))).strip())
        if said and said == in_signs(wanted.text):
            return found._replace(text=said)
    if not found.text:
        return found._replace(text=found.closing)
    if not (wanted.word or wanted.is_choice_label):
        return found
    given = read(found.text)
    return found if given.word or given.choice else found._replace(text=found.closing)
