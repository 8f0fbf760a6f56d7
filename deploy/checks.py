"""What a run needs, piece by piece: each check says what it found, or raises an error that contains the fix."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.plan import Plan
from olmorl.deploy.preflight import check_data, check_functions, check_model, check_whole_paths
from olmorl.deploy.rundir import unusable
from olmorl.errors import ModelError, ResourceError, Unscorable
from olmorl.learner.recovery import RunFiles
from olmorl.messages import Completion, Prompt, Span, Version
from olmorl.verifiers.code import selftest

MIB, GIB = 2**20, 2**30
MASTER_AND_MOMENTS_BYTES = 12
"""Of a parameter in a checkpoint, beside the model's own dtype: fp32 master weight and Adam's two moments."""
VERSIONS_IN_MEMORY = 3
"""The one in use, the one being staged, and on the learner's host the one being published."""
RAY_OBJECTS_BYTES = 512 * MIB
KNOWN_GOOD = (
    ("math", r"\frac{1}{2}", r"The result is \boxed{0.5}."),
    ("math", r"x^2-1", r"So we get \boxed{(x-1)(x+1)}."),
    ("ifeval", {"instruction_id": ["punctuation:no_comma"], "kwargs": [{}]}, "No pause in here"),
)


class Size(NamedTuple):
    """Of a model."""

    architecture: str
    parameters: int
    weights_bytes: int


@lru_cache
def size_of(path: str, dtype: str, trust_remote_code: bool) -> Size:
    """Counted on a model without memory. Raises ModelError for what is not a causal language model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    check_model(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"model.path = {path}: {str(error).partition(chr(10))[0]}") from None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(type(model).__name__, parameters, parameters * (4 if dtype == "float32" else 2))


def _size(settings: Config) -> Size:
    model = settings.model
    return size_of(model.path, model.dtype, model.trust_remote_code)


# --- once -------------------------------------------------------------------------------------------


def data(settings: Config) -> str:
    """The files that are named are there, and the evaluation sets can be told apart."""
    from olmorl.learner.prompts import evaluation_names

    check_data(settings)
    check_whole_paths(settings)
    names = evaluation_names(settings.evaluation)
    return f"{len(settings.data.train)} to train on, {len(names)} to evaluate with"


def model(settings: Config) -> str:
    """The model is one that is trained, and its parameters are all there."""
    from olmorl.actors.staged import checkpoint_shapes

    size = _size(settings)
    folder = Path(settings.model.path)
    where = "on the hub"
    if folder.is_dir():
        where = f"{len(checkpoint_shapes(folder))} tensors in {folder}"
    return f"{size.architecture}, {size.parameters:,} parameters, {_bytes(size.weights_bytes)}; {where}"


def tokenizer(settings: Config) -> str:
    """The tokenizer fits the model and its template renders."""
    from transformers import AutoConfig

    from olmorl.learner.prompts import open_tokenizer

    check_model(settings.model.path)
    found = open_tokenizer(settings.model)
    turns = [{"role": "user", "content": "What is 6 x 7?"}]
    if not found.chat_template:
        raise ModelError(f"{settings.model.path}: the tokenizer has no chat template; give one in model.chat_template")
    ids = found.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=False)
    vocabulary = AutoConfig.from_pretrained(
        settings.model.path, trust_remote_code=settings.model.trust_remote_code
    ).vocab_size
    if max(ids) >= vocabulary:
        raise ModelError(
            f"the tokenizer writes token {max(ids)} and the model knows {vocabulary}: name the model's own in "
            "model.tokenizer"
        )
    if found.eos_token_id is None:
        raise ModelError(f"{settings.model.path}: the tokenizer has no end-of-sequence token: no answer would ever end")
    return f"{len(found):,} tokens for {vocabulary:,} rows; a question of one line is {len(ids)} tokens"


def functions(settings: Config) -> str:
    """Reward functions of people's own import and can be called."""
    check_functions(settings)
    return f"{len(settings.verifiers.functions)} of your own"


def redis(settings: Config) -> str:
    """The queues survive their server's restart."""
    if settings.queue.url is None:
        from olmorl.queues.embedded import find_server

        return f"embedded ({find_server()}), append-only file, fsync {settings.queue.fsync}"
    from olmorl.deploy.access import QueueAccess
    from olmorl.queues.persistence import examine

    access = QueueAccess.of_recipe(settings.queue.url)
    return asyncio.run(examine(access.url, access.environment, settings.queue))


# --- on the hosts -----------------------------------------------------------------------------------


def disk(settings: Config) -> str:
    """The run directory has room for the checkpoints that are kept, and one being written."""
    size = _size(settings)
    kept, one = settings.checkpoint.keep + 1, MASTER_AND_MOMENTS_BYTES * size.parameters
    there = sum(file.stat().st_size for file in RunFiles(settings.run_dir).checkpoints.rglob("*") if file.is_file())
    needed = max(one, kept * one - there) + size.weights_bytes
    try:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(settings.run_dir, error) from None
    return _room(
        settings.run_dir, needed, f"{kept} checkpoints", "free some, lower checkpoint.keep, or set run.directory"
    )


def shared_memory(settings: Config) -> str:
    """Shared memory holds the versions of the weights that live side by side."""
    needed = VERSIONS_IN_MEMORY * _size(settings).weights_bytes + RAY_OBJECTS_BYTES
    return _room(
        Path("/dev/shm"),
        needed,
        f"{VERSIONS_IN_MEMORY} versions of the weights and Ray's objects",
        "remount it larger (mount -o remount,size=...), or give the container more (--shm-size)",
    )


def _room(folder: Path, needed: int, what: str, fix: str) -> str:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ResourceError(f"{folder}: {_bytes(free)} free, and {what} need {_bytes(needed)}: {fix}")
    return f"{_bytes(free)} free in {folder}, {_bytes(needed)} needed for {what}"


def ports(settings: Config) -> str:
    """The host can listen on its own address in the cluster."""
    address = wiring.own_address(settings)
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise ResourceError(
                f"cannot listen on {address}: {error.strerror}; give Ray this host's own address (--node-ip-address)"
            ) from None
    return f"listens on {address}"


def verifiers(settings: Config) -> str:
    """Answers that are known to be right are scored so. A missing sandbox is only said: few runs have programs."""
    return f"{asyncio.run(_verify_known_good(settings))}; {asyncio.run(selftest.describe(settings.verifiers))}"


async def _verify_known_good(settings: Config) -> str:
    scorer = wiring.scorer(settings)
    await scorer.start()
    try:
        for dataset, label, text in KNOWN_GOOD:
            prompt, completion = _question(dataset, label), _answer(text)
            (verdict,) = (await scorer.verify(prompt, completion)).values()
            if verdict.reward != 1.0:
                raise Unscorable("self_test", f"{dataset}: {text!r} for {label!r} came out as {verdict}")
    finally:
        await scorer.stop()
    return f"{len(KNOWN_GOOD)} known answers are right"


def _question(dataset: str, label: object) -> Prompt:
    return Prompt(
        draw_id=0,
        row="preflight:1",
        messages="",
        token_ids=np.zeros(1, np.int32),
        datasets=(dataset,),
        ground_truths=(label,),
        group_size=2,
        min_version=Version(0, 0),
    )


def _answer(text: str) -> Completion:
    return Completion(
        index=0,
        token_ids=np.zeros(1, np.int32),
        logprobs=np.zeros(1, np.float32),
        spans=(Span(Version(0, 0), 0, 1),),
        finish_reason="stop",
        text=text,
    )


def _bytes(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.1f} MiB"


ONCE: Mapping[str, Callable[[Config], str]] = {
    "data": data,
    "model": model,
    "tokenizer": tokenizer,
    "reward functions": functions,
    "redis": redis,
}
ON_HOSTS: Mapping[str, Callable[[Config], str]] = {
    "disk": disk,
    "shared memory": shared_memory,
    "ports": ports,
    "verifiers": verifiers,
}
HOLDERS: Mapping[str, Sequence[Callable[[Plan], Mapping[str, float]]]] = {
    "run directory": (Plan.learner_bundle,),
    "weights directory": (Plan.learner_bundle, Plan.engine_bundle),
    "disk": (Plan.learner_bundle,),
    "shared memory": (Plan.learner_bundle, Plan.engine_bundle),
}
"""Who brings the need along, where not every host has it: ranks write checkpoints, and engines too stage weights. The
first two are folders that have to be the launcher's."""
WITHOUT_A_MODEL = ("reward functions", "redis", "ports")
"""What a simulated run needs of all that."""


def concerns(check: str, placed: Plan, resources: Mapping[str, float]) -> bool:
    """Whether a host with these resources of Ray may come to need what the check looks at."""
    bundles = [bundle(placed) for bundle in HOLDERS.get(check, ())]
    return not bundles or any(
        all(resources.get(name, 0.0) >= amount for name, amount in bundle.items()) for bundle in bundles
    )
