"""Verifiers of the user's own, by the name that rows give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from olmorl import config
from olmorl.config import Verifiers
from olmorl.deploy.preflight.recipe_checks import check_names, check_own_code
from olmorl.errors import ConfigError, DeadlinePassed
from olmorl.messages import Completion, Prompt
from olmorl.verifiers.scorer import VerifierScorer

Make = Callable[..., Prompt]
MakeCompletion = Callable[..., Completion]
CODE = """
import os, time


def letters(answer, label):
    if label["hangs"]:
        time.sleep(60)
    if answer == "bad":
        raise KeyError("no such thing")
    if answer == "listed":
        return [0.5] * 3
    return min(len(answer) / label["wanted"], 1.0) if answer != "over" else 1.5
"""


@pytest.fixture
def place(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path}/mine.py:letters"


async def test_rows_name_it_and_others_are_not_scored_by_it(
    place: str, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    scorer = VerifierScorer(Verifiers(own={"letters": place}, timeout_s=1.0))
    await scorer.start()
    try:
        label: dict[str, Any] = {"wanted": 4, "hangs": False}

        async def verdict(text: str, dataset: str, label: Any) -> Any:
            prompt = make_prompt(datasets=(dataset,), truths=(label,))
            return (await scorer.verify(prompt, make_completion(text=text)))[dataset]

        assert (await verdict("<think>long</think>ab", "letters", label)).reward == 0.5
        assert (await verdict("7", "math", "7")).reward == 1.0
        raised = await verdict("bad", "letters", label)
        assert raised.reward is None and raised.detail == "KeyError: 'no such thing'"
        listed = await verdict("listed", "letters", label)
        assert listed.reward is None and "one reward an answer" in listed.detail
        assert (await verdict("over", "letters", label)).error_kind == "out_of_range"
        assert (await verdict("ab", "letters", label | {"hangs": True})).error_kind == "timeout", "never a 0"
        assert (await verdict(" ", "letters", label)).reward == 0.0
        assert "did you mean 'letters'?" in str(await scorer.problem("leters", "7"))
    finally:
        await scorer.stop()


async def test_what_does_not_import_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import nothing_like_it")
    own = {"mine": f"{tmp_path}/broken.py:f"}
    with pytest.raises(DeadlinePassed, match=r"verifiers\.own = .*broken\.py does not import: ModuleNotFoundError"):
        await VerifierScorer(Verifiers(own=own)).start()
    with pytest.raises(ConfigError, match=r"verifiers\.own = .*does not import"):
        check_own_code(config.build({"verifiers": {"own": own}}))


@pytest.mark.parametrize(
    ("verifiers", "says"),
    [
        ({"own": {"math": "m:f"}}, "'math' cannot be a name, because a built-in verifier has it"),
        ({"own": {"Mine": "m:f"}}, "'Mine' cannot be a name, because it has other signs"),
        ({"own": {"mine": "m:f"}, "functions": ["n:mine"]}, r"verifiers\.functions both name 'mine'"),
        ({"own": {"mine": "m:f"}, "weights": {"mien": 2.0}}, r"did you mean 'mine'\?"),
    ],
)
def test_names_that_cannot_be_are_refused(verifiers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_names(config.build({"verifiers": verifiers}))


async def test_an_error_of_a_verifier_in_the_actor_is_a_verdict(
    monkeypatch: pytest.MonkeyPatch, make_prompt: Make, make_completion: MakeCompletion
) -> None:
    scorer = VerifierScorer(Verifiers())

    async def broken(*given: Any) -> Any:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(scorer._verifiers["string_match"], "verify_row", broken)
    prompt = make_prompt(datasets=("string_match",), truths=("7",))
    verdict = (await scorer.verify(prompt, make_completion(text="7")))["string_match"]
    assert (verdict.reward, verdict.error_kind, verdict.detail) == (None, "raised", "RuntimeError: a fault of ours")
