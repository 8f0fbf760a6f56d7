"""TRL's GRPOTrainer, run by this service: `from olmorl.trl import GRPOConfig, GRPOTrainer`."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Gives the two classes. Their libraries are imported when one is first asked for."""
    if name in ("GRPOConfig", "GRPOTrainer"):
        from importlib import import_module

        return getattr(import_module("olmorl.deploy.trl_script"), name)
    raise AttributeError(f"module 'olmorl.trl' has no attribute {name!r}")
