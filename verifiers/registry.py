"""All verifiers by name: the built-in ones, and those of the recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from olmorl.config import Verifiers
from olmorl.errors import ConfigError
from olmorl.verifiers.code import program_verifier as code
from olmorl.verifiers.format_rewards import Length, Overlong, ReasoningSteps, StrictFormat, TagCount
from olmorl.verifiers.instructions import instruction_verifier as instructions
from olmorl.verifiers.judge import registry as judge
from olmorl.verifiers.math import math_verifier
from olmorl.verifiers.math.numbers import Policy
from olmorl.verifiers.own_verifier import OwnVerifier
from olmorl.verifiers.pool.pool import Pool
from olmorl.verifiers.text.text_verifiers import Finished, MultipleChoice, RegexMatch, StringMatch, TokenF1
from olmorl.verifiers.verifier import AnswerVerifier, Verifier


def _math(settings: Verifiers, pool: Pool) -> AnswerVerifier:
    strict = settings.math_strict
    policy = Policy(
        strict_percent="percent" in strict,
        units="strict" if "units" in strict else "lenient",
        exact_case="case" in strict,
        tolerance=settings.math_tolerance,
        ordered="order" in strict,
    )
    return math_verifier.MathVerifier(pool, policy, "last_number" not in strict)


def _instructions(settings: Verifiers, pool: Pool) -> AnswerVerifier:
    return instructions.InstructionVerifier(pool, settings.ifeval_reward == "fraction")


_MAKERS: dict[str, Callable[[Verifiers, Pool], Verifier]] = {
    "math": _math,
    "gsm8k": _math,
    "string_match": lambda settings, pool: StringMatch(),
    "f1": lambda settings, pool: TokenF1(),
    "multiple_choice": lambda settings, pool: MultipleChoice(),
    "regex": lambda settings, pool: RegexMatch(pool),
    "ifeval": _instructions,
    "ifeval_old": _instructions,
    "ifbench": _instructions,
    "instruction_following": _instructions,
    "format": lambda settings, pool: StrictFormat(*settings.think_tags),
    "tag_count": lambda settings, pool: TagCount(*settings.think_tags),
    "reasoning_steps": lambda settings, pool: ReasoningSteps(),
    "overlong": lambda settings, pool: Overlong(),
    "max_length": lambda settings, pool: Length(may_be_shorter=False),
    "up_to_max_length": lambda settings, pool: Length(may_be_shorter=True),
    "re_search": lambda settings, pool: Finished(),
}
NAMES = (*_MAKERS, *code.NAMES, *judge.NAMES)
"""The built-in ones."""
ELSEWHERE = {
    "passthrough": "in open-instruct a tool environment gives the reward of these rows; give a reward function in "
    "verifiers.functions, which scores them alone",
    "rewriter": "no rule is known for these rows; name the verifier that shall score them in the column dataset, such "
    "as general-quality_ref with a judge, or give a reward function in verifiers.functions and leave out the column",
    "rubric": "in open-instruct a judge grades these rows by a list of criteria; give a reward function in "
    "verifiers.functions and leave out the column dataset, or use general-quality_ref with one reference",
}
"""Names of open-instruct's data without a verifier here, and what to do."""
_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
"""Of a name: rows may write it in any case, so it has none."""
WARM = (math_verifier.WARM, instructions.WARM)
"""The functions that the pool of these verifiers preloads."""


def names(settings: Verifiers) -> list[str]:
    """The names that rows may use. Raises ConfigError for a name in `verifiers.own` that is built in."""
    for name in settings.own:
        if name in NAMES or not (_SIGNS.issuperset(name) and name[:1].isalpha()):
            why = "a built-in verifier has it" if name in NAMES else "it has other signs than a-z, 0-9, _ and -"
            raise ConfigError(f"verifiers.own: {name!r} cannot be a name, because {why}: choose another one")
    return [*settings.own, *NAMES]


def all_verifiers(settings: Verifiers, pool: Pool) -> dict[str, Verifier]:
    """Every verifier by name. They share one pool. Raises ConfigError for an unusable template of the judge."""
    built_in = {name: make(settings, pool) for name, make in _MAKERS.items()}
    own: dict[str, Verifier] = {name: OwnVerifier(pool, place) for name, place in settings.own.items()}
    return own | built_in | code.code_verifiers(settings, pool) | judge.model_verifiers(settings)


def numbered(names: Sequence[str]) -> list[str]:
    """The names as keys: the second use of a name is called `name#2`."""
    times: Counter[str] = Counter()
    keys = []
    for name in names:
        times[name] += 1
        keys.append(name if times[name] == 1 else f"{name}#{times[name]}")
    return keys


async def close(verifiers: Mapping[str, Verifier]) -> None:
    """Close the verifiers one after another, because some share a connection."""
    for verifier in verifiers.values():
        await verifier.close()


def unknown(name: str, known: Sequence[str] = NAMES) -> str:
    """The message for a name that no verifier has."""
    if name in ELSEWHERE:
        return f"no verifier here is named {name!r}: {ELSEWHERE[name]}"
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"no verifier is named {name!r}; {hint}known: {', '.join(known)}"
