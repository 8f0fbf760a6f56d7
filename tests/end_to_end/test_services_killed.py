"""A run whose teacher or reference, a real vLLM server, or whose reward model is killed and comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from olmorl.learner.storage import rollout_log
from olmorl.learner.storage.ledger import read_ledger
from tests.end_to_end.test_roles_killed import MAX_LAG, SIZES, STEPS

TIMEOUT_S = 5.0
"""Deadline of a call: a group fails after ten times as long."""
START_S = 240.0
TEACHER = "[distillation]\nwith_rewards = true\n[distillation.teachers.big]\n"
REFERENCE = "[objective]\nkl_beta = 0.01\n[objective.kl_reference]\n"
REWARD_MODEL = "[verifiers.reward_model]\n"
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(900)]


def teacher(policy: Path, port: int) -> list[str]:
    module = ["vllm.entrypoints.openai.api_server", "--model", str(policy), "--host", "127.0.0.1", "--port", str(port)]
    return [*module, "--dtype", "float32", "--enforce-eager", "--max-model-len", "128"]


def reward_model(policy: Path, port: int) -> list[str]:
    return ["olmorl.verifiers.judge.server", "--port", str(port)]


@dataclass
class Server:
    """A server on a port of its own. A kill ends it and its children without warning."""

    log: Path
    process: subprocess.Popen[bytes] | None = None
    port: int = 0

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, module: list[str]) -> None:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        with self.log.open("a") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module], stdout=file, stderr=file, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while not self.answers():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)

    def answers(self) -> bool:
        """Whether it answers a request, which may be one that it does not know. The first one of an engine is slow."""
        assert self.process is not None and self.process.poll() is None, self.log.read_text()
        body = json.dumps({"prompt": [1] * 100, "max_tokens": 1, "prompt_logprobs": 0}).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=START_S):
                return True
        except urllib.error.HTTPError as error:
            assert error.code == HTTPStatus.NOT_FOUND, error
            return True
        except OSError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(60)
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "server.log")
    yield server
    server.kill()


@pytest.mark.parametrize(
    ("section", "module", "name"),
    [
        (TEACHER, teacher, "teacher"),
        (REFERENCE, teacher, "reference"),
        (REWARD_MODEL, reward_model, "reward_model"),
    ],
    ids=["teacher", "reference", "reward_model"],
)
def test_an_outage_costs_groups_and_is_never_a_zero(
    launch: Callable[[str], Any],
    check_history: Callable[[Any, int, int], None],
    server: Server,
    policy: Path,
    section: str,
    module: Callable[[Path, int], list[str]],
    name: str,
) -> None:
    server.start(module(policy, server.port))
    run = launch(f'{SIZES}{section}url = "http://127.0.0.1:{server.port}"\ntimeout_s = {TIMEOUT_S}\n')
    if name == "reward_model":
        data = run.folder / "data.jsonl"
        data.write_text(data.read_text().replace("{", '{"dataset": "reward_model", '))

    def has_failed() -> bool:
        return any(record["outcome"] == "failed" for record in read_ledger(run.run_dir))

    run.start()
    run.until_step(3)
    assert not has_failed()
    server.kill()
    run.until(has_failed, START_S)
    at_outage = len(run.lines())
    server.start(module(policy, server.port))
    assert run.wait(600) == 0, run.output()
    run.until_gone()
    check_history(run, STEPS, MAX_LAG)
    assert at_outage < STEPS, "no step is taken without the service, beyond those whose groups were there"
    rollouts = [each for path in rollout_log.files(run.run_dir / "rollouts") for each in rollout_log.read(path)]
    failed = [each for each in rollouts if each["outcome"] == "failed"]
    assert failed
    assert {(each["cause"], each["detail"].split(":")[0]) for each in failed} == {("unscorable", f"{name}_down")}
    assert run.lines()[-1]["groups_failed_total"] == len(failed)
    trained = [each for each in rollouts if each["outcome"] == "trained"]
    assert len(trained) == STEPS * 4
    answers = [answer for each in trained for answer in each["completions"]]
    assert not any(answer["verdicts"][name]["error_kind"] for answer in answers)
    if name != "reward_model":
        assert all(min(answer[f"{name}_logprobs"]) < 0 for answer in answers)
        assert all(len(answer[f"{name}_logprobs"]) == len(answer["token_ids"]) for answer in answers)
    if name == "reference":
        drifts = [line["kl_ref_mean"] for line in run.lines()]
        assert abs(drifts[0]) < 1e-4 < drifts[-1], "it is the policy of the start"
    if name == "reward_model":
        asked = [each for answer in answers if (each := answer["verdicts"][name])["method"] == name]
        assert all(0 < verdict["reward"] < 1 for verdict in asked), "a sigmoid is no zero"
        assert len(asked) > len(answers) / 2, "the others have no text"
