"""Contradictions in a recipe, found without reading model or data: also by `--dry-run`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches

from olmorl.config import Config
from olmorl.deploy.cluster import hardware
from olmorl.deploy.cluster.placement import plan
from olmorl.errors import ConfigError, DataError, ResourceError, of_key
from olmorl.extension import load_function
from olmorl.messages import REFERENCE, TEACHER
from olmorl.simulation import Simulation


def check_recipe(settings: Config) -> None:
    """Check names, places, addresses and templates.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    if settings.run.mode == "real" and settings.simulation != Simulation():
        raise ConfigError('[simulation] is for olmorl-plan and tests: remove it, or set run.mode = "simulated"')
    check_objective(settings)
    check_own_code(settings)
    check_places(settings)
    check_names(settings)
    check_weights(settings)
    check_address(settings)
    check_templates(settings)
    check_passed_on(settings)
    check_best(settings)


def check_best(settings: Config) -> None:
    """The metric of `checkpoint.best` is of an evaluation set of the recipe."""
    from olmorl.learner.data.loader import evaluation_names

    metric = settings.checkpoint.best
    names = evaluation_names(settings.evaluation) if metric else []
    if metric and not metric.startswith(tuple(f"eval_{name}_" for name in names)):
        known = " or ".join(f"eval_{name}_accuracy" for name in names)
        raise ConfigError(f"checkpoint.best = {metric}: no metric of evaluation.data; write for instance {known}")


def check_objective(settings: Config) -> None:
    """The switches of the objective go together. None counts the branches of an agent as answers."""
    from olmorl.learner.algorithm.presets import with_teachers

    switches = with_teachers(settings)
    if settings.learner.offload_reference and not switches.needs_reference:
        raise ConfigError("learner.offload_reference needs a KL term: set objective.kl_beta over 0, or leave it out")
    counts_sequences = {
        "objective.normalize": switches.normalize != "token",
        "objective.ratio": switches.ratio == "sequence",
        "objective.rho_kind": switches.rho_kind in ("sequence", "sequence_mask"),
        "objective.advantage": switches.advantage == "gdpo",
    }
    for key, counts in counts_sequences.items():
        if settings.episodes.agent and counts:
            raise ConfigError(
                f"{key} counts sequences, and an agent that rewrites its history makes several in an episode: set "
                'objective.preset = "olmorl", or another one that counts tokens'
            )


def check_own_code(settings: Config) -> None:
    """The functions that the recipe names import here, and a surrogate can be called. `verifiers.functions`: later."""
    if settings.data.reader is not None:
        load_function("data.reader", settings.data.reader)
    for place in settings.verifiers.own.values():
        load_function("verifiers.own", place)
    if ":" in settings.weights.store:
        load_function("weights.store", settings.weights.store)
    if ":" in (settings.objective.clip or ""):
        from olmorl.learner.algorithm.objective import check_surrogate
        from olmorl.learner.algorithm.presets import resolve

        check_surrogate(resolve(settings.objective, settings.longest_answer))


def check_places(settings: Config) -> None:
    """The cores exist on this machine, and a node has enough GPUs for its part of the plan."""
    if settings.cluster.address is None:
        _check_cores("learner.cores", settings.learner.cores)
        _check_cores("actors.cores", settings.actors.cores)
    if settings.run.mode == "real" and not hardware.is_open(settings):
        hardware.check_gpus_of_a_node(settings)


def _check_cores(key: str, cores: Sequence[int] | None) -> None:
    here = sorted(os.sched_getaffinity(0))
    if missing := [core for core in cores or () if core not in here]:
        raise ConfigError(
            f"{key} names {', '.join(map(str, missing))}, and this process may use the cores "
            f"{', '.join(map(str, here))}: name some of those, or leave {key} out"
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
    here = hardware.gpus_here()
    needed = placed.devices
    if here == 0:
        raise ResourceError(
            f"{hardware.asked_for(settings)}, and this machine shows no NVIDIA GPU: leave it out to run on the CPU, "
            "start the run where GPUs are, or join a Ray cluster with --ray-address HOST:PORT"
        )
    if here is not None and needed > here:
        raise ResourceError(
            f"the plan takes {needed} GPUs ({placed.ranks} learner ranks, {placed.engines} engines x "
            f"actors.tensor_parallel = {placed.gpus_per_engine}), and this machine has {here}: lower "
            "learner.ranks_per_node, actors.engines_per_node or actors.tensor_parallel, join a Ray cluster with "
            '--ray-address HOST:PORT, or set learner.device = "cpu"'
        )


def check_names(settings: Config) -> None:
    """All named verifiers exist, and so does every function with a weight."""
    verifiers = settings.verifiers
    if not (verifiers.weights or verifiers.functions or verifiers.own or settings.data.default_verifier):
        return
    from olmorl.verifiers.functions.function_scorer import parse
    from olmorl.verifiers.registry import names

    own, named = [function.name for function in parse(verifiers.functions)], names(verifiers)
    taken = {TEACHER: settings.distillation.teachers, REFERENCE: settings.objective.kl_reference}
    for name in taken:
        if taken[name] and name in (*own, *verifiers.own):
            raise ConfigError(f"{name} is the name of the {name}'s verdicts: give your function another name")
    for name in own:
        if name in verifiers.own:
            raise ConfigError(f"verifiers.own and verifiers.functions both name {name!r}: rename one of them")
    default = settings.data.default_verifier
    if default is not None and default not in named:
        raise ConfigError(f"data.default_verifier = {default!r}: no such verifier; {_known(default, named)}")
    for name in verifiers.weights:
        # A verifier that a row names twice has a second key: math#2.
        if name.partition("#")[0] not in named and name not in own:
            raise ConfigError(
                f"verifiers.weights: no verifier and no function of verifiers.functions is named {name!r}; "
                f"{_known(name, [*own, *named])}"
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


def check_passed_on(settings: Config) -> None:
    """vLLM and DeepSpeed accept the options that the recipe passes on. Imports a library only if it gets options."""
    if settings.run.mode == "simulated":
        return
    if settings.actors.vllm:
        from olmorl.actors.vllm_engine.arguments import passed_on

        passed_on(settings.actors.vllm)
    if settings.learner.deepspeed:
        from olmorl.learner.trainer import deepspeed_config

        deepspeed_config.check(settings.model, settings.learner)


def check_templates(settings: Config) -> None:
    """The templates that the recipe names exist and can be parsed."""
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
