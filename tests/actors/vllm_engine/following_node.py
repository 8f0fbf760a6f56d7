"""The further node of an engine, in a process of its own: `following_node.py MODEL DTYPE CORE NOTES MEETING_POINT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from olmorl import config
from olmorl.actors.vllm_engine import arguments
from olmorl.actors.vllm_engine.follower import VllmFollower
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.ports import EngineNode
from tests.actors.vllm_engine.test_engine import MAX_MODEL_LEN

LOADER = "tests.actors.vllm_engine.refusing_loader.RefusingLoader"


def settings() -> config.Actors:
    """Of both nodes."""
    return config.Actors(
        nodes=2, nodes_per_engine=2, tensor_parallel=2, max_running=4, kv_cache_gib=0.25, enforce_eager=True
    )


def main(model: str, dtype: str, core: str, notes: str, meeting_point: str) -> None:
    """Follow until a worker ends."""
    arguments.LOADER = LOADER  # type: ignore[misc]
    follower = VllmFollower(
        EngineStart(
            config.Model(path=model, dtype=dtype),  # type: ignore[arg-type]
            settings(),
            max_model_len=MAX_MODEL_LEN,
            seed=0,
            core=int(core),
            processes=EngineProcesses(Path(notes)),
            node=EngineNode(1, 2, meeting_point),
        )
    )
    asyncio.run(follower.run())


if __name__ == "__main__":
    main(*sys.argv[1:])
