"""A taskset for verifiers as its authors would write one: a game of two answers, rewarded for different letters."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf  # noqa: TID251


class LettersConfig(vf.TasksetConfig):
    size: int = 4
    broken: bool = False


class LettersData(vf.TaskData):
    goal: int


class LettersTask(vf.Task[LettersData]):
    @vf.reward
    async def different(self, trace: vf.Trace) -> float:
        if self.data.goal < 0:
            raise LookupError("no such goal")
        return min(len(set(trace.last_reply)) / self.data.goal, 1.0)

    @vf.metric
    async def replies(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class LettersTaskset(vf.Taskset[LettersTask, LettersConfig]):
    def load(self) -> Iterator[LettersTask]:
        for number in range(self.config.size):
            goal = -1 if self.config.broken else 10 + number
            yield LettersTask(LettersData(name=f"goal {goal}", goal=goal), self.config.task)


class LettersEnvConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime=vf.SubprocessConfig())


class LettersEnv(vf.Env[LettersEnvConfig]):
    async def run(self, task: LettersTask, agents: vf.Agents) -> None:
        async with agents.writer.interaction(task) as writer:
            await writer.turn(f"Write {task.data.goal} different letters.")
            await writer.turn("Once more.")


__all__ = ["LettersEnv", "LettersTaskset"]
