"""The keys that people change while a run goes on, and the configuration that follows for each step.

The ledger has each change, with the first step that it counts for: so a change is applied or not, never half, and a
start from a checkpoint applies it to the same steps again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches

from olmorl.config import Config, keys_named, reference, value_of, with_key
from olmorl.errors import ConfigError
from olmorl.learner.storage.ledger_state import Changed

CHANGEABLE = {
    "learner.learning_rate": "each step carries its own rate to every rank",
    "schedule.depth": "only the drawing of prompts reads it; schedule.max_lag stays the bound",
    "evaluation.every": "only the choice of the versions to evaluate reads it",
    "checkpoint.every": "each step says whether a checkpoint follows it",
    "checkpoint.keep": "it is read when a checkpoint is complete",
}
"""Keys that may change while the run goes on, with the reason why that is safe."""
NUM_ACTORS = "actors"
"""Stands for a key in the record of a change of the number of actors, which no start takes over."""
_WHY_NOT = {
    "schedule.max_lag": "actors and the queue are built for it; schedule.depth can be changed up to it",
    "schedule.steps": "the course of the learning rate and the last evaluation follow from it",
    "schedule.prompts_per_step": "batches that are under way have this size",
    "sampling": "actors read it at their start, and groups under way were sampled by it",
    "objective": "ranks read it at their start, and groups under way were filtered by it",
    "learner": "ranks build the optimizer and the model from it at their start",
    "verifiers": "actors read it at their start, and groups under way were scored by it",
}
"""The reasons by key or section. Everything else is read once, at the start of a process."""


def settings_at(recipe: Config, changes: Sequence[Changed], step: int) -> Config:
    """The configuration of a step: the recipe, with the changes that count for this step."""
    for key, change in _newest(changes, step).items():
        if change.recipe == value_of(recipe, key):
            section, _, name = key.partition(".")
            part = getattr(recipe, section).model_copy(update={name: change.new})
            recipe = recipe.model_copy(update={section: part})
    return recipe


def in_force(recipe: Config, changes: Sequence[Changed]) -> dict[str, Changed]:
    """The newest change of each key. A key with another value in the recipe than at its change is left out."""
    newest = _newest(changes).items()
    return {key: one for key, one in newest if one.recipe == value_of(recipe, key) and one.new != one.recipe}


def plan_change(
    recipe: Config, changes: Sequence[Changed], key: str, value: object, who: str, step: int
) -> Changed | None:
    """The change of a key from `step` on; None if it has the value already.

    Raises:
        ConfigError: the key cannot be changed while the run goes on, or not to this value.
    """
    key = key.replace("-", "_")
    if key not in CHANGEABLE:
        raise ConfigError(_refusal(key, value))
    if step > recipe.schedule.steps:
        raise ConfigError(f"{key}: no step is left that could have another value")
    now = settings_at(recipe, changes, step)
    old, new = value_of(now, key), value_of(with_key(now, key, value), key)
    if new == old:
        return None
    return Changed(key=key, recipe=value_of(recipe, key), old=old, new=new, who=who, step=step)


def replaced_by_recipe(recipe: Config, changes: Sequence[Changed], step: int) -> Iterator[Changed]:
    """The changes that a start makes from `step` on: keys whose value in the recipe is not that at their change."""
    for key, change in _newest(changes).items():
        if (new := value_of(recipe, key)) != change.recipe:
            yield Changed(key=key, recipe=new, old=change.new, new=new, who="the recipe of a start", step=step)


def describe(change: Changed) -> str:
    """A change in words."""
    when = "" if change.at is None else datetime.fromtimestamp(change.at).strftime(" on %Y-%m-%d %H:%M:%S")
    return f"{change.key}: {change.old} -> {change.new} from step {change.step} on, by {change.who}{when}"


def _newest(changes: Sequence[Changed], step: int | None = None) -> dict[str, Changed]:
    """The newest change of each key that counts for `step`, or at all."""
    return {each.key: each for each in changes if each.key in CHANGEABLE and (step is None or each.step <= step)}


def _refusal(key: str, value: object) -> str:
    known = {each.key for each in reference()}
    if key not in known:
        near = get_close_matches(key, known, 1) or keys_named(key)
        return f"{key}: unknown key" + (f"; did you mean {near[0]!r}?" if near else "")
    why = _WHY_NOT.get(key) or _WHY_NOT.get(key.partition(".")[0], "processes read it at their start")
    return (
        f"{key} cannot be changed while the run goes on: {why}. Stop it (olmorl-ctl RUN stop), and go on with "
        f"olmorl-launch ... --resume --change --{key} {value}; without a stop: {', '.join(CHANGEABLE)}"
    )
