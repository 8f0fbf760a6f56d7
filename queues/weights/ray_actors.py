"""Ray actors of the weight store, found by their names on all hosts of a run."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

_NAMESPACE = "olmorl"


def make_here(name: str, kind: type, *args: Any) -> Any:
    """The Ray actor `name` of this host, made if there is none. It ends with the process that made it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"name": name, "namespace": _NAMESPACE, "get_if_exists": True, "num_cpus": 0}
    return ray.remote(kind).options(**options, scheduling_strategy=here).remote(*args)


def find(name: str) -> Any:
    """The Ray actor `name`; None if there is none. Raises RayError if Ray does not answer."""
    try:
        return ray.get_actor(name, _NAMESPACE)
    except ValueError:
        return None


def first_line(error: Exception) -> str:
    """The kind of an error and the first line of its message: those of Ray are long."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
