"""`python -m reaching.engine_alone RECIPE`: starts an engine without the service and answers one batch of prompts."""

from __future__ import annotations

import asyncio
import sys
from itertools import product
from pathlib import Path

from olmorl import config
from olmorl.deploy import wiring
from olmorl.deploy.cluster.placement import plan
from olmorl.ports import Sampling


async def answer_a_batch(settings: config.Config) -> None:
    """Start an engine on the core of the first actor, and generate as many answers as a step trains."""
    wanted = settings.sampling
    sampling = Sampling(temperature=wanted.temperature, max_tokens=wanted.max_tokens, top_p=wanted.top_p)
    engine = wiring.engine(settings, plan(settings).engine_cores[0])
    await engine.start(None)
    try:
        stream, _, _ = await asyncio.to_thread(wiring.prompts, settings)
        rows = filter(None, (stream.draw() for _ in range(settings.schedule.prompts_per_step)))
        async with asyncio.TaskGroup() as tasks:
            for row, index in product(rows, range(wanted.group_size)):
                tasks.create_task(engine.generate(f"{row.row}/{index}", row.token_ids, sampling))
    finally:
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(answer_a_batch(config.load(Path(sys.argv[1]))))
