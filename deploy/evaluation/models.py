"""The models of an evaluation: a folder, a hub name, or a checkpoint of a run, which is exported while it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from olmorl import config
from olmorl.errors import ConfigError, ModelError
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.best_checkpoint import best_step
from olmorl.run_dir import RunFiles


class Choice(NamedTuple):
    """A model as it is named on the command line."""

    name: str
    """In the table and the file of answers."""
    path: str
    """A folder or a hub name; of a checkpoint the run directory."""
    step: int | None = None
    """The checkpoint's."""


def choose(text: str) -> Choice:
    """Read a model of the command line: a folder, a hub name, `RUN`, `RUN@STEP`, `RUN@best` or a checkpoint's folder.

    Raises:
        UserError: the run has no such checkpoint, or the folder holds no model.
    """
    path = Path(text)
    run, at, step = text.rpartition("@")
    if path.name.startswith("step_") and path.parent.name == "checkpoints":
        return _checkpoint(path.parent.parent, path.name.removeprefix("step_"))
    if at and _is_run(Path(run)):
        return _checkpoint(Path(run), step)
    if _is_run(path):
        return _checkpoint(path, None)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"{text}: neither a model folder (config.json) nor a run directory (config.toml and checkpoints/)"
        )
    return Choice(text, text)


def recipe_of(choice: Choice) -> config.Config:
    """The settings of the run that a checkpoint is of."""
    return config.load(RunFiles(Path(choice.path)).config, of_run=True)


def _is_run(path: Path) -> bool:
    files = RunFiles(path)
    return files.config.is_file() and files.checkpoints.is_dir()


def _checkpoint(run: Path, step: str | None) -> Choice:
    if step == "best":
        step = str(best_step(RunFiles(run).checkpoints))
    if step is not None and not step.isdecimal():
        raise ConfigError(f"{run}@{step}: a checkpoint is named by its step, as in {run}@100, or best")
    chosen = checkpoint_dir.pick(RunFiles(run).checkpoints, None if step is None else int(step))
    if chosen is None:
        raise ModelError(f"{run}: no checkpoint is complete yet; evaluate the model that it began with")
    return Choice(f"{run}@{chosen}", str(run), chosen)


@contextmanager
def opened(choice: Choice, settings: config.Config, given: bool) -> Iterator[config.Config]:
    """The settings with the model of `choice`.

    Args:
        given: `settings` are of a recipe on the command line. Otherwise a checkpoint takes [model] of its run.
    """
    if choice.step is None:
        yield with_model(settings, settings.model, choice.path)
        return
    from olmorl.learner.trainer.export import export

    run = Path(choice.path)
    model = settings.model if given else recipe_of(choice).model
    with TemporaryDirectory(prefix="olmorl-eval-") as folder:
        export(run, choice.step, Path(folder, "model"))
        yield with_model(settings, model, f"{folder}/model")


def with_model(settings: config.Config, model: config.Model, path: str) -> config.Config:
    """The settings with the model at `path`. A demo is not built."""
    return settings.model_copy(update={"model": model.model_copy(update={"path": path, "build": None})})
