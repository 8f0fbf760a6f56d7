"""A process that owns an engine, for the test that kills it: `engine_owner.py FOLDER DTYPE PROMPT SAMPLING`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import numpy as np

from olmorl import config
from olmorl.actors.vllm_engine.engine import VllmEngine
from olmorl.actors.vllm_engine.processes import EngineProcesses
from olmorl.actors.vllm_engine.start import EngineStart
from olmorl.messages import Version
from olmorl.ports import Sampling


async def main(folder: str, dtype: str, prompt: str, sampling: str) -> None:
    engine = VllmEngine(
        EngineStart(
            config.build({"model": {"path": folder, "dtype": dtype}}).model,
            config.Actors(max_running=32, kv_cache_gib=0.25, enforce_eager=True),
            max_model_len=256,
            seed=0,
            core=0,
            processes=EngineProcesses(Path(folder, "notes")),
        ),
        Version(1, 0),
    )
    await engine.start(None)
    answer = await engine.generate(
        "fresh", np.array(json.loads(prompt), dtype=np.int32), msgspec.json.decode(sampling, type=Sampling)
    )
    print(json.dumps([answer.token_ids.tolist(), answer.logprobs.tolist()]), flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
