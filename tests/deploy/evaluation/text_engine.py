"""An engine whose answers are texts of a test, a model folder for it, and `olmorl-eval` with it as a program.

python text_engine.py LOG EVALUATE|DATA ARGUMENT ...    every finished answer appends a line to LOG
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from olmorl.deploy import wiring
from olmorl.deploy.demo.tiny_model import build_tokenizer
from olmorl.messages import Completion, Span, TokenIds, Version
from olmorl.ports import Sampling

Reply = Callable[[str, str, Sampling], str]
"""The answer to a prompt, by the model's path, the prompt and the sampling."""


def model_folder(path: Path) -> str:
    """A folder with a tokenizer of bytes, and no weights."""
    build_tokenizer(4096).save_pretrained(path)
    (path / "config.json").write_text("{}")
    return str(path)


class TextEngine:
    """Answers with texts, a few milliseconds each. A token is a byte; the limit of tokens cuts an answer off."""

    version = Version(0, 0)

    def __init__(self, model: str, reply: Reply, log: Path | None = None, pause_s: float = 0.0) -> None:
        self._model = model
        self._tokenizer = build_tokenizer(4096)
        self._reply = reply
        self._log = log
        self._pause_s = pause_s
        self.answered = 0

    async def start(self, weights: None) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def generate(
        self, request_id: str, prompt: TokenIds, sampling: Sampling, priority: int = 0, salt: str | None = None
    ) -> Completion:
        await asyncio.sleep(self._pause_s)
        asked = self._tokenizer.decode(prompt.tolist())
        whole = self._reply(self._model, asked, sampling)
        tokens = self._tokenizer(whole, add_special_tokens=False)["input_ids"][: sampling.max_tokens]
        self.answered += 1
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{self._model} {asked!r} {sampling.seed}\n")
        return Completion(
            index=0,
            token_ids=np.array(tokens, np.int32),
            logprobs=np.zeros(len(tokens), np.float32),
            spans=(Span(Version(0, 0), 0, len(tokens)),),
            finish_reason="length" if len(tokens) == sampling.max_tokens else "stop",
            text=self._tokenizer.decode(tokens),
        )


def sum_or_near(model: str, asked: str, sampling: Sampling) -> str:
    """The sum in the question, or a number near it: by the seed, so that it can be repeated."""
    text = asked.split("What is ")[1].split("?")[0]
    return f"It is {sum(map(int, text.split('+'))) + (sampling.seed or 0) % 3}."


def answers_after_kills(words: Sequence[str], log: Path, part: Path, every: int) -> Counter[str]:
    """How often each answer was made by a command that is killed three times, after so many answers, and then ends.

    `part` is where the command keeps what was answered. It is killed between two answers: one that the engine has just
    noted, and has not given back yet, is not finished.
    """
    log.touch()
    command = [sys.executable, __file__, str(log), *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    for number in range(1, 4):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment) as process:
            until = time.monotonic() + 120
            while True:
                assert time.monotonic() < until, "answers are not kept when they are finished"
                process.send_signal(signal.SIGSTOP)
                assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), "it ended before it was killed"
                made = log.read_text().count("\n")
                if made >= every * number and made == _kept(part):
                    break
                process.send_signal(signal.SIGCONT)
                time.sleep(0.01)
            process.kill()
    assert subprocess.run(command, check=False, capture_output=True, env=environment).returncode == 0
    return Counter(log.read_text().splitlines())


def _kept(part: Path) -> int:
    """The number of answers in whole lines."""
    lines = part.read_bytes().rpartition(b"\n")[0].splitlines() if part.exists() else []
    return len({(row["row"], row["sample"]) for row in map(json.loads, lines)})


if __name__ == "__main__":
    log = Path(sys.argv[1])
    wiring.engine = lambda settings, core, name="", **_: TextEngine(settings.model.path, sum_or_near, log, 0.02)  # type: ignore[assignment]
    if sys.argv[2] == "EVALUATE":
        from olmorl.deploy.evaluation.cli import main
    else:
        from olmorl.deploy.prepare_data import main
    sys.exit(main(sys.argv[3:]))
