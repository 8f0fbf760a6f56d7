"""OlmoRL: asynchronous reinforcement learning from verifiable rewards."""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Gives `read_run`, which reads a run into tables. It imports its libraries when it is first asked for."""
    if name == "read_run":
        from importlib import import_module

        return import_module("olmorl.deploy.run_tables").read_run
    raise AttributeError(f"module 'olmorl' has no attribute {name!r}")
