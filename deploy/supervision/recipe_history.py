"""The recipe of each start of a run: kept in the run directory, and compared with the start before."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from olmorl import __version__, config, toml
from olmorl.config import Config, Model
from olmorl.errors import ConfigError, ResourceError
from olmorl.learner.algorithm import presets
from olmorl.learner.data.chat_templates import names_a_file, template_of
from olmorl.learner.orchestrator.changes import in_force, settings_at
from olmorl.learner.storage import durable_files
from olmorl.learner.storage.checkpoint_dir import newest_state
from olmorl.learner.storage.ledger_state import Changed
from olmorl.learner.storage.metrics_log import MetricsLog
from olmorl.learner.trainer.lr_schedule import learning_rate
from olmorl.run_dir import RunFiles

PLACES = (
    "run.directory", "run.name", "cluster.address", "verifiers.judge.url", "verifiers.reward_model.url",
    "objective.kl_reference.url",
)  # fmt: skip
"""The keys for the places of a run and of its services. They may differ from start to start without --change."""
_TEACHERS_PLACE = re.compile(r"distillation\.teachers\.\w+\.url")
LEFT_OPEN = {
    "learner.device": "auto",
    "learner.gradient_checkpointing": "auto",
    "learner.row_tokens": "auto",
    "cluster.gpus_per_node": None,
    "verifiers.code_tier": "auto",
}
"""The values that leave the decision to each start. They count as equal to every decision."""
HUB_NAMES = ("model.path", "model.tokenizer")
"""The keys with a name of the hub, which counts as equal to the folder of each of its commits."""
_SNAPSHOT = re.compile(r".*/models--([^/]+)/snapshots/([^/]+)")
_UNSET = "not set"


class Difference(NamedTuple):
    """One key that a start changes."""

    key: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.now}"


def spelled_out(settings: Config) -> Config:
    """The same settings with the switches of the preset, and with the text of the chat template, written out."""
    objective = presets.spelled_out(settings.objective, settings.longest_answer)
    template = settings.model.chat_template
    if template is None or not names_a_file(template) or not Path(template).is_file():
        return settings.model_copy(update={"objective": objective})
    model = settings.model.model_copy(update={"chat_template": template_of(template)})
    return settings.model_copy(update={"objective": objective, "model": model})


def snapshot_of(path: str) -> tuple[str, str | None]:
    """The hub name and the commit of a folder in a hub's cache; of everything else the text itself, and None."""
    found = _SNAPSHOT.fullmatch(path)
    return (found[1].replace("--", "/"), found[2]) if found else (path, None)


def kept_model(run_dir: Path) -> Model | None:
    """The model of the configuration in the run directory; None if that cannot be read."""
    with suppress(ConfigError):
        return config.load(RunFiles(run_dir).config, of_run=True).model
    return None


def check_change(settings: Config, change: bool) -> list[Difference]:
    """The differences between a resume and the configuration in the run directory.

    Raises:
        ConfigError: it differs or cannot be compared, and `change` is off.
    """
    path = RunFiles(settings.run_dir).config
    if not path.exists():
        return []
    try:
        before = spelled_out(config.load(path))
    except ConfigError as error:
        if change:
            return []
        raise ConfigError(
            f"{error}\n  so this start cannot be compared with it: --resume --change goes on with the new recipe"
        ) from None
    changes = kept_changes(settings.run_dir)
    found = _without_changes(differences(before, spelled_out(settings)), in_force(before, changes))
    found += (jump := _jump_of_rate(before, settings, changes))
    if found and not change:
        shown = "".join(f"\n  {difference}" for difference in found)
        if jump:
            earlier = f"{before.learner.extended}, " if before.learner.extended else ""
            ways = [f'"{earlier}{way} {before.schedule.steps}"' for way in ("keep", "decay")]
            shown += f"\n  to go on from the last rate, set learner.extended = {' or '.join(ways)}"
        raise ConfigError(
            f"--resume would go on with another configuration than {path} has (key: there -> given now):{shown}\n"
            "  give the same recipe and options as before, or accept the change: --resume --change"
        )
    return found


def differences(before: Config, now: Config) -> list[Difference]:
    """Every key with another value, in the order of the recipe, without `PLACES`."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [
        Difference(key, _shown(old, key), _shown(new, key))
        for key in {**new, **old}
        if not _is_place(key) and old.get(key) != new.get(key) and not _is_left_open(key, old, new)
    ]


def kept_changes(run_dir: Path) -> list[Changed]:
    """The keys that changed while the run went on; none from a ledger that is damaged, which the start reports."""
    with suppress(ResourceError):
        return newest_state(RunFiles(run_dir)).changes
    return []


def _without_changes(found: Sequence[Difference], changed: Mapping[str, Changed]) -> list[Difference]:
    """The differences without those that only take over a change of the run; the others name that change."""
    left = [each for each in found if each.key not in changed or each.now != toml.literal(changed[each.key].new)]
    return [
        each._replace(
            before=f"{each.before} ({changed[each.key].new} since step {changed[each.key].step}, by olmorl-ctl)"
        )
        if each.key in changed
        else each
        for each in left
    ]


def _is_place(key: str) -> bool:
    return key in PLACES or _TEACHERS_PLACE.fullmatch(key) is not None


def _jump_of_rate(before: Config, now: Config, changes: Sequence[Changed]) -> list[Difference]:
    """The learning rate around the next step, if other steps of the schedule would let it rise."""
    done = next(MetricsLog(RunFiles(now.run_dir).metrics).newest_first(), {"step": 0})["step"]
    if not done or before.schedule.steps == now.schedule.steps:
        return []
    last = learning_rate(done, settings_at(before, changes, done).learner, before.schedule.steps)
    following = learning_rate(done + 1, settings_at(now, changes, done + 1).learner, now.schedule.steps)
    if following <= last or done < now.learner.warmup_steps:
        return []
    return [Difference("learning rate", f"{last:.3g} (step {done})", f"{following:.3g} (step {done + 1})")]


def _is_left_open(key: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if key in HUB_NAMES:
        (name, commit), (new_name, new_commit) = snapshot_of(str(old.get(key))), snapshot_of(str(new.get(key)))
        return name == new_name and (commit is None or new_commit in (None, commit))
    return key in LEFT_OPEN and LEFT_OPEN[key] in (old.get(key), new.get(key))


def _leaves(settings: Config) -> Iterator[tuple[str, Any]]:
    """Every key that is set, with its value; of a table each entry."""
    return _leaves_of("", settings.model_dump(mode="json", exclude_none=True))


def _leaves_of(prefix: str, tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves_of(f"{prefix}{key}.", value)
        else:
            yield f"{prefix}{key}", value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return toml.literal(leaves[key]) if key in leaves else _UNSET


class KeptRecipe:
    """Keeps `config.toml`. The file of an earlier start stays until this start has trained."""

    def __init__(self, settings: Config) -> None:
        self._path = RunFiles(settings.run_dir).config
        self._text = config.to_toml(settings).encode()
        self._has_trained = self._is_kept = False

    def write_when_due(self, has_trained: bool) -> None:
        """Write it when this start has trained, or when there is none. On a full disk, try again at the next call."""
        self._has_trained = self._has_trained or has_trained
        if self._is_kept or (self._path.exists() and not self._has_trained):
            return
        with suppress(ResourceError):
            durable_files.write_whole(self._path, [self._text])
            self._is_kept = True


def record_start(settings: Config, command_line: Sequence[str]) -> None:
    """Write `starts/NNN.toml`: configuration, command line and version of this start. Loads as a recipe.

    On a full disk nothing is written, and the run goes on.
    """
    folder = RunFiles(settings.run_dir).starts
    with suppress(ResourceError, OSError):
        folder.mkdir(exist_ok=True)
        number = 1 + max((int(path.stem) for path in folder.glob("*.toml") if path.stem.isdecimal()), default=0)
        head = (
            f"# start {number} of {settings.run.name}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
            f"# olmorl {__version__}\n"
            f"# {_one_line(shlex.join(['olmorl-launch', *command_line]))}\n\n"
        )
        durable_files.write_whole(folder / f"{number:03d}.toml", [head.encode(), config.to_toml(settings).encode()])


def _one_line(text: str) -> str:
    """A line break in an argument must not end the comment."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
