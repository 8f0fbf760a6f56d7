"""OlmoRL: asynchronous reinforcement learning from verifiable rewards.

run         trains as `olmorl-launch` does        Recipe      a recipe as an object
verify      scores as `olmorl-verify` does        read_run    the tables of a run
"""

from typing import Any

__version__ = "0.1.0"
_PLACES = {
    "run": "olmorl.deploy.api",
    "verify": "olmorl.deploy.api",
    "Recipe": "olmorl.deploy.api",
    "read_run": "olmorl.deploy.run_tables",
}


def __getattr__(name: str) -> Any:
    """Gives the public functions. Their libraries are imported when one is first asked for."""
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'olmorl' has no attribute {name!r}")
