"""Checks before anything starts, without a cluster. Each raises one clear error."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Collection, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from olmorl.config import Config, box_tools
from olmorl.deploy.arguments import Arguments
from olmorl.deploy.credentials import QueueAccess
from olmorl.deploy.demo import demo
from olmorl.deploy.preflight import data_trial, hub, memory, model_fetch, model_folder
from olmorl.deploy.preflight.disk_room import disk_room
from olmorl.deploy.preflight.recipe_checks import check_machine, check_recipe
from olmorl.deploy.preflight.served_models import wait_for_served
from olmorl.deploy.supervision import recipe_history
from olmorl.deploy.supervision.refused_start import check_can_be_made
from olmorl.deploy.tracking.tracking import check_tracking
from olmorl.deploy.view.console import SafeConsole
from olmorl.deploy.view.run_state import finished
from olmorl.errors import ConfigError, DataError, ModelError, ResourceError, UserError, of_key, unwritable
from olmorl.learner.data import chat_templates
from olmorl.learner.data.loader import evaluation_names, named
from olmorl.learner.data.readers import check_there, parse_spec
from olmorl.learner.orchestrator.changes import describe, in_force
from olmorl.learner.orchestrator.recovery import check_free
from olmorl.learner.storage import checkpoint_dir
from olmorl.ports import Row
from olmorl.run_dir import RunFiles


def preflight(settings: Config, arguments: Arguments) -> Config:
    """Check everything that needs no cluster; returns the settings as the run will keep them.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    settings = check_before(settings, arguments)
    check_port(settings)
    if settings.queue.url is not None:
        check_redis(settings)
    rows = None
    if settings.run.mode == "real":
        settings = make_demo(settings)
        check_named(settings)
        settings = model_fetch.fetched(settings, arguments.resume)
        rows = check_files(settings)
        check_disk(settings)
    check_functions(settings, rows)
    if settings.run.mode == "real":
        wait_for_served(settings)
        check_token_scorers(settings)
    return settings


def prepare(settings: Config, arguments: Arguments) -> Config:
    """The checks before the table of host checks; returns the settings as the run will keep them.

    Raises:
        UserError: the run directory, or the recipe itself.
    """
    settings = check_before(settings, arguments)
    if settings.run.mode == "simulated":
        return settings
    settings = make_demo(settings)
    with suppress(ModelError):  # the table shows it
        check_model(settings.model.path)
        hub.check_model(settings.model)
        settings = model_fetch.fetched(settings, arguments.resume)
    return settings


def check_before(settings: Config, arguments: Arguments) -> Config:
    """The run directory and the recipe itself; returns the settings with whole paths."""
    settings = with_named_sandbox(absolute(settings))
    check_recipe(settings)
    check_tracking(settings)
    check_machine(settings)
    if arguments.resume:
        for difference in check_resume(settings, arguments.change, arguments.from_step):
            print(f"changed by this start: {difference}", flush=True)
        for change in in_force(settings, recipe_history.kept_changes(settings.run_dir)).values():
            print(f"changed while the run went on, and kept: {describe(change)}", flush=True)
    else:
        check_directory(settings, resume=False)
    return settings


def check_resume(settings: Config, change: bool, from_step: int | None) -> list[recipe_history.Difference]:
    """There is a run to resume, from that step, and --change covers every difference.

    Raises:
        UserError: one of these does not hold. The message has the fix.
    """
    check_directory(settings, resume=True)
    if from_step is not None:
        with of_key(UserError, "--from-step"):
            checkpoint_dir.pick(RunFiles(settings.run_dir).checkpoints, from_step)
    return recipe_history.check_change(demo.resolve(settings), change)


def over(settings: Config, from_step: int | None) -> str:
    """A message for people when a resume has nothing left to do, else an empty text."""
    is_asked_for_more = from_step is not None or recipe_history.check_change(settings, change=True)
    has_ended = RunFiles(settings.run_dir).ended.exists()
    return finished(settings.run_dir) if has_ended and not is_asked_for_more else ""


def absolute(settings: Config) -> Config:
    """The settings with absolute folders: other processes of the run may start in other folders."""
    run, weights = settings.run, settings.weights
    return settings.model_copy(
        update={
            "run": run.model_copy(update={"directory": run.directory.resolve()}),
            "weights": weights.model_copy(
                update={"directory": weights.directory and weights.directory.resolve()},
            ),
        }
    )


def with_named_sandbox(settings: Config) -> Config:
    """The settings with bubblewrap where they name no sandbox: no host of a run uses the weaker one unasked."""
    verifiers = settings.verifiers
    if verifiers.code_tier != "auto" or settings.run.mode != "real":
        return settings
    return settings.model_copy(update={"verifiers": verifiers.model_copy(update={"code_tier": "bubblewrap"})})


def check_directory(settings: Config, resume: bool) -> None:
    """The run's folder holds the run to resume; or it holds no run, and can be made."""
    try:
        check_free(RunFiles(settings.run_dir), resume)
        if not resume:
            check_can_be_made(settings.run_dir)
    except OSError as error:
        raise unwritable(settings.run_dir, error) from None


def make_demo(settings: Config) -> Config:
    """Make the model and data that `model.build` names, once; returns the settings with their paths."""
    if settings.model.build is None:
        return settings
    settings = demo.resolve(settings)
    console = SafeConsole()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("preparing the demo", total=1.0)

        def show(what: str, share: float) -> None:
            before = progress.tasks[0].completed
            progress.update(task, description=what, completed=share)
            if not console.is_terminal and int(4 * share) > int(4 * before):
                print(f"demo: {what} {share:.0%}", flush=True)

        demo.prepare(settings, show)
    return settings


def check_named(settings: Config) -> None:
    """Model and data that the recipe names are here, or on the hub.

    Raises:
        UserError: the first that is not, with its fix.
    """
    check_data(settings)
    check_whole_paths(settings)
    with of_key(ModelError, "model.path", "model.tokenizer", "model.chat_template"):
        check_model(settings.model.path)
        hub.check(settings, others_may=settings.cluster.address is not None)


def check_files(settings: Config) -> Sequence[Row] | None:
    """The files of model and data belong together, and the first rows can be used; returns those that were tried.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    with of_key(ModelError, "model.path", "model.tokenizer", "model.chat_template"):
        tokenizer = model_folder.check_folder(settings)
    if tokenizer is None or not data_trial.all_in_files(settings):
        return None
    rows = data_trial.try_rows(settings, tokenizer).rows
    check_sandbox(settings, {name for row in rows for name in row.datasets})
    return rows


def check_disk(settings: Config) -> None:
    """Checkpoints fit the disk, if the weights of the model are here."""
    here = memory.known(settings)
    if here is not None and any(Path(here.model.path).glob("*.safetensors")):
        shapes = model_folder.tensors(Path(here.model.path)).values()
        disk_room(here, sum(prod(shape) for shape in shapes))


def check_port(settings: Config) -> None:
    """The port of the launcher's metrics is free."""
    port = settings.telemetry.port
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if settings.cluster.address is None else "", port))
        except OSError as error:
            raise ResourceError(
                f"telemetry.port = {port}: {error.strerror}: give another one, or 0 for a free one"
            ) from None


def check_data(settings: Config) -> None:
    """Some training data is named, the files that are named exist, and evaluation sets can be told apart."""
    if not settings.data.train:
        raise ConfigError(
            'data.train is empty: name at least one file or hub data set, as in train = ["problems.jsonl"]'
        )
    for key, texts in data_trial.specs(settings).items():
        with of_key(DataError, key):
            for text in texts:
                check_there(parse_spec(text).name)
    evaluation_names(settings.evaluation)


def check_model(path: str) -> None:
    """A folder must hold a model; anything else must look like the name of one on the hub."""
    folder = Path(path)
    if folder.is_dir():
        file = folder / "config.json"
        if not file.is_file():
            raise ModelError(
                f"{path}: not a model folder, it has no config.json; model.path wants a Hugging Face folder"
            )
        try:
            architectures = json.loads(file.read_text(encoding="utf-8")).get("architectures")
        except (ValueError, AttributeError) as error:
            raise ModelError(
                f"{file}: not a model configuration: {error}; download it again, or save it again with save_pretrained"
            ) from None
        if not architectures:
            raise ModelError(f"{file}: names no architecture; save the model with save_pretrained")
    elif folder.exists() or path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ModelError(
            f"{path}: no such model folder; model.path wants a Hugging Face folder, or a hub name as owner/name"
        )


def check_whole_paths(settings: Config) -> None:
    """On a cluster every path in the recipe is absolute: other hosts cannot find a relative path."""
    if settings.cluster.address is None:
        return
    data, model = settings.data, settings.model
    names = [("data.train", parse_spec(text).name) for text in data.train]
    names += [("evaluation.data", parse_spec(named(text)[1]).name) for text in settings.evaluation.data]
    names += [("model.path", model.path), ("model.tokenizer", model.tokenizer or "")]
    names += [("verifiers.functions", text.partition(":")[0]) for text in settings.verifiers.functions]
    names += [("episodes.environment", text) for text in box_tools(settings.episodes.environment).values()]
    own = [("data.reader", data.reader), ("objective.clip", settings.objective.clip)]
    own += [("weights.store", settings.weights.store)]
    names += [(key, text.rpartition(":")[0]) for key, text in own if text]
    judge = settings.verifiers.judge
    names += [("verifiers.judge.template", str(judge.template or ""))]
    names += [("verifiers.judge.reference_template", str(judge.reference_template or ""))]
    if model.chat_template and chat_templates.names_a_file(model.chat_template):
        names.append(("model.chat_template", model.chat_template))
    for key, name in names:
        if name and Path(name).exists() and not Path(name).is_absolute():
            raise ConfigError(
                f"{key}: {name}: processes on a cluster start in other folders: write {Path(name).resolve()}"
            )


def check_sandbox(settings: Config, verifiers: Collection[str]) -> None:
    """If there are programs, say in which sandbox they run, and run one here unless other hosts run them."""
    from olmorl.verifiers.box import bash_tool
    from olmorl.verifiers.code import program_verifier
    from olmorl.verifiers.code.sandbox import self_test

    tools = box_tools(settings.episodes.environment)
    if not set(program_verifier.NAMES) & set(verifiers) and not {"python", "bash"} & tools.keys():
        return
    print(f"programs of the model run in the sandbox {settings.verifiers.code_tier}", flush=True)
    if settings.cluster.address is not None:
        return
    if reason := asyncio.run(self_test.refusal(settings.verifiers)):
        raise ConfigError(f"verifiers.code_tier = {settings.verifiers.code_tier}: {reason}")
    if "bash" in tools and (reason := bash_tool.refusal(settings.verifiers)):
        raise ConfigError(f"episodes.environment = {settings.episodes.environment!r}: {reason}")


def check_functions(settings: Config, rows: Sequence[Row] | None = None) -> None:
    """User reward functions import and can be called, with the columns of `rows` if these are known."""
    if settings.verifiers.functions:
        from olmorl.verifiers.functions.function_scorer import check

        check(settings.verifiers, rows)


def check_token_scorers(settings: Config) -> None:
    """Every teacher and a served reference answer, and have the vocabulary of the policy."""
    if settings.token_scorers:
        from olmorl.learner.data.loader import open_tokenizer
        from olmorl.verifiers import teacher_check

        tokenizer = open_tokenizer(settings.model)
        teacher_check.check_token_scorers(settings.token_scorers, tokenizer, settings.longest_sample)


def check_redis(settings: Config) -> None:
    """The Redis of the recipe answers and takes the credentials."""
    from olmorl.deploy import wiring

    assert settings.queue.url is not None
    access = QueueAccess.of_recipe(settings.queue.url)

    async def connect() -> None:
        queue = await wiring.open_queue(settings, access)
        await queue.close()

    asyncio.run(connect())
