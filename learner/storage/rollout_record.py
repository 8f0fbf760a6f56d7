"""One line of `rollouts/`: a draw that ended, with its completions, or with the cause and the tokens of a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from olmorl.learner.storage.ledger_state import Outcome
from olmorl.messages import Completion, Failure, Result, Turn, Verdict

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


ENDING = ".jsonl.zst"
PARTIAL = ".partial" + ENDING
"""The ending of a file that is still written."""


def name_of(path: Path) -> str:
    """Returns the name of a file without its ending, the same while it is written and afterwards."""
    return path.name.removesuffix(ENDING).removesuffix(".partial")


class Ended(NamedTuple):
    """A draw that ended, and how."""

    result: Result
    outcome: Outcome
    step: int | None
    """The step that trains it, if any."""
    cause: str


def line(ended: Ended) -> bytes:
    """The draw, its outcome, and each completion, as JSON. `incarnations` is parallel to `versions`.

    Arrays are written without a Python number for each element: that takes a twentieth of the time.
    """
    fields = _fields(ended)
    try:
        return orjson.dumps(fields, option=_OPTIONS)
    except orjson.JSONEncodeError:  # for example a label that is nested too deep
        return msgspec.json.encode(fields, enc_hook=np.ndarray.tolist) + b"\n"


def _fields(ended: Ended) -> dict[str, Any]:
    result, outcome, step, cause = ended
    prompt = result.prompt
    fields: dict[str, Any] = {
        "prompt_id": prompt.draw_id,
        "attempt": prompt.attempt,
        "outcome": outcome.value,
        "step": step,
        "cause": cause,
        "row": prompt.row,
        "prompt": prompt.messages,
        "prompt_token_ids": prompt.token_ids,
        "datasets": prompt.datasets,
        "ground_truths": prompt.ground_truths,
        "actor": result.actor,
    }
    if isinstance(result, Failure):
        return {**fields, "detail": result.detail, "num_tokens": result.num_tokens, "completions": []}
    return {
        **fields,
        "started_at": result.started_at,
        "finished_at": result.finished_at,
        "completions": [_completion(completion) for completion in result.completions],
    }


def _completion(completion: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "index": completion.index,
        "token_ids": completion.token_ids,
        "logprobs": np.round(completion.logprobs.astype(np.float64), 6),
        "versions": [[span.version.number, span.start, span.end] for span in completion.spans],
        "incarnations": [span.version.incarnation for span in completion.spans],
        "reward": completion.reward,
        "solved": completion.solved,
        "verdicts": {name: _verdict(verdict) for name, verdict in completion.verdicts.items()},
        "finish_reason": completion.finish_reason,
        "generated_at": completion.generated_at,
        "text": completion.text,
    }
    if completion.turns:
        fields |= {"exit": completion.exit, "turns": [_turn(turn) for turn in completion.turns]}
    if completion.teacher_logprobs is not None:
        fields["teacher_logprobs"] = np.round(completion.teacher_logprobs.astype(np.float64), 6)
    if completion.reference_logprobs is not None:
        fields["reference_logprobs"] = np.round(completion.reference_logprobs.astype(np.float64), 6)
    if completion.token_rewards is not msgspec.UNSET:
        fields["token_rewards"] = [None if np.isnan(one) else float(one) for one in completion.token_rewards]
    return fields


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """The fields of a verdict; what it has of each token is a field of the completion."""
    found = msgspec.structs.asdict(verdict)
    return {name: value for name, value in found.items() if name not in ("token_logprobs", "token_rewards")}


def _turn(turn: Turn) -> dict[str, Any]:
    """One turn. The tokens that it sampled are those of the completion from `start` to `end`."""
    return {
        "parent": turn.parent,
        "kept": turn.kept,
        "added_token_ids": turn.added,
        "start": turn.start,
        "end": turn.end,
        "finish_reason": turn.finish_reason,
        "messages": turn.messages,
        "reply": turn.reply,
        "asked_at": turn.asked_at,
        "ended_at": turn.ended_at,
    }
