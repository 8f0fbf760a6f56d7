"""Calls the callbacks of a TRL script from the metric lines of a run, in the process of the script."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from olmorl.errors import ConfigError
from olmorl.learner.storage import checkpoint_dir
from olmorl.metrics import of_evaluation

EVENTS: Final = ("on_init_end", "on_train_begin", "on_log", "on_step_end", "on_evaluate", "on_save", "on_train_end")
"""Events that a run has. A callback that waits for another one is refused."""
_NAMES: Final = {
    "reward_mean": "reward",
    "reward_std": "reward_std",
    "lr": "learning_rate",
    "entropy_mean": "entropy",
    "kl_ref_mean": "kl",
    "completion_tokens_mean": "completions/mean_length",
    "completion_tokens_max": "completions/max_length",
    "truncated_fraction": "completions/clipped_ratio",
    "learner_step_s": "step_time",
    "tokens_generated_total": "num_tokens",
}
"""Fields of a metric line that TRL logs under another name."""


class Callbacks:
    """Each event is one call of each callback, in order. A step is a learner step, and each one is logged."""

    def __init__(self, callbacks: Sequence[Any], args: Any, max_steps: int, checkpoints: Path) -> None:
        """Raises ConfigError that names what is no callback, and the events that a run does not have."""
        from transformers import TrainerCallback, TrainerControl, TrainerState

        made = [each() if isinstance(each, type) else each for each in callbacks]
        refused = [f"{each!r} is no TrainerCallback" for each in made if not isinstance(each, TrainerCallback)]
        events = [name for name in vars(TrainerCallback) if name.startswith("on_") and name not in EVENTS]
        refused += [
            f"{type(each).__name__}.{name}"
            for each in made
            for name in events
            if getattr(type(each), name, None) is not getattr(TrainerCallback, name)
            and isinstance(each, TrainerCallback)
        ]
        if refused:
            raise ConfigError(f"GRPOTrainer: callbacks: {', '.join(refused)}: no counterpart here; leave them out")
        self._callbacks, self._args, self._checkpoints = made, args, checkpoints
        self._state, self._control = TrainerState(max_steps=max_steps, log_history=[]), TrainerControl()
        self._saved = self._newest_checkpoint()
        self._last: Mapping[str, Any] = {}
        self.call("on_init_end")

    def call(self, event: str, **more: Any) -> None:
        """Call every callback. What one asks for other than a stop is named in a warning, once."""
        for each in self._callbacks:
            answer = getattr(each, event)(self._args, self._state, self._control, **more)
            self._control = self._control if answer is None else answer
        for asked in ("should_save", "should_evaluate", "should_log", "should_epoch_stop"):
            if getattr(self._control, asked):
                setattr(self._control, asked, False)
                warnings.warn(f"{asked} of a callback has no effect: the recipe decides", stacklevel=2)

    def on_step(self, line: dict[str, Any]) -> bool:
        """The events of a new metric line; returns whether a callback asks for the end of training."""
        self.look_for_checkpoint()
        if line["step"] > self._state.global_step:
            self._state.global_step = line["step"]
            logs = in_trls_names(line)
            self._state.log_history.append({**logs, "step": line["step"]})
            self.call("on_log", logs=logs)
            self.call("on_step_end")
        evaluated = of_evaluation(line)
        if evaluated and evaluated != of_evaluation(self._last):
            self.call("on_evaluate", metrics=in_trls_names(evaluated))
        self._last = line
        return bool(self._control.should_training_stop)

    def look_for_checkpoint(self) -> None:
        """The event of a new checkpoint, at its step. It is complete after the line of that step."""
        if (newest := self._newest_checkpoint()) > self._saved:
            self._saved, step = newest, self._state.global_step
            self._state.global_step = newest
            self.call("on_save")
            self._state.global_step = step

    def _newest_checkpoint(self) -> int:
        return max(checkpoint_dir.steps(self._checkpoints), default=0)


def in_trls_names(line: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a metric line, and those that TRL logs too under its names."""
    named = {}
    for key, value in line.items():
        function, _, kind = key.removeprefix("reward_").rpartition("_")
        if key in _NAMES:
            named[_NAMES[key]] = value
        elif key.startswith("reward_") and function:
            named[f"rewards/{function}/{kind}"] = value
        elif key.startswith("eval_"):
            named[key.replace("eval_held_out_", "eval_", 1).removesuffix("_mean")] = value
    return {**line, **named}
