"""The service from Python: `olmorl.run`, `olmorl.verify` and `olmorl.Recipe`, in a script or a notebook.

Both calls start the commands of the same name as a process of their own, so a run has the same processes and
guarantees as one from a shell, and goes on there: `olmorl-launch FOLDER/recipe.toml --resume`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import cloudpickle
import msgspec

from olmorl import config, parent_death
from olmorl.deploy.preflight.local_checks import check_directory
from olmorl.deploy.run_tables import RunTables, read_run
from olmorl.deploy.view.run_state import last_end
from olmorl.errors import ConfigError, DataError, RunEnded
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.run_dir import RunFiles

Recipe = config.Config
"""A recipe as an object: `Recipe(model={"path": ...}, schedule={"steps": 50})`. Every key is checked; see
`docs/configuration.md`."""
RewardFunction = Callable[..., Any]
Rows = Iterable[Mapping[str, Any]]
OnStep = Callable[[dict[str, Any]], object]
_FUNCTIONS: Final = "rewards.py"
_LAST_LINES_S: Final = 5.0
"""Longest wait for what a program has printed before its end."""
_LOOK_S: Final = 0.5
"""Seconds between two looks at the metrics of a run that has `on_step`."""
_AS_ON_A_TERMINAL: Final = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
"""Variables that a notebook's kernel sets. With them the program would draw its full screen into the cell."""
_LOADER: Final = '''"""Written by olmorl.run: the reward functions of a script or notebook."""

from pathlib import Path

import cloudpickle

globals().update(cloudpickle.loads(Path(__file__).with_suffix(".pkl").read_bytes()))
'''


def run(
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Recipe | None = None,
    *,
    reward_functions: Sequence[RewardFunction | str] = (),
    environment: Callable[[], Any] | str | None = None,
    dataset: Rows | str | None = None,
    evaluation: Rows | Mapping[str, Rows] | None = None,
    on_step: OnStep | None = None,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    change: bool = False,
) -> RunTables:
    """Train as `olmorl-launch` does, and return the tables of the run.

    Ctrl-C, or the interrupt of a notebook, stops the run with a checkpoint; the tables have the steps so far. Any other
    exception that is raised meanwhile, such as by a time limit, stops it likewise, and is raised afterwards.

    Args:
        recipe: a TOML file, a `Recipe`, a table of sections, or None for the defaults.
        reward_functions: functions in the convention of TRL or verl, also of a notebook, or entries of
            `verifiers.functions`. They join those of the recipe.
        environment: makes the environment of an episode, such as a class for TRL's `environment_factory`; or the value
            of `episodes.environment`.
        dataset: rows with the columns of `docs/data.md`, such as a `datasets.Dataset`, in place of the
            recipe's `data.train`; or its name or path.
        evaluation: such rows, or several sets of them by name, in place of the recipe's `evaluation.data`. A single set
            is called `held_out`.
        on_step: called here with each new line of `metrics.jsonl`, as a table, and again with one that an evaluation
            was added to. If it returns True, the run stops with a checkpoint.
        overrides: more keys by their dotted names, such as `{"schedule.steps": 50}`.
        resume: go on with the run of this name. Give the same rows again.
        change: with `resume`, accept that keys differ from those of the last start.

    Raises:
        UserError: a mistake to mend: a key, a function, a folder that holds a run already.
        DataError: a row that cannot be written as JSON.
        RunEnded: the run ended with an error. The message has the cause.
    """
    settings = _settings(recipe, overrides or {})
    check_directory(settings, resume)  # before the rows and functions of a run that is there are replaced
    folder = settings.run_dir.with_name(f"{settings.run_dir.name}.inputs").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if dataset is not None:
        data = dataset if isinstance(dataset, str) else str(_write_rows(folder / "data.jsonl", dataset))
        settings = config.with_key(settings, "data.train", [data])
    if evaluation is not None:
        sets = evaluation if isinstance(evaluation, Mapping) else {"held_out": evaluation}
        files = [_write_rows(folder / f"evaluation-{number}.jsonl", rows) for number, rows in enumerate(sets.values())]
        named = [f"{name}={file}" for name, file in zip(sets, files, strict=True)]
        settings = config.with_key(settings, "evaluation.data", named)
    own = list(reward_functions) if environment is None else [*reward_functions, environment]
    if own:
        specs = _specs(folder, own)
        functions = [*settings.verifiers.functions, *specs[: len(reward_functions)]]
        settings = config.with_key(settings, "verifiers.functions", functions)
        if environment is not None:
            settings = config.with_key(settings, "episodes.environment", specs[-1])
    path = folder / "recipe.toml"
    path.write_text(config.to_toml(settings), encoding="utf-8")
    options = (["--resume"] if resume else []) + (["--change"] if change else [])
    watch = None if on_step is None else _NewLines(RunFiles(settings.run_dir).metrics, on_step).look
    code, reason = _command("olmorl.deploy.launch", [str(path), *options], watch)
    if code == 2:
        raise ConfigError(reason)
    if code:
        raise RunEnded(last_end(settings.run_dir) or reason)
    return read_run(settings.run_dir)


def verify(
    rows: Rows,
    recipe: str | os.PathLike[str] | Mapping[str, Any] | Recipe | None = None,
    *,
    reward_functions: Sequence[RewardFunction | str] = (),
) -> list[dict[str, Any]]:
    """Score rows that have a `completion`, as `olmorl-verify` does; returns its lines, in the order of the rows.

    Raises:
        DataError: no row can be used, or the verifiers did not start.
    """
    with tempfile.TemporaryDirectory(prefix="olmorl-verify-") as name:
        folder = Path(name)
        (folder / "recipe.toml").write_text(config.to_toml(_settings(recipe, {})), encoding="utf-8")
        source, output = _write_rows(folder / "rows.jsonl", rows), folder / "scores.jsonl"
        functions = [word for spec in _specs(folder, reward_functions) for word in ("--function", spec)]
        words = [str(source), "-o", str(output), "--config", str(folder / "recipe.toml"), *functions]
        code, reason = _command("olmorl.deploy.verify.cli", words)
        if code:
            raise DataError(reason)
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def _settings(recipe: Any, overrides: Mapping[str, Any]) -> Recipe:
    if isinstance(recipe, Recipe):
        settings = recipe
    elif recipe is None or isinstance(recipe, Mapping):
        settings = config.build(recipe or {}, "recipe")
    else:
        settings = config.load(Path(recipe))
    for key, value in overrides.items():
        settings = config.with_key(settings, key, value)
    return settings


class _NewLines:
    """Hands over each line of a run's metrics once, and the last one again when an evaluation was added to it.

    A step that is trained again, after a failure, has a new line.
    """

    def __init__(self, path: Path, on_step: OnStep) -> None:
        self._log, self._on_step = MetricsLog(path), on_step
        self._last = next(self._log.newest_first(), {"step": 0})

    def look(self) -> bool:
        """Hand over what is new; returns whether the run shall stop."""
        lines = list(takewhile(self._is_new, self._log.newest_first()))[::-1]
        self._last = (lines or [self._last])[-1]
        return sum(self._on_step(line) is True for line in lines) > 0

    def _is_new(self, line: dict[str, Any]) -> bool:
        place, last = ((each.get("incarnation", 0), each["step"]) for each in (line, self._last))
        return bool(place > last or (place == last and line != self._last))


def _write_rows(path: Path, rows: Rows) -> Path:
    """Write the rows as JSONL. Raises DataError for a row that is no table or has a value JSON cannot hold."""
    if isinstance(rows, Mapping):
        raise DataError(f"dataset: it has several parts ({', '.join(map(str, rows))}); give one of them")
    with path.open("wb") as file:
        number = 0
        for number, row in enumerate(rows, start=1):
            try:
                file.write(msgspec.json.encode(dict(row), enc_hook=_plain) + b"\n")
            except (TypeError, ValueError, OverflowError) as error:
                raise DataError(
                    f"dataset: row {number}: {error}; rows are tables of texts, numbers and lists"
                ) from None
    if not number:
        raise DataError("dataset: it has no rows")
    return path


def _plain(value: Any) -> Any:
    """Arrays and scalars of numpy and torch as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _specs(folder: Path, functions: Sequence[RewardFunction | str]) -> list[str]:
    """The entries of `verifiers.functions`. Functions that are objects are stored in the folder, with what they use.

    Raises:
        ConfigError: a function without a name of its own, or that cannot be stored.
    """
    own = {name_of(function): function for function in functions if not isinstance(function, str)}
    if len(own) < sum(not isinstance(function, str) for function in functions):
        raise ConfigError("reward_functions, environment: two have the same name; rename one")
    if own:
        try:
            with ExitStack() as stack:
                for module in {function.__module__ for function in own.values()}:
                    _store_by_value(module, stack)
                data = cloudpickle.dumps(own)
        except Exception as error:
            raise ConfigError(
                f"reward_functions, environment: cannot be stored ({error}); give file.py:name instead"
            ) from None
        (folder / _FUNCTIONS).write_text(_LOADER, encoding="utf-8")
        (folder / _FUNCTIONS).with_suffix(".pkl").write_bytes(data)
    return [
        function if isinstance(function, str) else f"{folder / _FUNCTIONS}:{name_of(function)}"
        for function in functions
    ]


def name_of(function: RewardFunction) -> str:
    """The name of a function. Raises ConfigError for a lambda or an object without one."""
    name = getattr(function, "__name__", type(function).__name__)
    if not callable(function) or not name.isidentifier():
        raise ConfigError(
            f"reward_functions: {function!r} has no name: write it with `def name(completions, **columns)`"
        )
    return name


def _store_by_value(module: str, stack: ExitStack) -> None:
    """Store the functions of a user's own module with their code: workers may not be able to import it."""
    found = sys.modules.get(module)
    place = getattr(found, "__file__", None) or ""
    if found is not None and module != "__main__" and place and not place.startswith((sys.prefix, sys.base_prefix)):
        cloudpickle.register_pickle_by_value(found)
        stack.callback(cloudpickle.unregister_pickle_by_value, found)


def _command(program: str, words: Sequence[str], watch: Callable[[], bool] | None = None) -> tuple[int, str]:
    """Run a module as a process and show what it prints; returns its exit code and the last error that it named.

    An interrupt goes to the process, which ends in order. It ends in order too when this process dies, and when
    `watch`, which is called now and then, returns True.
    """
    shows_itself = sys.stdout is sys.__stdout__ and sys.stdout is not None and sys.stdout.isatty()
    process = subprocess.Popen(
        [sys.executable, "-m", program, *words],
        stdout=None if shows_itself else subprocess.PIPE,
        stderr=None if shows_itself else subprocess.STDOUT,
        text=True,
        errors="replace",
        env={name: value for name, value in os.environ.items() if shows_itself or name not in _AS_ON_A_TERMINAL},
        process_group=0,
        preexec_fn=parent_death.asked_at_death(signal.SIGTERM),
    )
    named: list[str] = []
    # In a thread: a process that outlives the program may hold the other end of the pipe.
    showing = threading.Thread(target=_show, args=(process.stdout or (), named), daemon=True)
    showing.start()
    code = _end_of(process, watch)
    showing.join(_LAST_LINES_S)
    return code, "".join(named).strip() or f"{program} ended with exit code {code}: see its output"


def _end_of(process: subprocess.Popen[str], watch: Callable[[], bool] | None) -> int:
    """Wait for the end of a program; returns its exit code. An exception here, such as a time limit, ends it first."""
    stopped = False
    try:
        while True:
            try:
                code = process.wait() if watch is None else _ended_within(process, _LOOK_S)
                if watch is not None and watch() and not stopped:
                    stopped = True
                    process.send_signal(signal.SIGINT)
                if code is not None:
                    return code
            except KeyboardInterrupt:
                stopped = True
                process.send_signal(signal.SIGINT)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _ended_within(process: subprocess.Popen[str], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _show(lines: Iterable[str], named: list[str]) -> None:
    """Print the lines. `named` gets those of the last error, which begins with the name of its command."""
    for line in lines:
        print(line, end="", flush=True)
        if line.startswith("olmorl-"):
            named[:] = [line]
        elif named and line.startswith("  "):
            named.append(line)
