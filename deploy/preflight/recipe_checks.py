"""Contradictions in a recipe, found without reading model or data: also by `--dry-run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.cluster.placement import GPUS_OF_A_NODE, Placement, plan
from olmorl.errors import ConfigError, DataError, ResourceError, of_key


def check_recipe(settings: Config) -> None:
    """Check names, places, addresses and templates.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    check_objective(settings)
    check_places(settings)
    check_names(settings)
    check_weights(settings)
    check_address(settings)
    check_templates(settings)


def check_objective(settings: Config) -> None:
    """The switches of the objective go together."""
    from olmorl.learner.algorithm.presets import resolve

    resolve(settings.objective, settings.sampling.max_tokens)


def check_places(settings: Config) -> None:
    """Cores exist on this machine, and the GPUs of a node are enough for what a node of the plan holds."""
    if settings.cluster.address is None:
        _check_cores("learner.cores", settings.learner.cores)
        _check_cores("actors.cores", settings.actors.cores)
    if settings.run.mode == "real":
        _check_gpus_of_a_node(settings, plan(settings))


def _check_cores(key: str, cores: Sequence[int] | None) -> None:
    here = sorted(os.sched_getaffinity(0))
    if missing := [core for core in cores or () if core not in here]:
        raise ConfigError(
            f"{key} names {', '.join(map(str, missing))}, and this process may use the cores "
            f"{', '.join(map(str, here))}: name some of those, or leave {key} out"
        )


def _check_gpus_of_a_node(settings: Config, placed: Placement) -> None:
    tensor_parallel = settings.actors.tensor_parallel
    if not placed.on_gpu:
        if tensor_parallel > 1:
            raise ConfigError(
                f"actors.tensor_parallel = {tensor_parallel} splits an engine over GPUs, and this run has none: set it "
                'to 1, or set learner.device = "cuda"'
            )
        return
    given = settings.cluster.gpus_per_node
    there = GPUS_OF_A_NODE if given is None else given
    for key, needed in (
        ("actors.tensor_parallel", tensor_parallel),
        ("actors.engines_per_node x actors.tensor_parallel", placed.engines_per_node * tensor_parallel),
        ("learner.ranks_per_node", placed.ranks_per_node),
    ):
        if needed > there:
            raise ConfigError(
                f"{key} = {needed} is over the GPUs of a node, {there}: lower it, or set cluster.gpus_per_node to what "
                "a node has"
            )


def check_machine(settings: Config) -> None:
    """A run that starts its own Ray fits on this machine.

    Raises:
        ResourceError: it asks for other machines, or for GPUs that are not here.
    """
    if settings.cluster.address is not None:
        return
    placed = plan(settings)
    placed.check_one_machine()
    if settings.run.mode == "simulated" or not placed.on_gpu:
        return
    here = gpus_here()
    needed = placed.ranks + placed.engines * placed.gpus_per_engine
    if here == 0:
        asked = (
            'learner.device = "cuda"'
            if settings.learner.device == "cuda"
            else f"cluster.gpus_per_node = {settings.cluster.gpus_per_node}"
        )
        raise ResourceError(
            f"{asked}, and this machine shows no NVIDIA GPU: leave it out to run on the CPU, start the run where GPUs "
            "are, or join a Ray cluster with --ray-address HOST:PORT"
        )
    if here is not None and needed > here:
        raise ResourceError(
            f"the plan takes {needed} GPUs ({placed.ranks} learner ranks, {placed.engines} engines x "
            f"actors.tensor_parallel = {placed.gpus_per_engine}), and this machine has {here}: lower "
            "learner.ranks_per_node, actors.engines_per_node or actors.tensor_parallel, or join a Ray cluster with "
            "--ray-address HOST:PORT"
        )


def gpus_here() -> int | None:
    """NVIDIA GPUs that this process may use; None where that cannot be told from device files."""
    if Path("/dev/kfd").exists() or Path("/dev/dxg").exists():
        return None
    there = sum(path.name.removeprefix("nvidia").isdecimal() for path in Path("/dev").glob("nvidia*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    return min(there, sum(name.strip() not in ("", "-1", "NoDevFiles") for name in visible.split(",")))


def check_names(settings: Config) -> None:
    """Verifiers that are named exist, and so do the functions that are given weights."""
    verifiers = settings.verifiers
    if not (verifiers.weights or verifiers.functions or settings.data.default_verifier):
        return
    from olmorl.verifiers.functions.function_scorer import parse
    from olmorl.verifiers.registry import NAMES

    own = [function.name for function in parse(verifiers.functions)]
    default = settings.data.default_verifier
    if default is not None and default not in NAMES:
        raise ConfigError(f"data.default_verifier = {default!r}: no such verifier; {_known(default, NAMES)}")
    for name in verifiers.weights:
        # A verifier that a row names twice has a second key: math#2.
        if name.partition("#")[0] not in NAMES and name not in own:
            raise ConfigError(
                f"verifiers.weights: no verifier and no function of verifiers.functions is named {name!r}; "
                f"{_known(name, [*own, *NAMES])}"
            )


def _known(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, 1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"known: {', '.join(names)}"


def check_weights(settings: Config) -> None:
    """The weights of data sets are numbers over 0."""
    from olmorl.learner.data.readers import parse_spec

    for key, texts in (("data.train", settings.data.train), ("evaluation.data", settings.evaluation.data)):
        with of_key(DataError, key):
            for text in texts:
                parse_spec(text)


def check_address(settings: Config) -> None:
    """The address of Redis can be read, and the address of Ray has a port."""
    if settings.queue.url is not None:
        from olmorl.deploy.credentials import QueueAccess
        from olmorl.queues.redis_server.url import parse_url

        access = QueueAccess.of_recipe(settings.queue.url)
        parse_url(access.url, access.environment)
    address = settings.cluster.address
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(
            f'cluster.address = {address!r}: write HOST:PORT as in 10.0.0.1:6379, or "auto" for the Ray running here'
        )


def check_templates(settings: Config) -> None:
    """The templates that the recipe names are there, and are templates."""
    judge = settings.verifiers.judge
    if judge.template is not None or judge.reference_template is not None:
        from olmorl.verifiers.judge.judge_question import JudgeQuestion

        for key, with_reference in (("template", False), ("reference_template", True)):
            try:
                JudgeQuestion(judge, with_reference=with_reference)
            except ConfigError as error:
                raise ConfigError(f"verifiers.judge.{key}: {error}; leave it out for the built-in one") from None
    if settings.model.chat_template is not None and settings.run.mode == "real":
        from olmorl.learner.data.chat_templates import template_of

        template_of(settings.model.chat_template)
