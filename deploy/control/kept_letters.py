"""Reads the dead letters of a run without a launcher, from a copy of the file of its Redis."""

from __future__ import annotations

import asyncio
import base64
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from olmorl import config
from olmorl.clock import SystemClock
from olmorl.deploy.credentials import QueueAccess, run_id
from olmorl.learner.storage.checkpoint_dir import newest_state
from olmorl.messages import TRAIN_LANE
from olmorl.queues.prompts.redis_queue import RedisQueue
from olmorl.queues.redis_server.data_dir import newest_folder
from olmorl.queues.redis_server.embedded_server import EmbeddedRedis
from olmorl.run_dir import RunFiles


def kept_letters(run_dir: Path) -> list[dict[str, Any]]:
    """The dead letters that the run has left, oldest first, as its launcher would give them.

    Raises:
        UserError: the recipe or the ledger of the run cannot be read, or its Redis does not answer.
    """
    settings = config.load(RunFiles(run_dir).config, of_run=True)
    state = newest_state(RunFiles(run_dir))
    rows = {draw_id: draw.row for draw_id, draw in (state.open | state.failed | state.to_replay).items()}
    if settings.queue.url is not None:
        return asyncio.run(_letters(settings, QueueAccess.of_recipe(settings.queue.url), rows))
    with TemporaryDirectory() as copy:
        shutil.copytree(newest_folder(RunFiles(run_dir).redis), copy, dirs_exist_ok=True)
        with EmbeddedRedis(Path(copy)) as server:
            return asyncio.run(_letters(settings, QueueAccess(server.url, server.environment), rows))


async def _letters(settings: config.Config, access: QueueAccess, rows: dict[int, str]) -> list[dict[str, Any]]:
    clock, name = SystemClock(), run_id(settings.run_dir)
    queue = await RedisQueue.connect(access.url, name, settings.queue, 1, clock, access.environment)
    try:
        return [
            {
                "draw": letter.draw_id,
                "row": rows.get(letter.draw_id, ""),
                "reason": letter.reason,
                "payload": base64.b64encode(letter.payload).decode(),
            }
            for letter in await queue.dead_letters(TRAIN_LANE)
        ]
    finally:
        await queue.close()
