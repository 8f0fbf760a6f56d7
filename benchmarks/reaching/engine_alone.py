"""`python -m reaching.engine_alone RECIPE PROMPTS`: an engine starts without the service and answers a batch."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.ports import Sampling


async def answer(settings: config.Config, prompts: Sequence[Sequence[int]]) -> None:
    """Start an engine on the core of the first actor, and generate a group of answers to each prompt."""
    wanted = settings.sampling
    sampling = Sampling(temperature=wanted.temperature, max_tokens=wanted.max_tokens, top_p=wanted.top_p)
    engine = wiring.engine(settings, plan(settings).engine_cores[0])
    await engine.start(None)
    try:
        async with asyncio.TaskGroup() as tasks:
            for (number, prompt), index in product(enumerate(prompts), range(wanted.group_size)):
                tasks.create_task(engine.generate(f"{number}/{index}", np.array(prompt, np.int32), sampling))
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(answer(config.load(Path(sys.argv[1])), json.loads(Path(sys.argv[2]).read_text())))
