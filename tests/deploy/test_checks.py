"""The checks before a large run: what each finds, and that its error says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from olmorl import config
from olmorl.deploy import checks, probe
from olmorl.deploy.checklist import _attempt
from olmorl.deploy.demo import Policy
from olmorl.deploy.plan import plan
from olmorl.deploy.tiny_policy import build_model, build_tokenizer
from olmorl.errors import DataError, ModelError, ResourceError
from olmorl.queues.address import parse_url
from olmorl.queues.embedded import EmbeddedRedis
from olmorl.verifiers.code import tiers


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer(256)
    build_model(Policy(hidden=32, intermediate=64, layers=2, heads=1), tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(policy: Path, run: Path, **sections: dict[str, Any]) -> config.Config:
    tree = {"run": {"directory": str(run)}, "model": {"path": str(policy), "dtype": "float32"}, **sections}
    return config.build(tree)


def test_model_and_tokenizer_that_fit(policy: Path, tmp_path: Path) -> None:
    recipe = settings(policy, tmp_path)
    size = checks.size_of(str(policy), "float32", False)
    assert f"{size.parameters:,} parameters" in checks.model(recipe)
    assert size.weights_bytes == 4 * size.parameters
    assert "261 tokens for 261 rows" in checks.tokenizer(recipe)


def test_another_models_tokenizer(policy: Path, tmp_path: Path) -> None:
    model = tmp_path / "small"
    few = build_model(Policy(hidden=32, intermediate=64, layers=2, heads=1), build_tokenizer(256), seed=0)
    few.resize_token_embeddings(64)
    few.save_pretrained(model)
    recipe = settings(model, tmp_path, model={"path": str(model), "tokenizer": str(policy)})
    with pytest.raises(ModelError, match=r"model\.tokenizer"):
        checks.tokenizer(recipe)


def test_room_for_checkpoints(policy: Path, tmp_path: Path) -> None:
    assert "3 checkpoints" in checks.disk(settings(policy, tmp_path, checkpoint={"keep": 2}))
    with pytest.raises(ResourceError, match=r"checkpoint\.keep"):
        checks.disk(settings(policy, tmp_path, checkpoint={"keep": 10**9}))


def test_checkpoints_that_are_there_need_no_room_again(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = settings(policy, tmp_path, checkpoint={"keep": 2})
    monkeypatch.setattr(checks, "_room", lambda folder, needed, what, way_out: str(needed))
    empty = int(checks.disk(recipe))
    share = recipe.run_dir / "checkpoints" / "step_4" / "learner.1" / "share_0.safetensors"
    share.parent.mkdir(parents=True)
    share.write_bytes(bytes(1000))
    assert int(checks.disk(recipe)) == empty - 1000
    share.write_bytes(bytes(empty))
    assert 0 < int(checks.disk(recipe)) < empty / 2, "there must be room for another one"


@pytest.mark.parametrize(
    ("resources", "not_asked"),
    [
        ({"memory": 1e9}, {"disk", "shared memory"}),
        ({"CPU": 64.0}, {"disk", "shared memory"}),
        ({"CPU": 64.0, "GPU": 4.0}, {"disk"}),
        ({"CPU": 64.0, "GPU": 8.0}, set()),
    ],
    ids=["head", "no GPU", "engines only", "either"],
)
def test_a_host_is_asked_for_what_it_may_have_to_hold(resources: dict[str, float], not_asked: set[str]) -> None:
    tree = {"learner": {"device": "cuda", "ranks_per_node": 8}, "actors": {"tensor_parallel": 4}}
    placed = plan(config.build(tree))
    assert {name for name in checks.ON_HOSTS if not checks.concerns(name, placed, resources)} == not_asked


def test_evaluation_sets_that_share_a_name(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    rows = str(tmp_path / "rows.jsonl")
    recipe = settings(policy, tmp_path, data={"train": [rows]}, evaluation={"data": [rows, rows]})
    with pytest.raises(DataError, match="name=path"):
        checks.data(recipe)


def test_a_check_that_breaks_is_a_finding_among_the_others() -> None:
    def broken() -> str:
        raise MemoryError("2 EiB")

    found = _attempt("model", "launcher", broken)
    assert (found.passed, found.said) == (False, "the check failed: MemoryError('2 EiB')")


def test_this_host_has_memory_ports_and_verifiers(policy: Path, tmp_path: Path) -> None:
    recipe = settings(policy, tmp_path)
    assert "3 versions of the weights" in checks.shared_memory(recipe)
    assert checks.ports(recipe) == "listens on 127.0.0.1"
    assert checks.verifiers(recipe).startswith("3 known answers are right; programs run in the sandbox ")


def test_a_host_that_can_run_no_programs_says_so(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, settings: config.Verifiers, number: int) -> tiers.Tier:
        raise FileNotFoundError(f"{name} is not installed")

    monkeypatch.setattr(tiers, "tier", missing)
    said = checks.verifiers(settings(policy, tmp_path))
    assert "rows with code would fail here, no program runs: " in said and "bubblewrap is not installed" in said


@pytest.mark.parametrize(("name", "value"), [("appendonly", "no"), ("maxmemory-policy", "allkeys-lru")])
def test_a_redis_that_forgets(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    with EmbeddedRedis(tmp_path / "redis", fsync="no") as server:
        for key, secret in server.environment.items():
            monkeypatch.setenv(key, secret)
        recipe = settings(policy, tmp_path, queue={"url": server.url})
        assert checks.redis(recipe) == "append-only file, fsync no, no eviction"
        address = parse_url(server.url, server.environment)
        [(host, port)] = address.hosts
        with Redis(host=host, port=port, password=address.credentials.password) as client:
            client.config_set(name, value)
        with pytest.raises(ResourceError, match=f"CONFIG SET {name}"):
            checks.redis(recipe)


def test_engine_and_learner_that_disagree(policy: Path, tmp_path: Path) -> None:
    tree = settings(policy, tmp_path, learner={"device": "cpu"}).model_dump(mode="json")
    unknown = probe.Answer(prompt=[1, 2, 3], tokens=[4, 5, 6], logprobs=[0.0] * 3, text=decoded(policy, [4, 5, 6]))
    learner = probe.logprobs(config.build(tree), unknown)
    said = probe.compare(tree, unknown._replace(logprobs=learner))
    assert "3 tokens; log-probabilities differ by 0 in the mean" in said
    with pytest.raises(ModelError, match=r"by 0\.01 nats in the mean"):
        probe.compare(tree, unknown._replace(logprobs=[logprob + 0.01 for logprob in learner]))
    with pytest.raises(ModelError, match="read the same tokens"):
        probe.compare(tree, unknown._replace(text="something else"))


def decoded(policy: Path, tokens: list[int]) -> str:
    from olmorl.learner.prompts import open_tokenizer

    text: str = open_tokenizer(config.Model(path=str(policy))).decode(tokens)
    return text
