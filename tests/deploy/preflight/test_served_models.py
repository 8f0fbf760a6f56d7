"""The models that start with a run: their commands, their GPUs in the plan, and the launcher's wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from olmorl import config
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.preflight import served_models
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
        served_models.wait_for_served(settings())
    for wanted in (
        "`vllm serve owner/judge --tensor-parallel-size 4 --port 8000`",
        "--verifiers.judge.url",
        "--verifiers.judge.gpus 0",
    ):
        assert wanted in str(refused.value)
    served_models.wait_for_served(settings(gpus=0))


def test_the_launcher_waits_until_the_judge_is_healthy(
    server: tuple[str, list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, statuses = server
    statuses += [503, 503]
    served_models.wait_for_served(settings(url=f"{url}/v1"), poll_s=0.01)
    assert statuses == []
    assert capsys.readouterr().out.count(f"waiting for verifiers.judge: {url}/health: HTTP Error 503") == 1


def test_a_judge_that_does_not_come_ends_the_start_with_the_reason(server: tuple[str, list[int]]) -> None:
    url, statuses = server
    statuses += [500] * 1000
    with pytest.raises(ResourceError, match=r"/health was not healthy within 0.1 s .*HTTP Error 500"):
        served_models.wait_for_served(settings(0.1, url=url), poll_s=0.01)


def test_each_model_has_a_line_with_its_key_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert served_models.main([str(OLMO)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["verifiers.judge vllm serve Qwen/Qwen3-32B --tensor-parallel-size 8 --port 8000"]
    assert served_models.main([str(OLMO), "--verifiers.judge.gpus", "0", "--learner-nodes", "2"]) == 0
    assert capsys.readouterr().out == ""


def test_a_judge_without_a_model_or_with_another_address_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert served_models.main([str(OLMO), "--verifiers.judge.url", "http://there/v1"]) == 2
    assert "verifiers.judge.url names another" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"verifiers\.judge\.model"):
        served_models.serve_command("verifiers.judge", settings(model=None).verifiers.judge)


def test_the_judge_may_be_on_another_node_after_a_requeue() -> None:
    assert differences(settings(url="http://one:8000/v1"), settings(url="http://two:8000/v1")) == []


def placed(**more: object) -> config.Config:
    """A judge, a reward model and a teacher start with the run."""
    service = {"model": "owner/one", "gpus": 2}
    return config.build(
        {
            "cluster": {"gpus_per_node": 8},
            "verifiers": {"judge": {"model": "owner/judge", "gpus": 4}, "reward_model": service},
            "distillation": {
                "teachers": {"math": {**service, "model": "owner/the teacher", **more}},
                "with_rewards": True,
            },
        }
    )


def test_the_plan_counts_reward_models_and_teachers_too() -> None:
    settings = placed()
    rows, devices = dict(plan(settings).rows(settings)), plan(settings).devices
    assert rows["distillation.teachers.math"] == (
        f"owner/the teacher on 2 GPU(s) of a node outside of Ray, {devices + 8} GPUs with all services; no address "
        "yet: a run does not start without distillation.teachers.math.url"
    )
    assert "owner/one on 2 GPU(s)" in rows["reward_model"] and "owner/judge on 4 GPU(s)" in rows["judge"]


def test_each_of_several_models_has_its_command_and_is_waited_for(
    server: tuple[str, list[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, (url, statuses) = tmp_path / "recipe.toml", server
    recipe.write_text(config.to_toml(placed()), encoding="utf-8")
    assert served_models.main([str(recipe)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "verifiers.judge vllm serve owner/judge --tensor-parallel-size 4 --port 8000",
        "verifiers.reward_model vllm serve owner/one --tensor-parallel-size 2 --port 8000",
        "distillation.teachers.math vllm serve 'owner/the teacher' --tensor-parallel-size 2 --port 8000",
    ]
    keys = list(placed().served)
    addresses = [(f"{key}.url", url) for key in keys]
    with pytest.raises(ConfigError, match=r"distillation\.teachers\.math\.url is not set"):
        served_models.wait_for_served(config.load(recipe, addresses[:2]), poll_s=0.01)
    statuses += [200, 503, 200, 503]
    served_models.wait_for_served(config.load(recipe, addresses), poll_s=0.01)
    assert statuses == []
    told = capsys.readouterr().out
    assert [key for key in keys if f"waiting for {key}: {url}/health: HTTP Error 503" in told] == keys[1:]


def test_a_teacher_that_does_not_start_with_the_run_needs_an_address() -> None:
    with pytest.raises(ConfigError, match=r"distillation\.teachers\.math\.url: give the address of its server"):
        placed(gpus=0)
