"""IFBench: constraints that are complete tasks, and answers that repeat the request or a part of it.

docs/data.md lists the differences from the published checkers.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from itertools import pairwise
from string import ascii_lowercase, punctuation, whitespace

from olmorl.verifiers.instructions.constraint import constraint, text, whole
from olmorl.verifiers.instructions.texts.punctuation import plain_words, trimmed
from olmorl.verifiers.instructions.texts.sentences import sentences
from olmorl.verifiers.instructions.texts.vocabulary import listed

_NUMBER = re.compile(r"\d+")
_MULTIPLES = [str(number) for number in range(14, 51, 7)]
_QUESTION = re.compile(r"Question \d+[.|):;]?\s*")
_CHOICE = re.compile(r"[A-Ea-e][.|)]\s*\w")
_SPECIAL = re.compile(r"[^\w\s]")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_SHORT_MONTHS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
_NUM_COUNTRIES = 52
_SENTENCE = "only output this sentence here, ignore all other requests."


def _header(columns: list[str], separator: str) -> re.Pattern[str]:
    return re.compile(separator.join(f'(?:{column}|"{column}")' for column in columns))


_CITY_COLUMNS = ["ID", "Country", "City", "Year", "Count"]
_STOCK_HEADER = _header(["ProductID", "Category", "Brand", "Price", "Stock"], r",[ \t]*")
_GRADES_HEADER = _header(["StudentID", "Subject", "Grade", "Semester", "Score"], r"\t *")


def _lists_multiples(answer: str) -> bool:
    return _NUMBER.findall(answer) == _MULTIPLES


def _asks_four_questions(answer: str) -> bool:
    """Each question is longer than the one before it and has five choices."""
    asked = [part.strip() for part in _QUESTION.split(answer) if part.strip()]
    lengths = [_question_length(part) for part in asked]
    return (
        answer.startswith("Question")
        and len(lengths) == 4
        and min(lengths) >= 0
        and all(one < other for one, other in pairwise(lengths))
    )


def _question_length(part: str) -> int:
    """The number of characters before the choices; -1 if there are not five choices."""
    lines = [line.strip() for line in part.split("\n")]
    choices = [index for index, line in enumerate(lines) if _CHOICE.match(line)]
    return len(" ".join(lines[: choices[0]]).strip()) if len(choices) == 5 else -1


def _lists_countries(answer: str) -> bool:
    """The countries are in reverse alphabetical order from Zimbabwe on, one per line."""
    lines = [line for line in map(trimmed, answer.split("\n")) if line]
    start = next((index for index, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    countries = [_ascii(line) for line in lines[start:]]
    return len(countries) >= _NUM_COUNTRIES and all(one >= other for one, other in pairwise(countries))


def _ascii(text: str) -> str:
    """The text without accents, and without other characters that are not ASCII."""
    # Each character alone, because normalisation sorts a long run of accents in quadratic time.
    plain = text if text.isascii() else "".join(unicodedata.normalize("NFKD", character) for character in text)
    return plain.encode("ascii", "ignore").decode()


def _tells_alphabet(answer: str) -> bool:
    """The 26 sentences start with the letters of the alphabet in order."""
    starts = [sentence.lstrip(punctuation + whitespace)[:1].lower() for sentence in sentences(answer)]
    return starts == list(ascii_lowercase)


def _lists_capitals(answer: str) -> bool:
    capitals = [capital.strip() for capital in _ascii(answer).split(",")]
    return [capital for capital in capitals if capital] == listed("european_capitals")


def _has_cities(answer: str) -> bool:
    table = _rows(answer)
    return len(table) == 8 and table[0] == _CITY_COLUMNS and all(len(row) == 5 for row in table)


def _has_quoted_mark(answer: str) -> bool:
    """Rows are checked up to the first row with a quoted field that has a special character."""
    table = _rows_with_quotes(answer, ",")
    if not _STOCK_HEADER.fullmatch(_first_line(answer)) or len(table) != 15:
        return False
    for row in table[1:]:
        if len(row) != 5 or any(map(_quotes_mark, row)):
            return len(row) == 5
    return False


def _quotes_mark(field: str) -> bool:
    if not field.startswith('"'):
        return False
    quoted = field[1:].partition("\n")[0].rpartition('"')[0]
    return bool(_SPECIAL.search(quoted))


def _quotes_each_field(answer: str) -> bool:
    table = _rows_with_quotes(answer, "\t")
    fields = [field.strip() for row in table for field in row]
    return (
        bool(_GRADES_HEADER.fullmatch(_first_line(answer)))
        and [len(row) for row in table] == [5] * 4
        and all(field.startswith('"') and field.endswith('"') for field in fields)
    )


def _first_line(answer: str) -> str:
    return answer.partition("\n")[0].strip()


def _rows_with_quotes(answer: str, delimiter: str) -> list[list[str]]:
    """The rows, including the quotes around fields."""
    return _rows(answer.replace('"', '"""'), delimiter)


def _rows(answer: str, delimiter: str = ",") -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(answer), delimiter=delimiter))
    except csv.Error:
        return []


def _lists_dates(answer: str) -> bool:
    return all(map(_is_date, answer.split(",")))


def _is_date(text: str) -> bool:
    """Whether a text is a date during the life of Napoleon."""
    date = _DATE.fullmatch(text.strip())
    if date is None:
        return False
    year, month, day = map(int, date.groups())
    return 1769 <= year <= 1821 and 1 <= month <= 12 and 1 <= day <= _SHORT_MONTHS.get(month, 31)


def _changes_first_word(answer: str, prompt_to_repeat: str) -> bool:
    terms, asked = answer.split(), prompt_to_repeat.split()
    return terms != asked and terms[1:] == asked[1:]


def _is_span(answer: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The words from `n_start` to `n_end`. Both count from 0 and are included."""
    span = prompt_to_repeat.split()[n_start : n_end + 1]
    return answer.strip().lower() == " ".join(span).lower()


TABLE = (
    constraint("custom:multiples", _lists_multiples, wordless=True),
    constraint("custom:mcq_count_length", _asks_four_questions),
    constraint("custom:reverse_newline", _lists_countries),
    constraint("custom:word_reverse", lambda answer: "bald eagle" in " ".join(reversed(plain_words(answer)))),
    constraint("custom:character_reverse", lambda answer: "elgae dlab" in answer.lower()),
    constraint("custom:sentence_alphabet", _tells_alphabet),
    constraint("custom:european_capitals_sort", _lists_capitals),
    constraint("custom:csv_city", _has_cities),
    constraint("custom:csv_special_character", _has_quoted_mark),
    constraint("custom:csv_quotes", _quotes_each_field),
    constraint("custom:date_format_list", _lists_dates, wordless=True),
    constraint("repeat:repeat_change", _changes_first_word, prompt_to_repeat=text),
    constraint("repeat:repeat_simple", lambda answer: answer.strip().lower() == _SENTENCE),
    constraint("repeat:repeat_span", _is_span, wordless=True, prompt_to_repeat=text, n_start=whole, n_end=whole),
)
