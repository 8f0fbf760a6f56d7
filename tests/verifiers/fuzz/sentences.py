"""Families of whole completions, as models write them: reasoning with other numbers, then an answer in a sentence."""

from __future__ import annotations

from random import Random

from tests.verifiers.fuzz.expr import lift, over, root, var
from tests.verifiers.fuzz.latex import show
from tests.verifiers.fuzz.pairs import Families, Made

NAMES = ("Kylar", "Natalia", "James", "Weng", "Betty", "The farmer")
THINGS = (
    "apples",
    "pounds of apples",
    "marbles",
    "pages",
    "students",
    "clips",
    "cups of flour",
    "meters",
    "hours",
    "eggs",
)
PERIODS = ("day", "week", "month", "year")


def _steps(rng: Random) -> str:
    """Reasoning that ends before the answer."""
    a, b = rng.randint(2, 40), rng.randint(2, 40)
    return rng.choice(
        (
            "",
            f"First, {a} + {b} = {a + b}.\n",
            f"Each of the {a} boxes holds {b}, so there are {a} * {b} = {a * b} in total.\n\n",
            f"1. There are {a} at first.\n2. Then {b} more come.\n",
            f"We have <<{a}*{b}={a * b}>>{a * b}.\n",
        )
    )


def _finals(rng: Random, said: str, other: int) -> tuple[tuple[str, str], ...]:
    """Ways to say a count at the end of a completion, some of them with another number."""
    thing, period, name = rng.choice(THINGS), rng.choice(PERIODS), rng.choice(NAMES)
    return (
        ("box", rf"So the answer is $\boxed{{{said}}}$."),
        ("box with words", rf"\boxed{{{said}\text{{ {thing}}}}}"),
        ("box, then a check", rf"Thus $\boxed{{{said}}}$. We check that {other} + {other} = {2 * other}."),
        ("hashes", f"#### {said}"),
        ("hashes with words", f"#### {said} {thing}"),
        ("the answer is", f"The answer is {said}."),
        ("the answer is, with words", f"The answer is {said} {thing}."),
        ("the answer is, with a period", f"The answer is {said} {thing} a {period}."),
        ("the final answer is", f"The final answer is ${said}$."),
        ("bold", f"**Answer:** {said} {thing}"),
        ("bold with a remark", f"**Answer:** {said} {thing} ({other} per child)"),
        ("with a reason", f"The answer is {said} because {other} times {other} is {other * other}."),
        ("tag", f"<answer>{said}</answer>"),
        ("tag with a sentence", f"<answer>The total is {said}.</answer>"),
        ("sentence", f"Therefore, {name} has {said} {thing}."),
        ("sentence about a period", f"So {name} needs {said} {thing} per {period}."),
        ("marked sentence", f"Answer: {name} has {said} {thing} in total."),
        ("corrected", f"The answer is {other}. Wait, that is wrong. The answer is {said}."),
        ("heading", f"## Final Answer\n\n{said}"),
        ("remark", f"The answer is {said} (because {other} + {other} = {2 * other})."),
        ("rounding", f"#### {said} to the nearest integer"),
        ("hashes with a period", f"#### {said} {thing} per {period}"),
        ("tag with words", f"<answer>{said} {thing}</answer>"),
        ("tag with a sentence about somebody", f"<answer>{name} has {said} {thing}.</answer>"),
        ("so", f"So, {name} has {said} {thing} left."),
        ("so the answer", f"So the answer is: {said} {thing}"),
        ("the total", f"The total number of {thing} is {said}."),
        ("the total is", f"Final answer: The total is {said} {thing}."),
        ("there are", f"Answer: There are {said} {thing}."),
        ("bold number", f"{name} has **{said}** {thing}."),
        ("bold sentence", f"**{name} has {said} {thing}.**"),
        ("equality", f"{other} + ... = {said}"),
        ("box with a sentence", rf"\boxed{{\text{{{name} has }}{said}\text{{ {thing}}}}}"),
        ("box of text", rf"\boxed{{\text{{{said} {thing}}}}}"),
        ("answer and check", f"The answer is {said}.\n\nCheck: {other} * 2 = {other * 2}."),
        ("x is", f"Therefore, $x = {said}$."),
        ("in total", f"The answer is {said} {thing} in total."),
        ("altogether", f"Altogether {name} sold {said} {thing}."),
        ("would", f"Therefore, the answer would be {said} {thing}."),
        ("the correct answer", f"The correct answer is {said}."),
    )


def word_problems(rng: Random, truth: bool) -> Made:
    """A count, as models answer GSM8K."""
    number = rng.randint(10, 10 ** rng.choice((2, 3, 4, 6)))
    said = number if truth else rng.choice((number + 1, number - 1, number * 10, number + 100))
    text = f"{said:,}" if said >= 1000 and rng.random() < 0.5 else str(said)
    other = rng.randint(2, 9) if truth or rng.random() < 0.3 else number
    name, final = rng.choice(_finals(rng, text, other))
    label = str(number) if rng.random() < 0.8 else f"{_steps(rng)}So there are {number}.\n#### {number:,}"
    return Made(name, label, _steps(rng) + final, sentence=True)


def prices(rng: Random, truth: bool) -> Made:
    number = rng.randint(2, 9000)
    said = number if truth else rng.choice((number + 1, number * 10, number + 50))
    price = f"{said:,}" if rng.random() < 0.5 else str(said)
    name = rng.choice(NAMES)
    way, final = rng.choice(
        (
            ("hashes", f"#### ${price}"),
            ("box", rf"\boxed{{\${price}}}"),
            ("the answer is", f"The answer is ${price}."),
            ("the answer is, in dollars", f"The answer is {price} dollars."),
            ("sentence", f"{name} needs to pay ${price} for them."),
            ("a period", f"So {name} earns ${price} a {rng.choice(PERIODS)}."),
            ("marked sentence", f"Answer: {name} needs to pay ${price} for them."),
            ("cents written", f"The answer is ${price}.00."),
        )
    )
    return Made(way, str(number), _steps(rng) + final, sentence=True)


def formulas(rng: Random, truth: bool) -> Made:
    """A formula, as models answer MATH."""
    a, b, n, x = rng.randint(2, 20), rng.randint(2, 20), rng.choice((2, 3, 5, 7)), var("x")
    label, right, wrong = rng.choice(
        (
            (over(a, a + b), over(2 * a, 2 * (a + b)), over(a + 1, a + b)),
            (a * root(n), root(a * a * n), (a + 1) * root(n)),
            (a * x + b, b + a * x, a * x - b),
            ((x + a) * (x - b), (x - b) * (a + x), (x - a) * (x + b)) if a != b else (x + a, a + x, x - a),
            (lift(-a), lift(-a), lift(a)),
        )
    )
    label_text, said = show(rng, label, right if truth else wrong, plain=True)
    way, final = rng.choice(
        (
            ("box", rf"Thus the answer is $\boxed{{{said}}}$."),
            ("display box", rf"\[\boxed{{{said}}}\]"),
            ("the answer is", f"The answer is ${said}$."),
            ("the final answer is", f"Final Answer: The final answer is ${said}$. I hope it is correct."),
            ("parentheses", rf"The answer is \({said}\)."),
            ("two boxes", rf"At first \boxed{{0}}, but then we see that it is \boxed{{{said}}}."),
            ("display", f"The answer is\n$$\n{said}\n$$"),
            ("bold", f"**Final Answer:** ${said}$"),
        )
    )
    return Made(way, label_text, _steps(rng) + final, sentence=True)


def wrong_then_other_number(rng: Random, truth: bool) -> Made:
    """The label's number stands in the completion, but only as the answer where the pair is equal."""
    number, other = rng.sample(range(10, 5000), 2)
    said, elsewhere = (number, other) if truth else (other, number)
    way, text = rng.choice(
        (
            ("before", f"At first there are {elsewhere}. The answer is {said}."),
            ("box before", rf"It is \boxed{{{elsewhere}}}. No: \boxed{{{said}}}."),
            ("in a box's sentence", rf"Of {elsewhere} we keep $\boxed{{{said}}}$."),
            ("after the box", rf"$\boxed{{{said}}}$ out of {elsewhere} in all."),
            ("hashes", f"{elsewhere} - 3 = {elsewhere - 3}\n#### {said}"),
            ("tag", f"<answer>{said}</answer>"),
            ("thousands", f"The total was {elsewhere:,}. The final answer is {said:,}."),
            ("last number", f"From {elsewhere} we get to {said}"),
        )
    )
    return Made(way, str(number), text, sentence=True)


def percent_and_odds(rng: Random, truth: bool) -> Made:
    number = rng.randint(2, 95)
    said = number if truth else number + rng.choice((1, 3, -1))
    group = rng.choice(("the class", "the students", "the price", "her time"))
    way, final = rng.choice(
        (
            ("share", f"The answer is {said}% of {group}."),
            ("box", rf"\boxed{{{said}\%}}"),
            ("probability", f"The probability is {said / 100:.2f}."),
            ("probability without zero", f"The answer is {said / 100:.2f}.".replace("0.", ".", 1)),
            ("sentence", f"So {said}% of {group} is left."),
        )
    )
    label = f"{number / 100:.2f}" if "probability" in way else rng.choice((f"{number}%", rf"{number}\%"))
    return Made(way, label, _steps(rng) + final, sentence=True)


FAMILIES: Families = {
    "word problems": word_problems,
    "prices in sentences": prices,
    "formulas in sentences": formulas,
    "several numbers": wrong_then_other_number,
    "percents in sentences": percent_and_odds,
}
