"""The table of a run, and its disagreements: family by family, the shortest first."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from rich.table import Table

from tests.verifiers.fuzz.judge import Judged
from tests.verifiers.fuzz.opinions import Opinion

WRONG, UNPAID, ERROR = "paid though wrong", "right and not paid", "error"
OPINIONS = ("math-verify", "SymPy")


def counts(judged: Iterable[Judged]) -> dict[str, Counter[str]]:
    """Outcomes by family; `pairs` and `equal` count all pairs and the equal ones."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for one in judged:
        found[one.pair.family].update((one.outcome, "pairs", *(["equal"] if one.pair.truth else [])))
    return dict(found)


def disagreements(judged: Iterable[Judged]) -> list[Judged]:
    """By outcome, family and rewriting; the shortest pairs first."""
    return sorted(
        (one for one in judged if one.outcome != "agrees"),
        key=lambda one: (one.outcome, *one.pair[:2], len(one.pair.label) + len(one.pair.answer)),
    )


def line(one: Judged) -> str:
    """One pair, and what was said about it."""
    pair, said = one.pair, one.error or f"{one.reward} by {one.method}"
    texts = (repr(text) if "\n" in text else text for text in (pair.label, pair.answer))
    return " | ".join((*texts, f"truth {pair.truth}", said))


def grouped(judged: Sequence[Judged], examples: int = 3) -> str:
    """The disagreements as text: a heading for each group, and some of its pairs."""
    groups: dict[tuple[str, str, str], list[Judged]] = defaultdict(list)
    for one in disagreements(judged):
        groups[one.outcome, one.pair.family, one.pair.rewriting].append(one)
    return "".join(
        f"\n{outcome}: {family}, {rewriting} ({len(found)})\n" + "".join(f"  {line(one)}\n" for one in found[:examples])
        for (outcome, family, rewriting), found in groups.items()
    )


def table(judged: Sequence[Judged], opinions: Sequence[Opinion] = ()) -> Table:
    """One row for each family, and one for all; opinions are wrong verdicts of the others on the same pairs."""
    title = (
        "family",
        "pairs",
        WRONG,
        UNPAID,
        ERROR,
        "pairs/s",
        *(f"{name}: wrong/unpaid" for name in OPINIONS if opinions),
    )
    shown = Table(*title)
    seconds: Counter[str] = Counter()
    for one in judged:
        seconds[one.pair.family] += one.seconds  # type: ignore[assignment]
    others = _others(opinions)
    families = counts(judged)
    families["all"] = sum(families.values(), Counter())
    seconds["all"] = sum(seconds.values())
    others["all"] = sum(others.values(), Counter())
    for family, found in families.items():
        rate = found["pairs"] / max(seconds[family], 1e-9)
        cells = [found["pairs"], found[WRONG], found[UNPAID], found[ERROR], f"{rate:.0f}"]
        cells += [f"{others[family][name, True]}/{others[family][name, False]}" for name in OPINIONS if opinions]
        shown.add_row(family, *map(str, cells))
    return shown


def _others(opinions: Sequence[Opinion]) -> dict[str, Counter[tuple[str, bool]]]:
    """How often another checker pays a wrong answer (True) or does not pay a right one (False)."""
    found: dict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for opinion in opinions:
        if bool(opinion.equal) != opinion.pair.truth:
            found[opinion.pair.family][opinion.name, bool(opinion.equal)] += 1
    return found
