"""Has an engine answer prompts, and the verifiers score the answers. What the file of answers has is not made again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from hashlib import blake2b
from typing import NamedTuple

from msgspec.structs import replace

from olmorl import seeds
from olmorl.actors.episodes.runner import Player
from olmorl.actors.leased_groups import LeasedGroup
from olmorl.clock import SystemClock
from olmorl.config import Config
from olmorl.deploy import wiring
from olmorl.deploy.evaluation.answer_file import EPISODE, AnswerFile, Key, completion_of, episode_of
from olmorl.deploy.evaluation.answer_file import Row as AnswerRow
from olmorl.deploy.evaluation.measures import Answers, Outcome
from olmorl.deploy.evaluation.votes import has_votes, votes
from olmorl.deploy.verify.row_scoring import scored, verdict_fields
from olmorl.errors import ConfigError, PromptRefused, Unscorable, first_cause
from olmorl.learner.orchestrator.draw_source import prompt_of
from olmorl.messages import Completion, Lease, Prompt, Version
from olmorl.ports import Engine, Row, Sampling
from olmorl.verifiers.scorer import VerifierScorer

_WITHOUT_INFLUENCE = {"workers", "timeout_s", "function_timeout_s"}
"""Settings of the verifiers that may change between two parts of an evaluation."""
_VERDICT = ("reward", "solved", "extracted", "method", "error_kind", "detail", "seconds")
Progress = Callable[[int, int], None]
"""Called with the number of scored answers and of all answers."""


class Job(NamedTuple):
    """The answers of one model to one data set."""

    model: str
    """Its name in the file."""
    data: str
    settings: Config
    """The model, how it is run, and the verifiers."""
    prompts: Sequence[Prompt]
    sampling: Sampling
    samples: int

    def key(self, prompt: Prompt, sample: int) -> Key:
        """Where an answer stands in the file."""
        return Key(self.model, self.data, prompt.row, sample)

    def digest(self, prompt: Prompt) -> str:
        """Names all that the answers to a prompt and their verdicts depend on, besides the model."""
        verifiers = self.settings.verifiers.model_dump(mode="json", exclude=_WITHOUT_INFLUENCE)
        sampling, episodes = self.sampling, self.settings.episodes
        played = [episodes.model_dump(mode="json", exclude={"timeout_s", "host"})] if episodes.player else []
        said = (
            prompt.token_ids.tolist(), prompt.datasets, prompt.ground_truths, verifiers, self.settings.run.seed,
            sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.stop, *played,
        )  # fmt: skip
        return blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()

    def answers(self, file: AnswerFile) -> dict[str, Answers]:
        """The scored answers of each prompt, by its row."""
        found = {}
        for prompt in self.prompts:
            outcomes = [file.outcome(self.key(prompt, sample)) for sample in range(self.samples)]
            there: list[Outcome] = [outcome for outcome in outcomes if outcome is not None]
            found[prompt.row] = Answers(there, has_votes(prompt.datasets))
        return found


def prompts_of(rows: Sequence[Row], samples: int) -> list[Prompt]:
    """The rows of a data set as prompts, numbered in their order."""
    return [
        prompt_of(row, lane="evaluation", draw_id=n, attempt=1, group_size=samples, min_version=Version(0, 0))
        for n, row in enumerate(rows)
    ]


def check_single(settings: Config, what: str) -> None:
    """Raises ConfigError for the settings of episodes: here each prompt is answered once."""
    if settings.episodes.player is not None:
        key = "agent" if settings.episodes.agent else "environment"
        raise ConfigError(
            f"{what}: episodes.{key} = {settings.episodes.player!r} plays several turns, and here each "
            "prompt is answered once: evaluate it in its run, or with olmorl-eval --config RECIPE.toml"
        )


async def answer(job: Job, file: AnswerFile, scorer: VerifierScorer, progress: Progress) -> dict[Key, str]:
    """Complete the answers of a job. The engine starts only if an answer is missing.

    Returns the causes of those that could not be made: their episodes failed every time.

    Raises:
        EngineDied: the engine has ended; all finished answers are in the file.
    """
    digests = {prompt.row: job.digest(prompt) for prompt in job.prompts}
    wanted = [(prompt, sample) for prompt in job.prompts for sample in range(job.samples)]
    missing = [one for one in wanted if not file.has(job.key(*one), digests[one[0].row])]
    work = _Work(job, file, scorer, digests, progress)
    if not missing:
        await work.complete(None, None)
        return {}
    async with AsyncExitStack() as owned:
        engine = wiring.engine(job.settings, None, name="evaluation")
        owned.push_async_callback(engine.stop)
        await engine.start(None)
        player = None
        if play := wiring.play(job.settings):
            player = play.player(engine, SystemClock(), lambda: None)
            owned.push_async_callback(player.stop)
            await player.start()
        await work.complete(engine, player)
    return work.failed


class _Work:
    """Each answer is written as soon as it is generated, and again, with the verdict, when all of its prompt are there.

    Generation never waits for verifiers. An answer without a reward is scored again, and never generated again.
    """

    def __init__(
        self, job: Job, file: AnswerFile, scorer: VerifierScorer, digests: Mapping[str, str], progress: Progress
    ) -> None:
        self._job = job
        self._file = file
        self._scorer = scorer
        self._digests = digests
        self._progress = progress
        # Twice the sequences that run together: the engine never lacks one.
        self._room = asyncio.Semaphore(2 * job.settings.actors.max_running // job.samples + 1)
        self._done = 0
        self.failed: dict[Key, str] = {}
        """Why an answer could not be made. It is not in the file, so --resume tries it again."""

    async def complete(self, engine: Engine | None, player: Player | None) -> None:
        """Answer and score all prompts. Without an engine all answers are there; with a player they are episodes."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for prompt in self._job.prompts:
                    tasks.create_task(self._prompt(engine, player, prompt))
        except BaseExceptionGroup as group:
            raise first_cause(group) from group

    async def _prompt(self, engine: Engine | None, player: Player | None, prompt: Prompt) -> None:
        keys = [self._job.key(prompt, sample) for sample in range(self._job.samples)]
        outcomes = [self._file.outcome(key) for key in keys]
        if any(outcome is None or outcome.solved is None for outcome in outcomes):
            async with self._room, asyncio.TaskGroup() as samples:
                for key in keys:
                    if not self._file.has(key, self._digests[prompt.row]):
                        assert engine is not None
                        samples.create_task(self._generate(engine, player, prompt, key))
            if made := [key for key in keys if key not in self.failed]:
                await self._score(prompt, made)
        self._done += len(keys)
        self._progress(self._done, len(self._job.prompts) * self._job.samples)

    async def _generate(self, engine: Engine, player: Player | None, prompt: Prompt, key: Key) -> None:
        seed = seeds.derive(self._job.settings.run.seed, prompt.row, key.sample)
        sampling = replace(self._job.sampling, seed=seed)
        request_id = f"{prompt.draw_id}/{key.sample}"
        try:
            if player is None:
                completion = await engine.generate(request_id, prompt.token_ids, sampling)
            else:
                work = LeasedGroup(Lease(prompt=prompt, lease_id=request_id, owner="evaluation", deadline=0.0))
                completion = await player.run(work, key.sample, request_id, sampling)
        except (PromptRefused, Unscorable) as error:
            if player is None:
                raise PromptRefused(f"{prompt.row}: {error}") from None
            self.failed[key] = str(error)
        else:
            self._file.add(self._generated(prompt, key, completion))

    def _generated(self, prompt: Prompt, key: Key, completion: Completion) -> AnswerRow:
        return {
            **key._asdict(),
            "prompt": prompt.messages,
            "ground_truth": list(prompt.ground_truths),
            "dataset": list(prompt.datasets),
            "completion": completion.text,
            "completion_ids": completion.token_ids.tolist(),
            "finish_reason": completion.finish_reason,
            EPISODE: episode_of(completion),
            "settings": self._digests[prompt.row],
        }

    async def _score(self, prompt: Prompt, keys: Sequence[Key]) -> None:
        """Score all answers of a prompt together: functions see the group, and votes are counted in it."""
        rows = [self._file.row(key) for key in keys]
        started = time.perf_counter()
        results = await scored(self._scorer, prompt, [completion_of(row) for row in rows])
        ballots = await votes(self._scorer, prompt, [completion for completion, _ in results])
        seconds = (time.perf_counter() - started) / len(rows)
        for row, result, vote in zip(rows, results, ballots, strict=True):
            fields = verdict_fields(*result, seconds)
            self._file.add(row | {name: fields[name] for name in _VERDICT} | {"vote": vote})
