"""Another project's checker, run in a separate environment: `python peers.py NAME [FOLDER...]`.

Writes `ready`, then reads lines with a JSON list of label and completion. The answer to each is a JSON list: whether
the checker pays it, or null if it failed, and the seconds that it took. Each function imports its own checker, because
each environment has only one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import json
import logging
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Check = Callable[[str, str], bool]
"""Takes a label and a completion."""


def math_verify() -> Check:
    """math-verify alone, with its defaults; a label that is a bare formula is put between dollars."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def check(label: str, completion: str) -> bool:
        formula = any(sign in label for sign in "\\^_{") and not any(sign in label for sign in ("$", r"\(", r"\boxed"))
        return bool(verify(parse(f"${label}$" if formula else label), parse(completion)))

    return check


def verl_math(source: str) -> Check:
    """verl's scorer of MATH: Hendrycks' normal form of the last box."""
    module = _module(Path(source) / "verl/utils/reward_score/math_reward.py")
    return lambda label, completion: module.compute_score(_boxed(completion), _bare(label)) >= 1


def verl_dapo(source: str) -> Check:
    """verl's scorer of DAPO: Minerva's normal form of what follows `Answer:`, else the last box as it is."""
    module = _module(Path(source) / "verl/utils/reward_score/math_dapo.py")
    return lambda label, completion: bool(module.compute_score(_boxed(completion), _bare(label))["acc"])


def verl_prime(source: str) -> Check:
    """verl's scorer of PRIME: several normal forms, then SymPy."""
    root = Path(source) / "verl"
    for name in ("verl", "verl.utils", "verl.utils.reward_score"):  # verl's own __init__ would import torch
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [str(root.parent / name.replace(".", "/"))]
    sys.modules["verl.utils.metric"] = types.SimpleNamespace(Metric=object)  # type: ignore[assignment]
    module = importlib.import_module("verl.utils.reward_score.prime_math")
    return lambda label, completion: bool(module.compute_score(_boxed(completion), _bare(label))[0])


def lm_eval(source: str) -> Check:
    """lm-eval's functions for Minerva and for Hendrycks' MATH: an answer is right if one of them accepts it."""
    tasks = Path(source) / "lm_eval/tasks"
    return _minerva(_module(tasks / "minerva_math/utils.py"), _module(tasks / "hendrycks_math/utils.py").is_equiv)


def open_instruct(checkout: str) -> Check:
    """The functions under open-instruct's math verifier, from a checkout: the project is on no package index."""
    module = _module(Path(checkout) / "open_instruct/math_utils.py")
    return _minerva(module, module.hendrycks_is_equiv)


def _minerva(module: Any, alike: Callable[[str, str], bool]) -> Check:
    """The box, the phrase of Minerva's prompt, else the last formula between dollars: any of them may be right."""

    def answers(completion: str) -> list[str]:
        found = []
        with contextlib.suppress(AssertionError):
            box = module.last_boxed_only_string(completion)
            found += [] if box is None else [module.remove_boxed(box)]
        phrase = module.normalize_final_answer(module.get_unnormalized_answer(completion))
        found += [] if "invalidanswer" in phrase else [phrase]
        parts = completion.split("$")
        if not found and len(parts) > 2:
            found.append(module.normalize_final_answer(parts[-2]))
        return found or [module.normalize_final_answer(completion)]

    def check(label: str, completion: str) -> bool:
        wanted = _bare(label)
        return any(alike(answer, wanted) or module.is_equiv(answer, wanted) for answer in answers(completion))

    return check


def inspect_ai() -> Check:
    """inspect-ai's math scorer."""
    from inspect_ai.model import ModelName, ModelOutput
    from inspect_ai.scorer import Target, math
    from inspect_ai.solver import TaskState

    scorer, loop = math(), asyncio.new_event_loop()

    def check(label: str, completion: str) -> bool:
        output = ModelOutput.from_content("none", completion)
        state = TaskState(ModelName("none/none"), 0, 0, "", [], output=output)
        return loop.run_until_complete(scorer(state, Target(label))).value == "C"

    return check


PEERS: dict[str, Callable[..., Check]] = {
    "math-verify": math_verify,
    "verl math": verl_math,
    "verl dapo": verl_dapo,
    "verl prime": verl_prime,
    "lm-eval": lm_eval,
    "inspect-ai": inspect_ai,
    "open-instruct": open_instruct,
}


def _bare(label: str) -> str:
    """The label without dollar signs, for checkers that need it."""
    return label.strip().strip("$")


def _boxed(completion: str) -> str:
    """The answer in a box, for checkers that read only a box or a phrase."""
    if "\\boxed" in completion or "nswer" in completion:
        return completion
    return rf"\boxed{{{completion.strip().strip('$')}}}"


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"peer_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Answer each line of standard input with one of standard output."""
    out = sys.stdout
    sys.stdout = sys.stderr  # checkers print
    check = PEERS[sys.argv[1]](*sys.argv[2:])
    out.write("ready\n")
    out.flush()
    for line in sys.stdin:
        label, completion = json.loads(line)
        started = time.perf_counter()
        try:
            paid: bool | None = check(label, completion)
        except Exception:  # another project's code on hard inputs
            paid = None
        out.write(json.dumps([paid, time.perf_counter() - started]) + "\n")
        out.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
