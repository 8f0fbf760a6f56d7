"""`python -m reaching.engine_alone RECIPE PROMPTS ANSWERED_AT HOW`: an engine starts without the service.

It answers a batch of prompts, then writes the time, and stops. HOW is "as vLLM", or "as an actor": vLLM is imported in
the process of the engine core at the same time as here.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.ports import Sampling


async def answer(settings: config.Config, prompts: Sequence[Sequence[int]], how: str) -> float:
    """Start an engine on the core of the first actor. Returns the time at which each prompt has a group of answers."""
    wanted = settings.sampling
    sampling = Sampling(
        temperature=wanted.temperature, max_tokens=wanted.max_tokens, top_p=wanted.top_p, top_k=wanted.top_k
    )
    core, processes = plan(settings).engine_cores[0], wiring.engine_processes(settings)
    if how == "as an actor":
        wiring.load_engine(settings, core, processes, has_core=True)
    engine = wiring.engine(settings, core, processes=processes)
    await engine.start(None)
    try:
        async with asyncio.TaskGroup() as tasks:
            for (number, prompt), index in product(enumerate(prompts), range(wanted.group_size)):
                tasks.create_task(engine.generate(f"{number}/{index}", np.array(prompt, np.int32), sampling))
        return time.time()
    finally:
        await engine.stop()


if __name__ == "__main__":
    recipe, prompts, answered_at = map(Path, sys.argv[1:4])
    at = asyncio.run(answer(config.load(recipe), json.loads(prompts.read_text()), sys.argv[4]))
    answered_at.write_text(str(at))
