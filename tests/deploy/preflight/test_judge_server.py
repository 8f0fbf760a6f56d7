"""The judge that starts with a run: its command, its GPUs in the plan, and the launcher's wait for its health."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight import judge_server
from olmorl.deploy.supervision.recipe_history import differences
from olmorl.errors import ConfigError, ResourceError

RECIPES = Path(__file__).parents[3] / "deploy" / "recipes"
OLMO = RECIPES / "olmo3-32b-think.toml"


@pytest.fixture
def server() -> Iterator[tuple[str, list[int]]]:
    """A judge, and the statuses that its next answers have; afterwards 200."""
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(statuses.pop(0) if statuses else 200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as judge:
        threading.Thread(target=judge.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{judge.server_address[1]}", statuses
        judge.shutdown()


def settings(deadline_s: float = 20, **judge: object) -> config.Config:
    tree = {"model": "owner/judge", "gpus": 4, **judge}
    return config.build({"actors": {"start_deadline_s": deadline_s}, "verifiers": {"judge": tree}})


def row(settings: config.Config) -> str | None:
    return dict(plan(settings).rows(settings)).get("judge")


@pytest.mark.parametrize("name", ["olmo3-7b-think", "olmo3-7b-instruct", "olmo3-32b-think"])
def test_the_recipes_with_chat_rows_have_a_judge_that_the_plan_counts(name: str) -> None:
    recipe = config.load(RECIPES / f"{name}.toml")
    devices = plan(recipe).devices
    found = row(recipe)
    assert found is not None
    assert f"on 8 GPU(s) of a node outside of Ray, {devices + 8} GPUs with it" in found
    assert "no address yet: a run does not start without verifiers.judge.url" in found
    there = config.load(RECIPES / f"{name}.toml", [("verifiers.judge.url", "http://judge:8000/v1")])
    assert "no address" not in str(row(there))
    assert row(config.load(RECIPES / f"{name}.toml", [("verifiers.judge.gpus", "0")])) is None


def test_a_run_whose_judge_has_no_address_does_not_start() -> None:
    with pytest.raises(ConfigError) as refused:
        judge_server.wait_for_judge(settings())
    for wanted in (
        "`vllm serve owner/judge --tensor-parallel-size 4 --port 8000`",
        "--verifiers.judge.url",
        "--verifiers.judge.gpus 0",
    ):
        assert wanted in str(refused.value)
    judge_server.wait_for_judge(settings(gpus=0))


def test_the_launcher_waits_until_the_judge_is_healthy(
    server: tuple[str, list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, statuses = server
    statuses += [503, 503]
    judge_server.wait_for_judge(settings(url=f"{url}/v1"), poll_s=0.01)
    assert statuses == []
    assert capsys.readouterr().out.count(f"waiting for the judge: {url}/health: HTTP Error 503") == 1


def test_a_judge_that_does_not_come_ends_the_start_with_the_reason(server: tuple[str, list[int]]) -> None:
    url, statuses = server
    statuses += [500] * 1000
    with pytest.raises(ResourceError, match=r"/health was not healthy within 0.1 s .*HTTP Error 500"):
        judge_server.wait_for_judge(settings(0.1, url=url), poll_s=0.01)


def test_the_command_has_one_word_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge_server.main([str(OLMO)]) == 0
    words = capsys.readouterr().out.splitlines()
    assert words == ["vllm", "serve", "Qwen/Qwen3-32B", "--tensor-parallel-size", "8", "--port", "8000"]
    assert judge_server.main([str(OLMO), "--verifiers.judge.gpus", "0", "--learner-nodes", "2"]) == 0
    assert capsys.readouterr().out == ""


def test_a_judge_without_a_model_or_with_another_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge_server.main([str(OLMO), "--verifiers.judge.url", "http://there/v1"]) == 2
    assert "verifiers.judge.url names another" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"verifiers\.judge\.model"):
        judge_server.serve_command(settings(model=None).verifiers.judge)


def test_the_judge_may_be_on_another_node_after_a_requeue() -> None:
    assert differences(settings(url="http://one:8000/v1"), settings(url="http://two:8000/v1")) == []
