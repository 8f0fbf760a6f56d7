"""Answers that are made to hang, crash or fool the checker: each has a verdict of 0 by its deadline."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest

from olmorl.verifiers.math.math_verifier import WARM, MathVerifier
from olmorl.verifiers.pool.pool import Pool

DEADLINE_S = 2.0
MEMORY_MIB = 256


def nested(opening: str, closing: str, depth: int, inside: str = "1") -> str:
    return opening * depth + inside + closing * depth


HOSTILE = {
    "towers": [
        "9^{9^{9}}", "9^{9^{9^{9}}}", "10^{10^{10}}", nested("2^{", "}", 30), nested("2^{", "}", 500), "9^" * 900 + "9",
        "9" * 1000 + "^{" + "9" * 1000 + "}", r"e^{e^{e^{e^{e^{e}}}}}", r"x^{x^{x^{x^{x}}}}", r"(2^{100000}+1)^{1000}",
        r"\sqrt[1000000000]{2}", r"2^{2^{40}}",
    ],
    "factorials": [
        "(10^{10^{10}})!", "99999999!", "1000000!", "((10!)!)!", "9" + "!" * 500, "x!" * 500, "(-5)!", "(10^{30})!",
        r"\binom{10^{9}}{10^{8}}", r"\binom{10^{18}}{5000}", r"\binom{2^{99}}{2^{98}}",
    ],
    "depth": [
        nested("(", ")", 900), nested("{", "}", 900), nested(r"\frac{1}{", "}", 200), nested(r"\sqrt{", "}", 300, "2"),
        nested(r"\sin(", ")", 300, "x"), nested(r"\text{", "}", 300), nested("|", "|", 600), nested(r"\{", r"\}", 600),
        nested(r"\{\pm", r"\}", 60), nested(r"\begin{pmatrix}", r"\end{pmatrix}", 60), "[" * 1500, "-" * 2000 + "1",
        "1/" * 1000 + "2", "5" + "%" * 1900,
    ],
    "length": [
        "1" * 2000, "1." + "3" * 2000, "+".join("x" * 900), ",".join("12" * 600), "x<1 or " * 280 + "x<2",
        r"(0,1)\cup" * 200 + "(0,1)", "1 000 " * 300, r"\begin{pmatrix}" + "&".join("1" * 900) + r"\end{pmatrix}",
        "a" * 2000, r"\pm" * 600 + "1", r"\frac" * 400 + "1", "x=" * 900 + "1",
    ],
    "magnitudes": [
        "1e999999999", "1e-999999999", "1e" + "9" * 500, r"\sin(10^{10^{10}})", r"\log_{2}(9^{9^{9}})", "1/0", "0^0",
        r"\frac{0}{0}", r"\log 0", r"\infty-\infty", r"\infty^{\infty}", "nan", "inf", "i^{i^{i}}",
    ],
    "algebra": [
        "(x+1)^{100000}", "(x+y+z)^{5000}-1", r"\sum_{k=1}^{10^{12}} k!", r"\prod_{k=1}^{10^{9}} k",
        r"\int_0^1 x^{x^{x}} dx", r"\gcd(10^{50000}, 3^{90000})", r"\lim_{x\to" * 90,
    ],
    "code": [
        "__import__('os').system('touch owned')", "exec('1')", "lambda: 0", "().__class__.__bases__", "{0.__class__}",
        "%s%n%x", "'; DROP TABLE answers; --", "${jndi:ldap://x}",
    ],
    "bytes": [
        "\x00\x01\x02\x03", "\x02" * 900 + "\x03" * 900, "\x04\x05" * 500, "\ufffd" * 1000, "𝟡^𝟡", "²" * 999,
        "½" * 200, "\\" * 2000, "^" * 1000, "_" * 1000, "$" * 2001, "°" * 1500, "中文" * 900,
    ],
}  # fmt: skip
MEGABYTES = [
    r"\boxed{" + "9^" * 500_000 + "9}", r"\boxed{" * 140_000, "the answer is " * 70_000, "#### " * 200_000,
    "9" * 1_000_000, r"\boxed{\frac{" + "1" * 1_000_000 + "}{2}}", "(" * 1_000_000, "x = " * 250_000,
]  # fmt: skip


def test_there_are_enough_of_them() -> None:
    assert sum(map(len, HOSTILE.values())) + len(MEGABYTES) >= 70


@pytest.mark.parametrize("label", ["42", r"\sqrt{2}", r"x^2+1", r"\{1,2\}", r"(0,\infty)"])
async def test_hostile_answers_have_a_verdict_by_their_deadline_and_the_pool_lives(label: str) -> None:
    pool = Pool(2, DEADLINE_S, MEMORY_MIB, preload=(WARM,))
    await pool.start()
    rule = MathVerifier(pool)
    answers = [answer for kind in HOSTILE.values() for answer in kind]
    texts = [rf"\boxed{{{answer}}}" for answer in answers] + MEGABYTES
    try:
        started = time.monotonic()
        verdicts = await asyncio.gather(*(rule.verify(text, label) for text in texts))
        assert time.monotonic() - started < DEADLINE_S * len(texts) / 2
        assert [
            (text[:60], v) for text, v in zip(texts, verdicts, strict=True) if v.reward != 0.0 or v.error_kind
        ] == []
        assert (pool.counters.kills, pool.counters.outcomes["raised"]) == (0, 0)
        assert (await rule.verify(r"\boxed{6\sqrt{49}}", "42")).reward == 1.0
        memory = [worker.memory_info().rss for worker in psutil.Process().children(recursive=True)]
        assert max(memory) < MEMORY_MIB << 20
    finally:
        await pool.stop()
