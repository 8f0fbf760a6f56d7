"""The table of user errors, with the words that each message must have.

Each case begins with a world in which a run could start (`test_bad_inputs.world`), and breaks one thing in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.folders import CONFIG, bare_model, safetensors, shapes, write_tokenizer

Break = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One mistake. `{w}` in arguments and words is the folder of the world."""

    name: str
    arguments: tuple[str, ...]
    says: tuple[str, ...]
    """Where it is, and what to do."""
    spoil: Break | None = None
    """Changes the files before the start."""
    dry: bool = False
    """`--dry-run` refuses it too."""


def value(key: str, text: str, *says: str) -> Case:
    """A key with a value that it cannot have."""
    return Case(f"{key}={text[:40]}", (f"--{key}", text), (key, *says), dry=True)


def line(name: str, *arguments: str, says: tuple[str, ...]) -> Case:
    """A command line."""
    return Case(name, arguments, says, dry=True)


def files(name: str, spoil: Break, *says: str, arguments: tuple[str, ...] = ()) -> Case:
    """A file of model, data, rewards or run."""
    return Case(name, arguments, says, spoil)


def write(file: str, content: str | bytes) -> Break:
    """Put a file in place of the one that is there."""
    data = content.encode() if isinstance(content, str) else content
    return lambda world: (world / file).write_bytes(data)


def rows(*items: dict[str, Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def remove(file: str) -> Break:
    return lambda world: (world / file).unlink()


def configured(**changes: Any) -> Break:
    """A model whose configuration says something else."""
    return write("model/config.json", json.dumps(CONFIG | changes))


def weights(change: Callable[[dict[str, tuple[int, ...]]], object]) -> Break:
    """A model whose weights are others."""

    def spoil(world: Path) -> None:
        tensors = shapes()
        change(tensors)
        (world / "model" / "model.safetensors").write_bytes(safetensors(tensors))

    return spoil


def cut(file: str, share: float) -> Break:
    """A download that broke off."""

    def spoil(world: Path) -> None:
        content = (world / file).read_bytes()
        (world / file).write_bytes(content[: int(share * len(content))])

    return spoil


def few_embeddings(world: Path) -> None:
    """A model with fewer tokens than the tokenizer in its folder."""
    small = bare_model(world / "small", vocab_size=200)
    fewer = {name: (200, *shape[1:]) if shape[0] == CONFIG["vocab_size"] else shape for name, shape in shapes().items()}
    (small / "model.safetensors").write_bytes(safetensors(fewer))


def tokenizer(template: str | None) -> Break:
    def spoil(world: Path) -> None:
        (world / "model" / "chat_template.jinja").unlink()
        write_tokenizer(world / "model", template)

    return spoil


def made_run(recipe: str | None = None, **changes: Any) -> Break:
    """A run that has begun in the run directory; `changes` to the settings that it keeps, by section."""

    def spoil(world: Path) -> None:
        from olmorl import config
        from olmorl.deploy.supervision import recipe_history

        folder = world / "runs" / "t"
        (folder / "ledger").mkdir(parents=True)
        (folder / "ledger" / "000001.jsonl").touch()
        if recipe is not None:
            (folder / "config.toml").write_text(recipe)
            return
        kept = recipe_history.spelled_out(config.load(world / "recipe.toml")).model_dump(mode="json")
        for section, values in changes.items():
            kept[section] |= values
        (folder / "config.toml").write_text(config.to_toml(config.build(kept)))

    return spoil


BOUNDS = [
    value("run.seed", "-1", "greater than or equal to 0"),
    value("run.seed", "3000000000", "less than 2147483648"),
    value("run.seed", "1.5", "integer"),
    value("run.seed", "abc", "integer"),
    value("run.name", '"a/b"', "match pattern"),
    value("run.name", '""', "match pattern"),
    value("run.name", '"-x"', "match pattern"),
    value("run.name", "7", 'run.name = "7"'),
    value("run.mode", "fake", "'real' or 'simulated'"),
    value("model.dtype", "int8", "'bfloat16', 'float32' or 'float16'"),
    value("model.build", "tiny", "'demo', 'mixed' or 'calculator'"),
    value("model.trust_remote_code", "maybe", "boolean"),
    value("data.train", "{w}/data.jsonl", 'a list is written data.train = ["'),
    value("data.train", "[3]", "data.train.0", "string"),
    value("data.max_prompt_tokens", "0", "greater than or equal to 1"),
    value("data.chat_template_kwargs.x", "nan", "wants true or false or integer or finite number or text (got nan)"),
    value("data.chat_template_kwargs.x", "[1]", "wants true or false or integer or finite number or text (got [1])"),
    value("data.over_long", "cut", "'filter' or 'truncate'"),
    value("data.epochs", "0", "greater than or equal to 1"),
    value("data.no_resample_above", "0", "greater than 0"),
    value("data.no_resample_above", "1.5", "less than or equal to 1"),
    value("data.no_resample_above", "nan", "finite"),
    value("sampling.group_size", "1", "set it to 2 or more"),
    value("sampling.group_size", "-8", "greater than or equal to 1"),
    value("sampling.max_tokens", "0", "greater than or equal to 1"),
    value("sampling.temperature", "0", "greater than or equal to 0.01"),
    value("sampling.temperature", "0.001", "greater than or equal to 0.01"),
    value("sampling.temperature", "11", "less than or equal to 10"),
    value("sampling.temperature", "inf", "finite"),
    value("sampling.temperature", "nan", "finite"),
    value("sampling.top_p", "0.9", "the learner trains the whole distribution"),
    value("sampling.stop", "END", 'sampling.stop = ["END"]'),
    value("schedule.steps", "0", "greater than or equal to 1"),
    value("schedule.steps", "ten", "integer"),
    value("schedule.prompts_per_step", "0", "greater than or equal to 1"),
    value("schedule.max_lag", "-1", "greater than or equal to 0"),
    value("schedule.max_lag", "1001", "less than or equal to 1000"),
    value("schedule.depth", "2", "max_lag", "set depth to 1 or less"),
    value("schedule.over_age", "keep", "'wait', 'mask' or 'drop'"),
    value("schedule.max_useless_groups", "0", "greater than or equal to 1"),
    value("objective.preset", "ppo2", "'olmorl', 'grpo'"),
    value("objective.eps_low", "1.5", "less than or equal to 1"),
    value("objective.eps_low", "-0.1", "greater than or equal to 0"),
    value("objective.eps_high", "inf", "finite"),
    value("objective.rho", "0", 'wants number > 0 or "off"'),
    value("objective.rho", "-2", 'wants number > 0 or "off"'),
    value("objective.rho", "inf", '"uncapped"'),
    value("objective.rho", "of", '"off"'),
    value("objective.rho_kind", "cap", "'sequence' or 'sequence_mask'"),
    value("objective.kl_beta", "-1", "greater than or equal to 0"),
    value("objective.kl_beta", "nan", "finite"),
    value("objective.kl_estimator", "k3", "objective.kl_beta over 0"),
    value("objective.constant_length", "10", 'objective.normalize = "constant"'),
    value("objective.reward_scale", "0", "greater than 0"),
    value("objective.overlong_buffer", "65", "sampling.max_tokens = 64", "64 or less"),
    value("learner.nodes", "0", "greater than or equal to 1"),
    value("learner.zero_stage", "4", "less than or equal to 3"),
    value("learner.device", "gpu", "'auto', 'cpu' or 'cuda'"),
    value("learner.learning_rate", "inf", "finite"),
    value("learner.learning_rate", "nan", "finite"),
    value("learner.learning_rate", "-1e-6", "greater than or equal to 0"),
    value("learner.learning_rate", "2", "less than or equal to 1"),
    value("learner.schedule", "step", "'constant', 'linear' or 'cosine'"),
    value("learner.warmup_steps", "101", "schedule.steps = 100", "100 or less"),
    value("learner.warmup_steps", "-1", "greater than or equal to 0"),
    value("learner.betas", "[0.9, 1.0]", "less than 1"),
    value("learner.betas", "[-0.1, 0.9]", "greater than or equal to 0"),
    value("learner.betas", "[0.9]", "Field required"),
    value("learner.betas", "[0.9, 0.95, 0.99]", "at most 2"),
    value("learner.betas", "0.9", "learner.betas = [0.9, 0.95]"),
    value("learner.betas", "[nan, 0.9]", "finite"),
    value("learner.eps", "0", "greater than 0"),
    value("learner.eps", "1", "less than 1"),
    value("learner.weight_decay", "-0.1", "greater than or equal to 0"),
    value("learner.weight_decay", "inf", "finite"),
    value("learner.max_grad_norm", "0", "greater than 0"),
    value("learner.max_grad_norm", "inf", "finite"),
    value("learner.minibatches", "65", "schedule.prompts_per_step = 4"),
    value("learner.epochs", "0", "greater than or equal to 1"),
    value("learner.row_tokens", "127", "is too short", "128"),
    value("episodes.max_tokens", "64", "no effect on single answers", "set episodes.environment"),
    line(
        "turns of a simulated run of single answers",
        *("--run.mode", "simulated", "--simulation.turns", "3"),
        says=("simulation.turns = 3 has no effect on single answers", "set episodes.environment"),
    ),
    value("episodes.environment", "calculator", "should match pattern"),
    line(
        "an agent and an environment",
        *("--episodes.agent", "run.sh", "--episodes.environment", "a:B"),
        says=("episodes.environment and episodes.agent both play the episodes", "remove one"),
    ),
    line(
        "an agent, and an objective of sequences",
        *("--episodes.agent", "run.sh", "--objective.preset", "grpo"),
        says=("objective.normalize counts sequences", 'set objective.preset = "olmorl"'),
    ),
    value("learner.offload_reference", "true", "needs a KL term", "objective.kl_beta over 0"),
    value("learner.attention", "flash", "'flash_attention_2'"),
    value("learner.sequence_parallel", "0", "greater than or equal to 1"),
    value("learner.sequence_parallel", "2", "does not divide the 1 rank(s)", "learner.ranks_per_node = 1"),
    value("learner.mlp_tiles", "0", "greater than or equal to 1"),
    value("learner.cores", "[0, 0]", "twice", "name each once"),
    value("learner.cores", "[4095]", "this process may use the cores", "leave learner.cores out"),
    value("learner.cores", "[-1]", "greater than or equal to 0"),
    value("learner.cores", "0", "learner.cores = [0]"),
    value("learner.cores", "[]", "at least 1"),
    value("critic.warmup_steps", "3", "no effect without a critic", 'objective.preset = "ppo"'),
    value("objective.lam", "2", "less than or equal to 1"),
    value("objective.kl_target", "0", "greater than 0"),
    value("learner.threads", "0", "greater than or equal to 1"),
    value("learner.batch_deadline_s", "0", "greater than 0"),
    value("learner.batch_deadline_s", "inf", "finite"),
    value("actors.nodes", "0", "greater than or equal to 1"),
    value("actors.engines_per_node", "0", "greater than or equal to 1"),
    value("actors.tensor_parallel", "0", "greater than or equal to 1"),
    value("actors.tensor_parallel", "2", "set it to 1"),
    value("actors.max_running", "0", "greater than or equal to 1"),
    value("actors.kv_cache_gib", "0", "greater than 0"),
    value("actors.kv_cache_gib", "inf", "finite"),
    value("actors.gpu_memory_utilization", "1.1", "less than or equal to 1"),
    value("actors.cores", "[1, 1]", "twice", "name each once"),
    value("actors.cores", "[9999]", "this process may use the cores", "leave actors.cores out"),
    value("actors.start_deadline_s", "nan", "finite"),
    value("actors.stall_deadline_s", "inf", "finite"),
    value("verifiers.workers", "0", "greater than or equal to 1"),
    value("verifiers.timeout_s", "0", "greater than 0"),
    value("verifiers.memory_mib", "1", "greater than or equal to 64"),
    value("verifiers.combine", "max", "'sum', 'mean' or 'product'"),
    value("verifiers.weights", "2", "--verifiers.weights.NAME"),
    value("verifiers.weights.math", "nan", "finite"),
    value("verifiers.weights.math", "two", "number"),
    value("verifiers.think_tags", '["", "x"]', "at least 1"),
    value("verifiers.math_strict", '["unit"]', '"units"'),
    value("verifiers.math_tolerance", "1", "less than 1"),
    value("verifiers.code_tier", "docker", "'bubblewrap'"),
    value("verifiers.judge.concurrency", "0", "greater than or equal to 1"),
    value("verifiers.judge.timeout_s", "inf", "finite"),
    value("verifiers.judge.url", "host:8000", "http://host:8000/v1"),
    value("verifiers.judge.url", "http://user:secret@host/v1", "api_key_env"),
    value("verifiers.judge.api_key_env", "my key", "match pattern"),
    value("verifiers.reward_model.zero_and_unit", "[0.0, 0.0]", "greater than 0"),
    value("verifiers.reward_model.squash", "tanh", "'sigmoid' or 'clamp'"),
    value("weights.store", "s3", 'module:function or "auto" or "file" or "ray"'),
    value("weights.publish_every", "3", "schedule.max_lag"),
    value("checkpoint.every", "0", "greater than or equal to 1"),
    value("checkpoint.keep", "0", "greater than or equal to 1"),
    value("evaluation.every", "0", "greater than or equal to 1"),
    value("evaluation.samples", "0", "greater than or equal to 1"),
    value("evaluation.samples", "4", "evaluation.temperature", "over 0"),
    value("evaluation.temperature", "0.001", "set it to 0.01 or more", "0 for greedy sampling"),
    value("evaluation.temperature", "-0.1", "greater than or equal to 0"),
    value("evaluation.limit", "0", "greater than or equal to 1"),
    value("cluster.gpus_per_node", "-1", "greater than or equal to 0"),
    value("cluster.address", "10.0.0.1", "HOST:PORT"),
    value("cluster.address", "10.0.0.1:port", "HOST:PORT"),
    value("cluster.address", "10.0.0.1:99999", "HOST:PORT"),
    value("simulation.solve_rate", "2", "less than or equal to 1"),
    value("simulation.tokens_per_s", "0", "greater than 0"),
]

LINES = [
    line("unknown section", "--lerner.learning_rate", "1", says=("lerner", "'learner'")),
    line("unknown key", "--learner.learnig_rate", "1", says=("learner.learnig_rate", "'learning_rate'")),
    line(
        "an attention that cannot share rows",
        *("--learner.ranks_per_node", "2", "--learner.sequence_parallel", "2", "--learner.attention", "eager"),
        says=("learner.sequence_parallel = 2", 'learner.attention = "eager"', '"sdpa"'),
    ),
    line("a value in place of a section", "--learner", "3", says=("--learner", "a section", "--section.key value")),
    line("a section in place of a value", "--learner.eps.x", "3", says=("learner.eps", "number")),
    line("a key of a key", "--run.seed", "1", "--run.seed.x", "3", says=("--run.seed.x", "not a section")),
    line(
        "a key of another section", "--learner.max_lag", "4", says=("learner.max_lag", "did you mean schedule.max_lag?")
    ),
    line("a key without its section", "--max_lag", "4", says=("--max_lag", "did you mean --schedule.max_lag?")),
    line("an option with a typo", "--stpes", "4", says=("--stpes", "did you mean '--steps'?")),
    line(
        "a table and a key of it",
        *("--verifiers.weights.math", "1", "--verifiers.weights", "{math = 2}"),
        says=("verifiers.weights and verifiers.weights.math", "write one table"),
    ),
    line("unknown option", "--nonsense", says=("--nonsense", "--section.key value")),
    line("a stray word", "stray", says=("stray", "--section.key value")),
    line("a key without a value", "--schedule.max_lag", says=("--schedule.max_lag", "needs a value")),
    line("a key twice", "--run.seed", "1", "--run.seed", "2", says=("run.seed", "2 times", "keep one")),
    line("a key twice, once with =", "--run.seed", "1", "--run.seed=2", says=("run.seed", "2 times", "keep one")),
    line("an option and its key", "--steps", "3", "--schedule.steps", "4", says=("schedule.steps", "keep one")),
    line("an option twice", "--name", "a", "--name", "b", says=("--name", "2 times", "keep one")),
    line("strict and not", "--strict-data", "--data.strict", "false", says=("data.strict", "keep one")),
    line("--change alone", "--change", says=("--change", "--resume")),
    line("steps that are no number", "--steps", "many", says=("--steps", "invalid int")),
    line(
        "a split over cores of two", "--learner.cores", "[0]", "--actors.cores", "[0]", says=("both name 0", "each of")
    ),
    line(
        "an unknown weight", "--verifiers.weights.mth", "2", says=("verifiers.weights", "'mth'", "did you mean 'math'")
    ),
    line("a weight without a function", "--verifiers.weights.length", "1", says=("verifiers.weights", "'length'")),
    line("an unknown default", "--data.default_verifier", "mat", says=("data.default_verifier", "'math'")),
    line(
        "a function of no form", "--verifiers.functions", '["reward.py"]', says=("verifiers.functions", "file.py:fun")
    ),
    line("a function's weight", "--verifiers.functions", '["r.py:f*x"]', says=("verifiers.functions", "'x'", "write")),
    line(
        "a judge's template that is missing", "--verifiers.judge.template", "{w}/no.txt", says=("judge.template", "no.")
    ),
    line(
        "a reference template that is missing",
        *("--verifiers.judge.reference_template", "{w}/no.txt"),
        says=("verifiers.judge.reference_template", "No such file"),
    ),
    line("Redis over HTTP", "--queue.url", "http://127.0.0.1:6379", says=("queue.url", "redis://host:6379/0")),
    line("Redis without a scheme", "--queue.url", "127.0.0.1:6379", says=("queue.url", "redis://host:6379/0")),
    line("Redis with a password", "--queue.url", "redis://:pw@host:1/0", says=("queue.url", "OLMORL_REDIS_PASSWORD")),
    line(
        "Redis with a port of letters", "--queue.url", "redis://host:port/0", says=("queue.url", "redis://host:6379/0")
    ),
    line("Redis with a database of letters", "--queue.url", "redis://host:1/db", says=("queue.url", "number")),
    line("sentinels without a service", "--queue.url", "redis+sentinel://h:1", says=("queue.url", "service")),
    line(
        "engines over the GPUs", "--learner.device", "cuda", "--actors.tensor_parallel", "16", says=("tensor_par", "8")
    ),
    line(
        "more engines than GPUs",
        *("--cluster.gpus_per_node", "4", "--actors.engines_per_node", "3", "--actors.tensor_parallel", "2"),
        says=("actors.engines_per_node x actors.tensor_parallel = 6", "cluster.gpus_per_node"),
    ),
    line(
        "more ranks than GPUs",
        *("--cluster.gpus_per_node", "2", "--learner.ranks_per_node", "4"),
        says=("learner.ranks_per_node = 4", "cluster.gpus_per_node"),
    ),
    line("a template of no file", "--model.chat_template", "nope.jinja", says=("model.chat_template", "nope.jinja")),
    line("a template cut off", "--model.chat_template", "{% if x %}", says=("model.chat_template", "line 1")),
    line(
        "a template with a typo",
        "--model.chat_template",
        "{% fro m in messages %}",
        says=("model.chat_template", "fro"),
    ),
    line("a filter that is none", "--model.chat_template", "{{ messages|jsn }}", says=("model.chat_template", "jsn")),
    line(
        "a mask that masks everything",
        *("--objective.rho", "0.5", "--objective.rho_kind", "mask"),
        says=("objective.rho", "set rho to 1"),
    ),
    line(
        "compiled layers under ZeRO-3",
        *("--learner.compile", "true", "--learner.zero_stage", "3"),
        says=("learner.compile", "learner.zero_stage up to 2", "mlp_tiles = 1"),
    ),
    line(
        "a cap's kind without a cap",
        *("--objective.rho", "off", "--objective.rho_kind", "mask"),
        says=("objective.rho_kind", "set objective.rho"),
    ),
    line(
        "files that go through Ray",
        *("--weights.store", "ray", "--weights.directory", "/tmp"),
        says=("weights.directory", 'weights.store = "file"'),
    ),
    line("a weight of 0", "--data.train", '["{w}/data.jsonl:0"]', says=("data.train", "data.jsonl:0", "over 0")),
    line("a weight below 0", "--data.train", '["{w}/data.jsonl:-1"]', says=("data.train", "data.jsonl:-1", "over 0")),
    line("a weight of nan", "--data.train", '["{w}/data.jsonl:nan"]', says=("data.train", "data.jsonl:nan", "over 0")),
    line("a weight without end", "--evaluation.data", '["o/d:inf"]', says=("evaluation.data", "o/d:inf", "over 0")),
    line("resume without a run", "--resume", says=("no run to resume", "leave out --resume")),
]

RECIPES = [
    files("a recipe that is not TOML", write("recipe.toml", "[run\n"), "recipe.toml", "line 1"),
    files("a recipe of bytes", write("recipe.toml", bytes(range(256))), "recipe.toml", "cannot be read"),
    files("a recipe that is missing", remove("recipe.toml"), "recipe.toml", "deploy/recipes/"),
    files("a section that is a value", write("recipe.toml", "data = 3\n"), "data", "section", "train"),
    files("a key given twice", write("recipe.toml", "[run]\nseed = 1\nseed = 2\n"), "recipe.toml", "line 3"),
]

PLACES = [
    Case("no GPU here", ("--learner.device", "cuda"), ('learner.device = "cuda"', "no NVIDIA GPU", "--ray-address")),
    Case("no GPUs here", ("--cluster.gpus_per_node", "2"), ("cluster.gpus_per_node", "no NVIDIA GPU", "leave it out")),
    Case("two nodes on one machine", ("--learner-nodes", "2"), ("2 learner node(s)", "--ray-address")),
    Case("a file for a folder", ("--run.directory", "{w}/recipe.toml"), ("recipe.toml/t", "set run.directory")),
    Case("a folder that cannot be", ("--run.directory", "/proc/nowhere"), ("/proc/nowhere", "set run.directory")),
    Case("a name that is too long", ("--run.directory", "x" * 300), ("File name too long", "set run.directory")),
    Case(
        "a Redis that is not there",
        ("--queue.url", "redis://127.0.0.1:1/0", "--queue.outage_deadline_s", "0.3"),
        ("127.0.0.1:1", "queue.url"),
    ),
    Case(
        "a sentinel that is not there",
        ("--queue.url", "redis+sentinel://127.0.0.1:1/s/0", "--queue.outage_deadline_s", "0.3"),
        ("127.0.0.1:1", "queue.url"),
    ),
]

MODELS = [
    Case(
        "more ranks a row than attention heads",
        ("--learner.ranks_per_node", "4", "--learner.sequence_parallel", "4"),
        ("learner.sequence_parallel = 4", "2 attention heads and 2 key heads", "set it to 2"),
    ),
    Case("a path that is missing", ("--model.path", "./nope"), ("./nope", "no such model folder")),
    Case("a file for a model", ("--model.path", "{w}/data.jsonl"), ("data.jsonl", "no such model folder")),
    Case("a misspelt model folder", ("--model.path", "{w}/modl"), ("{w}/modl", "no such model folder")),
    Case(
        "a hub name",
        ("--model.path", "nobody/nothing"),
        ("model.path: nobody/nothing", "no such folder here", "HF_HUB"),
    ),
    Case(
        "a tokenizer of the hub", ("--model.tokenizer", "nobody/none"), ("model.tokenizer: nobody/none", "no such fold")
    ),
    Case("a folder without a model", ("--model.path", "{w}"), ("no config.json", "model.path")),
    files("a configuration cut off", cut("model/config.json", 0.5), "config.json", "not a model configuration"),
    files("a configuration of a list", write("model/config.json", "[]"), "config.json", "not a model configuration"),
    files("a configuration without a name", write("model/config.json", "{}"), "config.json", "save_pretrained"),
    files("no weights", remove("model/model.safetensors"), "no *.safetensors", "save_pretrained"),
    files("weights of 0 bytes", write("model/model.safetensors", b""), "model.safetensors", "download it again"),
    files("weights of 5 bytes", write("model/model.safetensors", b"abcde"), "model.safetensors", "download it again"),
    files("weights cut in the header", cut("model/model.safetensors", 0.002), "header is longer", "download it again"),
    files("weights cut in half", cut("model/model.safetensors", 0.5), "cut off or damaged", "download it again"),
    files("weights cut at the end", cut("model/model.safetensors", 0.999), "cut off or damaged", "download it again"),
    files("weights of noise", write("model/model.safetensors", bytes(range(256)) * 9), "header is longer", "download"),
    files(
        "a pointer of git-lfs",
        write("model/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "model.safetensors",
        "git lfs pull",
    ),
    files(
        "a header that is no object",
        write("model/model.safetensors", (2).to_bytes(8, "little") + b"[]"),
        "header cannot be read",
        "download it again",
    ),
    files(
        "an index that names a missing file",
        write("model/model.safetensors.index.json", json.dumps({"weight_map": {"x": "model-00002.safetensors"}})),
        "model-00002.safetensors is missing",
        "download it again",
    ),
    files("an index of noise", write("model/model.safetensors.index.json", "nope"), "index.json", "download it again"),
    files("another vocabulary", configured(vocab_size=300), "embed_tokens.weight", "[260, 64], not [300, 64]"),
    files("another width", configured(hidden_size=32), "do not fit config.json", "of one model"),
    files("another depth", configured(num_hidden_layers=3), "layers.2", "is missing", "of one model"),
    files("fewer layers", configured(num_hidden_layers=1), "layer 1 is beyond", "of one model"),
    files("other heads", configured(num_key_value_heads=1), "k_proj.weight", "do not fit config.json"),
    files("another inner width", configured(intermediate_size=64), "gate_proj.weight", "do not fit config.json"),
    files("a head that is missing", weights(lambda t: t.pop("lm_head.weight")), "lm_head.weight is missing", "of one"),
    files(
        "a layer's tensor that is missing",
        weights(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
        "layers.1.mlp.up_proj.weight is missing",
        "of one model",
    ),
    files(
        "too few positions", configured(max_position_embeddings=100), "128 tokens", "100 positions", "lower sampling."
    ),
    Case("a KV cache for no answer", ("--actors.kv_cache_gib", "1e-6"), ("actors.kv_cache_gib = 1e-06", "set it to")),
    files("no tokenizer", remove("model/tokenizer.json"), "no tokenizer there", "model.tokenizer"),
    Case(
        "a tokenizer's folder without one", ("--model.tokenizer", "{w}"), ("{w}: no tokenizer there", "model.tokenizer")
    ),
    files(
        "a tokenizer cut off", cut("model/tokenizer.json", 0.5), "tokenizer.json: not a tokenizer", "download it again"
    ),
    files("a tokenizer of noise", write("model/tokenizer.json", "{}"), "tokenizer.json: not a tokenizer", "download"),
    files(
        "a tokenizer's settings of noise", write("model/tokenizer_config.json", "{"), "tokenizer_config.json: not JSON"
    ),
    files(
        "a tokenizer larger than the embedding",
        few_embeddings,
        "writes tokens up to",
        "model.tokenizer",
        arguments=("--model.path", "{w}/small"),
    ),
    files(
        "a template of the folder that is cut off", tokenizer("{% for m in messages %}"), "chat template of", "line 1"
    ),
    files(
        "no template for turns",
        tokenizer(None),
        "turns.jsonl:1",
        "model.chat_template",
        "plain string",
        arguments=("--data.train", '["{w}/turns.jsonl"]'),
    ),
    files(
        "a template that refuses all", tokenizer("{{ raise_exception('never') }}"), "refuses all", "model.chat_template"
    ),
    files("a template of numbers", tokenizer("{{ messages[0].content + 1 }}"), "refuses all", "model.chat_template"),
    files("a template that writes the same", tokenizer("Solve it."), "all 8 prompts", "model.chat_template"),
    files("a template that writes nothing", tokenizer("{# nothing #}"), "data.jsonl", "the prompt is empty"),
]

BEFORE_RAY = [
    files("recurrent layers", configured(layer_types=["linear_attention"] * 2), "recurrent", "model.path"),
    files("an end token beyond the vocabulary", configured(eos_token_id=10**6), "config.json: eos_token_id", "1000000"),
    Case("checkpoints that do not fit", ("--checkpoint.keep", "1000000000"), ("run.directory", "checkpoint.keep")),
    Case(
        "a teacher that is not there",
        ("--distillation.teachers.big.url", "http://127.0.0.1:9"),
        ("distillation.teachers.big", "127.0.0.1:9", "vllm serve"),
    ),
    Case(
        "rows without a teacher",
        ("--distillation.teachers", '{big = {url = "http://127.0.0.1:9", sources = ["no.jsonl"]}}'),
        ("none teaches the rows of", "data.jsonl", "distillation.with_rewards"),
    ),
]

DATA = [
    Case("no data", ("--data.train", "[]"), ("data.train is empty", 'train = ["problems.jsonl"]')),
    Case("data that are missing", ("--data.train", '["{w}/no.jsonl"]'), ("no.jsonl", "no such file or folder")),
    Case("data at home", ("--data.train", '["~/no.jsonl"]'), ("~/no.jsonl", "~ is not expanded")),
    Case("a folder without data", ("--data.train", '["{w}/model"]'), ("{w}/model", "no .jsonl and no .parquet")),
    Case("a hub data set", ("--data.train", '["nobody/nothing"]'), ("nobody/nothing", "no such folder here", "HF_HUB")),
    Case("held-out data that are missing", ("--evaluation.data", '["{w}/no.jsonl"]'), ("no.jsonl", "no such file")),
    Case(
        "held-out sets of one name",
        ("--evaluation.data", '["{w}/data.jsonl", "{w}/data.jsonl"]'),
        ("evaluation.data", "name=path"),
    ),
    Case(
        "a held-out set named train",
        ("--evaluation.data", '["train={w}/data.jsonl"]'),
        ("evaluation.data", "name=path"),
    ),
    Case(
        "held-out rows that are trained on",
        ("--evaluation.data", '["{w}/data.jsonl"]', "--strict-data"),
        ("evaluation.data", "8 of 8 prompts of data are in data.train", "remove the prompts from one of the two"),
    ),
    Case(
        "used up before the first step", ("--data.epochs", "1", "--schedule.prompts_per_step", "9"), ("data.train", "9")
    ),
    Case("a limit under all prompts", ("--data.max_prompt_tokens", "3"), ("data.max_prompt_tokens = 3", "truncate")),
    files("an empty file", write("data.jsonl", ""), "data.jsonl", "is empty"),
    files("empty lines", write("data.jsonl", "\n\n \n"), "data.jsonl", "is empty"),
    files("an empty array", write("data.jsonl", "[]"), "data.jsonl", "is empty"),
    files("bytes", write("data.jsonl", bytes(range(128, 256)) * 8), "data.jsonl", "UTF-8", "one JSON object a line"),
    files("text", write("data.jsonl", "What is 1 + 1?\n"), "data.jsonl:1: not JSON", "one JSON object a line"),
    files("a line cut off", write("data.jsonl", rows({"prompt": "a"}) + '{"prompt": "b'), "data.jsonl:2: not JSON"),
    files("numbers", write("data.jsonl", "1\n2\n"), "data.jsonl:1", "not a JSON object but a int"),
    files("an array of numbers", write("data.jsonl", "[1, 2]"), "element 1", "not a JSON object but a int"),
    files("an array cut off", write("data.jsonl", '[{"prompt": "a"},'), "data.jsonl: not JSON", "one object a line"),
    files(
        "an object over lines",
        write("data.jsonl", '{\n"prompt": "a"\n}\n'),
        "data.jsonl:1: not JSON",
        "one JSON object",
    ),
    files(
        "no prompt",
        write("data.jsonl", rows({"question": "a", "answer": "b"})),
        "data.jsonl:1",
        "no prompt",
        "messages",
    ),
    files(
        "an empty prompt", write("data.jsonl", rows({"prompt": "", "dataset": "math", "ground_truth": "1"})), "is empty"
    ),
    files("a prompt of a number", write("data.jsonl", rows({"prompt": 3})), "data.jsonl:1", "neither a list of turns"),
    files("turns without a role", write("data.jsonl", rows({"messages": [{"content": "a"}]})), "no role or no content"),
    files(
        "turns that ask nothing",
        write("data.jsonl", rows({"messages": [{"role": "assistant", "content": "a"}]})),
        "asks nothing",
    ),
    files(
        "no label",
        write("data.jsonl", rows({"prompt": "a", "dataset": "math"})),
        "data.jsonl:1",
        "ground_truth is miss",
    ),
    files("no verifier", write("data.jsonl", rows({"prompt": "a", "ground_truth": "1"})), "data.default_verifier"),
    files(
        "an unknown verifier",
        write("data.jsonl", rows({"prompt": "a", "ground_truth": "1", "dataset": "mth"})),
        "data.jsonl:1",
        "did you mean 'math'",
    ),
    files(
        "a label that is no label",
        write("data.jsonl", rows({"prompt": "a", "ground_truth": {"a": 1}, "dataset": "code"})),
        "data.jsonl:1",
        "no usable label",
    ),
    files(
        "labels for fewer verifiers",
        write("data.jsonl", rows({"prompt": "a", "ground_truth": ["1"], "dataset": ["math", "f1"]})),
        "2 verifiers",
        "1 labels",
    ),
    files(
        "one bad row among good ones, strictly",
        write("data.jsonl", rows({"prompt": "a", "ground_truth": "1", "dataset": "math"}, {"prompt": "b"})),
        "data.jsonl:2",
        "without data.strict",
        arguments=("--strict-data",),
    ),
    files(
        "a Parquet that is none",
        write("data.parquet", b"PAR1 and no more"),
        "data.parquet",
        "not readable as Parquet",
        arguments=("--data.train", '["{w}/data.parquet"]'),
    ),
]

FUNCTIONS = [
    Case(
        "a function's file that is missing", ("--verifiers.functions", '["{w}/no.py:f"]'), ("no.py", "does not import")
    ),
    Case(
        "a module that is missing", ("--verifiers.functions", '["no_such_module:f"]'), ("no_such_module", "PYTHONPATH")
    ),
    Case("a function that is missing", ("--verifiers.functions", '["{w}/reward.py:nope"]'), ("reward.py", "nope")),
    Case(
        "a function that wants a column",
        ("--verifiers.functions", '["{w}/reward.py:wants"]'),
        ("reward.py:wants", "takes 'solution', and no row has such a column", "dataset, ground_truth"),
    ),
    Case("a constant for a function", ("--verifiers.functions", '["{w}/reward.py:LIMIT"]'), ("reward.py", "LIMIT")),
    files(
        "a file with an error",
        write("reward.py", "import nothing_here\n"),
        "reward.py",
        "nothing_here",
        arguments=("--verifiers.functions", '["{w}/reward.py:short"]'),
    ),
    files(
        "a file that is no Python",
        write("reward.py", "def short(:\n"),
        "reward.py",
        "SyntaxError",
        arguments=("--verifiers.functions", '["{w}/reward.py:short"]'),
    ),
    Case(
        "a weight for another function",
        ("--verifiers.functions", '["{w}/reward.py:short"]', "--verifiers.weights.shrt", "2"),
        ("verifiers.weights", "'shrt'", "did you mean 'short'"),
    ),
    files(
        "a judge's template without places",
        write("judge.txt", "Is it good?"),
        "judge.txt",
        "lacks {answer}",
        arguments=("--verifiers.judge.template", "{w}/judge.txt"),
    ),
    files(
        "a judge's template with doubled braces",
        write("judge.txt", "{{question}} {{answer}}"),
        "single braces",
        arguments=("--verifiers.judge.template", "{w}/judge.txt"),
    ),
]

RESUMES = [
    files("a run that is there", made_run(), "holds a run already", "--resume"),
    files(
        "a forgotten override",
        made_run(schedule={"max_lag": 4}),
        "schedule.max_lag: 4 -> 1",
        "--resume --change",
        arguments=("--resume",),
    ),
    files(
        "two forgotten overrides",
        made_run(schedule={"steps": 200}, learner={"learning_rate": 1e-5}),
        "schedule.steps: 200 -> 100",
        "learner.learning_rate: 1e-05 -> 1e-06",
        "--change",
        arguments=("--resume",),
    ),
    files(
        "another preset",
        made_run(),
        "objective.kl_beta: 0.0 -> 0.04",
        "--change",
        arguments=("--resume", "--objective.preset", "grpo"),
    ),
    files(
        "a weight that is gone",
        made_run(verifiers={"weights": {"math": 2.0}}),
        "verifiers.weights.math: 2.0 -> not set",
        "--change",
        arguments=("--resume",),
    ),
    files(
        "a kept recipe that cannot be read",
        made_run("[run\n"),
        "config.toml",
        "--resume --change",
        arguments=("--resume",),
    ),
    files(
        "a checkpoint that is not there",
        made_run(),
        "no complete checkpoint of step 7",
        "there are: none",
        arguments=("--from-step", "7"),
    ),
]

DRY = [*BOUNDS, *LINES]
CASES = [*DRY, *RECIPES, *PLACES, *MODELS, *BEFORE_RAY, *DATA, *FUNCTIONS, *RESUMES]
