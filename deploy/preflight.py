"""What can be known to fail is found before anything starts: each check raises one clear error."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from olmorl.config import Config
from olmorl.deploy.access import QueueAccess
from olmorl.deploy.rundir import unusable
from olmorl.errors import ConfigError, ModelError
from olmorl.learner.prompts import named
from olmorl.learner.recovery import RunFiles, check_free
from olmorl.learner.rows import check_there, parse_spec


def preflight(settings: Config, resume: bool) -> Config:
    """Check everything that needs no cluster; returns the settings as the run will keep them.

    Raises:
        UserError: the first thing found wrong, with its fix.
    """
    settings = prepare(settings, resume)
    if settings.run.mode == "real":
        check_data(settings)
        check_model(settings.model.path)
        check_whole_paths(settings)
    check_functions(settings)
    if settings.queue.url is not None:
        check_redis(settings)
    return settings


def prepare(settings: Config, resume: bool) -> Config:
    """What comes before any look at what the recipe names; returns the settings as the run will keep them.

    Raises:
        UserError: the run directory, or the recipe itself.
    """
    settings = absolute(settings)
    check_directory(settings, resume)
    check_objective(settings)
    return make_demo(settings) if settings.run.mode == "real" else settings


def absolute(settings: Config) -> Config:
    """The folders of the run by their whole paths: its other processes may start in other folders."""
    run, weights = settings.run, settings.weights
    return settings.model_copy(
        update={
            "run": run.model_copy(update={"directory": run.directory.resolve()}),
            "weights": weights.model_copy(
                update={"directory": weights.directory and weights.directory.resolve()},
            ),
        }
    )


def check_directory(settings: Config, resume: bool) -> None:
    """The run's folder holds what is to be resumed, or no run."""
    try:
        check_free(RunFiles(settings.run_dir), resume)
    except OSError as error:
        raise unusable(settings.run_dir, error) from None


def check_objective(settings: Config) -> None:
    """The switches of the objective go together."""
    from olmorl.learner.presets import resolve

    resolve(settings.objective, settings.sampling.max_tokens)


def make_demo(settings: Config) -> Config:
    """Make what `model.build` asks for, once; the paths it was made at stand in the settings then."""
    if settings.model.build is None:
        return settings
    from olmorl.deploy import demo

    settings = demo.resolve(settings)
    console = Console()
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


def check_data(settings: Config) -> None:
    """Some training data is named, and the files that are named exist."""
    if not settings.data.train:
        raise ConfigError(
            'data.train is empty: name at least one file or hub data set, as in train = ["problems.jsonl"]'
        )
    for text in (*settings.data.train, *(named(text)[1] for text in settings.evaluation.data)):
        check_there(parse_spec(text).name)


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
            raise ModelError(f"{file}: not a model configuration: {error}") from None
        if not architectures:
            raise ModelError(f"{file}: names no architecture; save the model with save_pretrained")
    elif folder.exists() or path.startswith((".", "/", "~")) or path.count("/") != 1:
        raise ModelError(
            f"{path}: no such model folder; model.path wants a Hugging Face folder, or a hub name as owner/name"
        )


def check_whole_paths(settings: Config) -> None:
    """What the recipe names by a path from here is found on the other hosts of a cluster only by its whole path."""
    if settings.cluster.address is None:
        return
    data, model = settings.data, settings.model
    names = [("data.train", parse_spec(text).name) for text in data.train]
    names += [("evaluation.data", parse_spec(named(text)[1]).name) for text in settings.evaluation.data]
    names += [("model.path", model.path), ("model.tokenizer", model.tokenizer or "")]
    names += [("verifiers.functions", text.partition(":")[0]) for text in settings.verifiers.functions]
    for key, name in names:
        if name and Path(name).exists() and not Path(name).is_absolute():
            raise ConfigError(
                f"{key}: {name}: processes on a cluster start in folders of their own: write {Path(name).resolve()}"
            )


def check_functions(settings: Config) -> None:
    """User reward functions import and can be called."""
    if settings.verifiers.functions:
        from olmorl.verifiers.functions import check

        check(settings.verifiers)


def check_redis(settings: Config) -> None:
    """The Redis of the recipe answers and takes the credentials."""
    import asyncio

    from olmorl.deploy import wiring

    assert settings.queue.url is not None
    access = QueueAccess.of_recipe(settings.queue.url)

    async def connect() -> None:
        queue = await wiring.open_queue(settings, access)
        await queue.close()

    asyncio.run(connect())
