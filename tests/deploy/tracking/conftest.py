"""A fake tracker that is installed for one test, a receiver of traces, and draws that ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from olmorl.learner.storage.ledger_state import Outcome
from olmorl.learner.storage.rollout_record import Ended
from olmorl.messages import Completion, Failure, Group, Prompt, Span, Verdict, Version
from tests.deploy.tracking.otlp_receiver import OtlpReceiver


@pytest.fixture
def fake_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a module `trackio` with this body for `log` on the path of all child processes."""

    def install(log: str) -> None:
        folder = tmp_path / "fake"
        folder.mkdir()
        (folder / "trackio.py").write_text(
            "import os, pathlib, time\n"
            "def init(**settings): pass\n"
            "def finish(): pass\n"
            "class Table:\n    def __init__(self, columns, data): self.data = data\n"
            f"def log(metrics, step):\n    {log}\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return install


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A collector of traces on the loopback address."""
    with OtlpReceiver() as made:
        yield made


@pytest.fixture
def ended() -> Callable[..., Ended]:
    """Makes a draw of two answers that was drawn at 90, leased at 100 and committed at 104."""

    def make(draw: int = 7, outcome: Outcome = Outcome.TRAINED, step: int | None = 6, cause: str = "") -> Ended:
        prompt = Prompt(
            draw_id=draw,
            attempt=2,
            row="math.jsonl:1",
            messages="6 x 7?",
            token_ids=np.zeros(2, np.int32),
            datasets=("math",),
            ground_truths=("42",),
            queued_at=90.0,
            group_size=2,
            min_version=Version(1, 2),
        )
        if outcome is Outcome.FAILED:
            return Ended(Failure(prompt=prompt, cause=cause, actor="actor-3"), outcome, None, cause)
        first = _answer(0, 101.5, (Span(Version(1, 2), 0, 2), Span(Version(1, 4), 2, 3)))
        second = _answer(1, 103.0, (Span(Version(1, 5), 0, 40),))
        group = Group(prompt=prompt, completions=(first, second), actor="actor-3", started_at=100.0, finished_at=104.0)
        return Ended(group, outcome, step, cause)

    return make


def _answer(index: int, generated_at: float, spans: tuple[Span, ...]) -> Completion:
    num_tokens = spans[-1].end
    return Completion(
        index=index,
        token_ids=np.zeros(num_tokens, np.int32),
        logprobs=np.zeros(num_tokens, np.float32),
        spans=spans,
        finish_reason="stop",
        text="42",
        verdicts={"math": Verdict(reward=1.0, seconds=0.25)},
        reward=1.0,
        generated_at=generated_at,
    )
