"""The checks before a large run find each problem, and the error has the fix."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.deploy.demo.settings import ModelSize
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer
from olmorl.deploy.preflight import checks, disk_room, logprob_check
from olmorl.deploy.preflight.host_checks import _attempt
from olmorl.errors import ConfigError, DataError, ModelError, ResourceError, Unscorable, UserError
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from olmorl.queues.redis_server.url import parse_url
from olmorl.verifiers.code.sandbox import tiers
from tests.deploy.hub_settings import use_hub


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = build_tokenizer(256)
    build_model(ModelSize(hidden=32, intermediate=64, layers=2, heads=1), tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(policy: Path, run: Path, **sections: dict[str, Any]) -> config.Config:
    sizes = {"data": {"max_prompt_tokens": 64}, "sampling": {"max_tokens": 64}}
    tree = {"run": {"directory": str(run)}, "model": {"path": str(policy), "dtype": "float32"}, **sizes, **sections}
    return config.build(tree)


def test_model_and_tokenizer_that_fit(policy: Path, tmp_path: Path) -> None:
    recipe = settings(policy, tmp_path)
    size = checks.size_of(str(policy), "float32", False)
    assert f"{size.parameters:,} parameters" in checks.model(recipe)
    assert size.weights_bytes == 4 * size.parameters
    assert "261 tokens for 261 rows" in checks.tokenizer(recipe)


def test_another_models_tokenizer(policy: Path, tmp_path: Path) -> None:
    model = tmp_path / "small"
    few = build_model(ModelSize(hidden=32, intermediate=64, layers=2, heads=1), build_tokenizer(256), seed=0)
    few.resize_token_embeddings(64)
    few.save_pretrained(model)
    recipe = settings(model, tmp_path, model={"path": str(model), "tokenizer": str(policy)})
    with pytest.raises(ModelError, match=r"model\.tokenizer"):
        checks.tokenizer(recipe)


def test_room_for_checkpoints(policy: Path, tmp_path: Path) -> None:
    assert "3 checkpoints" in checks.disk(settings(policy, tmp_path, checkpoint={"keep": 2}))
    with pytest.raises(ResourceError, match=r"checkpoint\.keep"):
        checks.disk(settings(policy, tmp_path, checkpoint={"keep": 10**9}))


def test_room_for_versions_in_files(policy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "weights"
    cluster = {"cluster": {"address": "auto"}}
    own = settings(policy, tmp_path, **cluster, weights={"store": "file"})
    assert "checkpoints and versions" in checks.disk(own)
    apart = settings(policy, tmp_path, **cluster, weights={"directory": str(folder)})
    assert f"{folder}, " in checks.disk(apart).splitlines()[1]
    assert checks.disk(settings(policy, tmp_path, **cluster)).endswith("needed for 4 checkpoints")


def test_checkpoints_that_are_there_need_no_room_again(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = settings(policy, tmp_path, checkpoint={"keep": 2})
    monkeypatch.setattr(disk_room, "room", lambda folder, needed, what, way_out: str(needed))
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
        ({"memory": 1e9}, {"disk", "shared memory", "GPU memory"}),
        ({"CPU": 64.0}, {"disk", "shared memory", "GPU memory"}),
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


def test_shared_memory_holds_rays_object_store_too(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = settings(policy, tmp_path, weights={"store": "ray"})
    checks.shared_memory(recipe)
    monkeypatch.setattr(checks.memory, "object_store", lambda *given: 1 << 60)
    with pytest.raises(
        ResourceError, match=r"/dev/shm: .* free, and .* versions of the weights and Ray's objects need"
    ):
        checks.shared_memory(recipe)


def test_a_host_that_can_run_no_programs_says_so(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, settings: config.Verifiers, number: int) -> tiers.Tier:
        raise FileNotFoundError(f"{name} is not installed")

    monkeypatch.setattr(tiers, "tier", missing)
    said = checks.verifiers(settings(policy, tmp_path))
    assert "rows with code would fail here, because no program runs: " in said and "bubblewrap is not installed" in said


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
    recipe = settings(policy, tmp_path, learner={"device": "cpu"})
    unknown = logprob_check.EngineAnswer(
        prompt=[1, 2, 3], tokens=[4, 5, 6], logprobs=[0.0] * 3, text=decoded(policy, [4, 5, 6])
    )
    learner = [-1.0, -2.0, -3.0]
    said = logprob_check.compare(recipe, unknown._replace(logprobs=learner), learner)
    assert "3 tokens; log-probabilities differ by 0 in the mean" in said
    with pytest.raises(ModelError, match=r"by 0\.01 nats in the mean"):
        logprob_check.compare(recipe, unknown._replace(logprobs=[logprob + 0.01 for logprob in learner]), learner)
    tolerant = config.with_key(recipe, "weights.proof_tolerance", 0.02)
    said = logprob_check.compare(tolerant, unknown._replace(logprobs=[logprob + 0.01 for logprob in learner]), learner)
    assert "differ by 0.01 in the mean" in said
    with pytest.raises(ModelError, match="read the same tokens"):
        logprob_check.compare(recipe, unknown._replace(text="something else"), learner)


ASKS = "{{ messages[0].content }}{% if enable_thinking is defined %}{{ 'x' * budget }}{% endif %}"


def test_values_for_the_template_are_given_in_the_checks_too(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listening:
        async def start(self, version: object) -> None: ...

        async def stop(self) -> None: ...

        async def generate(self, request_id: str, prompt: Any, sampling: object) -> Any:
            raise EOFError(len(prompt))

    monkeypatch.setattr(wiring, "engine", lambda settings, core, node: Listening())
    lengths, asked = [], []
    for given in ({}, {"enable_thinking": False, "budget": 100}):
        model = {"path": str(policy), "chat_template": ASKS}
        recipe = settings(policy, tmp_path, model=model, data={"chat_template_kwargs": given})
        lengths.append(int(checks.tokenizer(recipe).split()[-2]))
        with pytest.raises(EOFError) as length:
            logprob_check.AskedEngine(recipe.model_dump(mode="json"), None).generate()
        asked.append(length.value.args[0])
    assert lengths[1] > lengths[0]
    assert asked[1] - asked[0] == lengths[1] - lengths[0]
    misspelt = settings(policy, tmp_path, data={"chat_template_kwargs": {"enable_thinkng": False}})
    with pytest.raises(ConfigError, match="enable_thinkng: the tokenizer's chat template does not use it"):
        checks.tokenizer(misspelt)


def decoded(policy: Path, tokens: list[int]) -> str:
    from olmorl.learner.data.loader import open_tokenizer

    text: str = open_tokenizer(config.Model(path=str(policy))).decode(tokens)
    return text


# --- the data of a preflight --------------------------------------------------------------------------------


REWARDS = """
import pathlib
def length(prompts, completions, **columns):
    pathlib.Path(__file__).with_suffix(".called").touch()
    return [0.5] * len(completions)
def short(prompts, completions, **columns):
    return [0.5]
def broken(prompts, completions, **columns):
    raise KeyError("answer")
"""


@pytest.fixture
def trial(policy: Path, tmp_path: Path) -> Callable[..., config.Config]:
    """A recipe with the given rows and functions."""

    def make(content: bytes | list[dict[str, Any]], *functions: str, **data: Any) -> config.Config:
        file, rewards = tmp_path / "rows.jsonl", tmp_path / "rewards.py"
        rows = content if isinstance(content, bytes) else "".join(json.dumps(r) + "\n" for r in content).encode()
        file.write_bytes(rows)
        rewards.write_text(REWARDS)
        named = [f"{rewards}:{name}" for name in functions]
        sections = {"train": [str(file)], "max_prompt_tokens": 64, **data}
        return settings(policy, tmp_path, data=sections, verifiers={"functions": named})

    return make


GOOD = [
    {"prompt": "1 + 1", "ground_truth": "2", "dataset": "math"},
    {"prompt": "x", "ground_truth": "2", "dataset": "f1"},
]


def test_the_first_rows_are_read_and_written_by_the_template(trial: Callable[..., config.Config]) -> None:
    said = checks.data(trial([*GOOD, {"prompt": "no label"}]))
    assert "of the first rows 2 of 3 rows used, 1 unusable" in said and "rows.jsonl:3: no usable label" in said
    assert "the longest prompt has 7 tokens" in said, "1 + 1 between two tokens of the template"


@pytest.mark.parametrize("seed", range(5))
def test_a_file_of_random_bytes_is_not_data(trial: Callable[..., config.Config], seed: int) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        checks.data(trial(random.Random(seed).randbytes(4096)))


def test_every_function_and_verifier_scores_a_real_row(trial: Callable[..., config.Config], tmp_path: Path) -> None:
    assert checks.functions(trial(GOOD, "length")) == "1 of your own; scored a row each: math, length, f1"
    assert (tmp_path / "rewards.called").exists()


def test_made_up_answers_go_to_no_teacher_and_its_rows_need_no_verifier(trial: Callable[..., config.Config]) -> None:
    teachers = config.Distillation.model_validate(
        {"teachers": {"big": {"url": "http://127.0.0.1:9", "timeout_s": 0.1}}}
    )
    recipe = trial([*GOOD, {"prompt": "no label"}]).model_copy(update={"distillation": teachers})
    assert "of the first rows 3 of 3 rows used" in checks.data(recipe)
    assert checks.functions(recipe) == "0 of your own; scored a row each: math, f1"
    assert checks.verifiers(recipe).startswith("3 known answers are right")
    with pytest.raises(ResourceError, match=r"distillation\.teachers\.big: http://127\.0\.0\.1:9"):
        checks.tokenizer(recipe)


@pytest.mark.parametrize(("function", "says"), [("short", "1 rewards for 2"), ("broken", "KeyError")])
def test_a_function_that_fails_on_a_real_row_is_found(
    trial: Callable[..., config.Config], function: str, says: str
) -> None:
    with pytest.raises(Unscorable, match=rf"rows\.jsonl:\d: {function}: .*{says}"):
        checks.functions(trial(GOOD, function))


def test_a_verifier_that_cannot_score_is_found(trial: Callable[..., config.Config]) -> None:
    judged = {"prompt": "Say something.", "ground_truth": "hello", "dataset": "general-quality_ref"}
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*judge\.url"):
        checks.data(trial([judged]))
    deaf = trial([judged]).verifiers.judge.model_copy(update={"url": "http://127.0.0.1:1/v1", "timeout_s": 0.05})
    recipe = trial([judged])
    recipe = recipe.model_copy(update={"verifiers": recipe.verifiers.model_copy(update={"judge": deaf})})
    with pytest.raises(Unscorable, match=r"rows\.jsonl:1: general-quality_ref: "):
        checks.functions(recipe)


WORLD = """
class World:
    def step(self, reply):
        return {step}
class Judging(World):
    def reward(self):
        return 2.5
"""


def in_world(recipe: config.Config, tmp_path: Path, step: str, kind: str = "World") -> config.Config:
    (tmp_path / "world.py").write_text(WORLD.format(step=step))
    episodes = config.Episodes(environment=f"{tmp_path}/world.py:{kind}")
    return recipe.model_copy(update={"episodes": episodes})


def test_an_environment_plays_a_real_row(trial: Callable[..., config.Config], tmp_path: Path) -> None:
    recipe = in_world(trial(GOOD), tmp_path, "'go on'")
    said = checks.environment(recipe)
    assert "World: it replied with 1 message(s) after " in said and said.endswith(
        "the chat template writes its replies"
    )
    unlabelled = in_world(trial([{"prompt": "1 + 1"}]), tmp_path, "None", "Judging")
    assert "it ended the episode" in checks.environment(unlabelled)
    assert "with the rewards environment 2.5" in checks.environment(unlabelled)
    assert "environment" in checks.functions(unlabelled)
    assert [checks.applies("environment", each) for each in (recipe, trial(GOOD))] == [True, False]


AGENT = Path(__file__).parents[2] / "actors" / "episodes" / "agent.py"


def with_agent(recipe: config.Config, does: str) -> config.Config:
    episodes = config.Episodes(agent=f"{sys.executable} {AGENT} {does}", timeout_s=30)
    return recipe.model_copy(update={"episodes": episodes})


def test_an_agent_plays_a_real_row_with_made_up_answers(trial: Callable[..., config.Config]) -> None:
    assert "append: it asked 2 time(s) and ended with done after " in checks.environment(
        with_agent(trial(GOOD), "append")
    )
    unlabelled = with_agent(trial([{"prompt": "1 + 1"}]), "reward")
    assert "with the rewards environment 0.75" in checks.environment(unlabelled)
    with pytest.raises(UserError, match=r"nothing gives a reward: .* write a number to \$OLMORL_REWARD"):
        checks.environment(with_agent(trial([{"prompt": "1 + 1"}]), "append"))
    with pytest.raises(
        UserError, match=r"episodes\.agent = .*crash': .*ended with exit code 1, and never got an answer"
    ):
        checks.environment(with_agent(trial(GOOD), "crash"))


@pytest.mark.slow  # imports vLLM for its parser
def test_an_agent_with_tools_needs_their_parser_and_a_template_that_shows_them(
    trial: Callable[..., config.Config],
) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    recipe = with_agent(trial(GOOD), "append")
    play: Any = wiring.play(recipe)
    assert play.renderer([]) is play.renderer([])
    with pytest.raises(ConfigError, match=r"episodes\.tool_parser: name the parser of the calls of tools"):
        play.renderer(tools)
    episodes = recipe.episodes.model_copy(update={"tool_parser": "hermes"})
    play = wiring.play(recipe.model_copy(update={"episodes": episodes}))
    with pytest.raises(ModelError, match=r"the chat template does not show the tool 'add'.*model\.chat_template"):
        play.renderer(tools)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("def seen(environments): return [environments[0].said]", None),
        ("def seen(environments): return [environments[0].missing]", r"rows\.jsonl:1: seen: AttributeError"),
        ("def seen(completions): return [1.0]", r"rows\.jsonl:1: seen: returned 1 rewards for 2"),
    ],
)
def test_a_function_that_reads_the_environment_is_called_beside_it(
    trial: Callable[..., config.Config], tmp_path: Path, function: str, says: str | None
) -> None:
    recipe = in_world(trial([{"prompt": "1 + 1"}]), tmp_path, "None", "Judging")
    own = "\nclass Seeing:\n    def step(self, reply):\n        self.said = len(reply['content'])\n"
    (tmp_path / "world.py").write_text(f"{own}\n{function}\n")
    recipe = config.with_key(recipe, "episodes.environment", f"{tmp_path}/world.py:Seeing")
    recipe = config.with_key(recipe, "verifiers.functions", [f"{tmp_path}/world.py:seen"])
    with nullcontext() if says is None else pytest.raises(Unscorable, match=says):
        assert "seen" in checks.functions(recipe)


@pytest.mark.parametrize(
    ("step", "template", "rows", "says"),
    [
        ("1 / 0", None, GOOD, r"episodes\.environment = .*World': step: ZeroDivisionError"),
        ("None", None, [{"prompt": "1 + 1"}], r"rows\.jsonl:1: nothing gives a reward"),
        (
            "'go on'",
            "{% if messages | length > 1 %}{{ raise_exception('one turn') }}{% endif %}{{ messages[0].content }}",
            GOOD,
            "a user's reply: the chat template refuses a message of the role 'user' after an answer: one turn",
        ),
    ],
)
def test_an_environment_that_cannot_be_played_is_named(
    trial: Callable[..., config.Config],
    tmp_path: Path,
    step: str,
    template: str | None,
    rows: list[dict[str, Any]],
    says: str,
) -> None:
    recipe = in_world(trial(rows), tmp_path, step)
    model = recipe.model.model_copy(update={"chat_template": template})
    with pytest.raises(UserError, match=says):
        checks.environment(recipe.model_copy(update={"model": model}))


def test_functions_are_looked_at_where_there_is_no_row(trial: Callable[..., config.Config]) -> None:
    assert checks.functions(trial(b"noise", "length")) == "1 of your own; not called: no row could be loaded"


def test_a_tokenizer_without_a_template_will_do_for_plain_prompts(policy: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shutil.copytree(policy, plain)
    (plain / "chat_template.jinja").unlink()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(GOOD[0]) + "\n")
    recipe = settings(plain, tmp_path, data={"train": [str(rows)], "max_prompt_tokens": 64})
    assert "no chat template: prompts have to be plain strings" in checks.tokenizer(recipe)
    assert "1 of 1 rows used" in checks.data(recipe)
    turns = [{"role": "user", "content": "1 + 1"}]
    rows.write_text(json.dumps({"messages": turns, "ground_truth": "2", "dataset": "math"}) + "\n")
    with pytest.raises(ModelError, match=r"rows\.jsonl:1: a conversation.*model\.chat_template"):
        checks.data(recipe)


@pytest.mark.parametrize("check", [checks.data, checks.model, checks.tokenizer, checks.disk, checks.shared_memory])
def test_a_model_of_a_hub_that_cannot_be_reached_is_asked_for_once(
    check: Callable[[config.Config], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_hub(monkeypatch, tmp_path, "http://127.0.0.1:1")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "1+1?", "ground_truth": "2", "dataset": "math"}))
    tree = {
        "run": {"directory": tmp_path / "runs"},
        "model": {"path": "nobody/nothing"},
        "data": {"train": [str(tmp_path / "rows.jsonl")]},
    }
    with pytest.raises(ModelError, match=r"model\.path: nobody/nothing: .*127\.0\.0\.1:1 cannot be reached"):
        check(config.build(tree))
