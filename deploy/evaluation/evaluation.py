"""One run of `olmorl-eval`: each model answers the same prompts, then the table is printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.evaluation import models
from olmorl.deploy.evaluation.answer_file import AnswerFile
from olmorl.deploy.evaluation.progress import Progress
from olmorl.deploy.evaluation.protocol import Protocol
from olmorl.deploy.evaluation.questions import questions, source_of
from olmorl.deploy.evaluation.report import Result, as_json, result, table
from olmorl.deploy.evaluation.sampler import Job, answer, check_single, prompts_of
from olmorl.deploy.preflight import hub
from olmorl.deploy.view.console import SafeConsole
from olmorl.errors import RunEnded
from olmorl.ports import Sampling
from olmorl.verifiers.scorer import VerifierScorer


class Evaluation:
    """Every model answers every prompt once, over all starts of the command."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        settings: Config,
        protocol: Protocol,
        names: Sequence[str],
        source: str | None,
        data: str,
    ) -> None:
        """`names` are the models, and `data` is the name of the data in the file of answers."""
        self._arguments = arguments
        self._settings = _for(protocol, settings)
        self._given = arguments.config is not None
        self._protocol = protocol
        self._source = source_of(protocol, source)
        self._data = data
        self._choices = [models.choose(name) for name in names]
        for choice in self._choices:
            if choice.step is None:
                hub.check_model(models.with_model(settings, settings.model, choice.path).model)
            elif not self._given:
                check_single(models.recipe_of(choice), choice.name)
        self._output = arguments.output or Path(f"{data}-answers.jsonl")
        self._people = SafeConsole(stderr=True, highlight=False)

    async def run(self) -> None:
        """Generate, score, and print.

        Raises:
            RunEnded: no answer could be made, or none could be scored.
        """
        arguments = self._arguments
        scorer = VerifierScorer(self._settings.verifiers, self._settings.schedule.steps)
        with AnswerFile(self._output, resume=arguments.resume, replace=arguments.force) as file:
            try:
                await scorer.start()
                results = [await self._model(choice, file, scorer) for choice in self._choices]
            finally:
                await scorer.stop()
            file.finish()
        self._show(results)

    async def _model(self, choice: models.Choice, file: AnswerFile, scorer: VerifierScorer) -> Result:
        protocol = self._protocol
        sampling = Sampling(
            temperature=protocol.temperature, top_p=protocol.top_p, max_tokens=protocol.max_tokens,
            stop=tuple(self._settings.sampling.stop),
        )  # fmt: skip
        with models.opened(choice, self._settings, self._given) as settings:
            rows = questions(settings, protocol, self._source, self._arguments.limit, self._say)
            prompts = prompts_of(rows, protocol.samples)
            job = Job(choice.name, self._data, settings, prompts, sampling, protocol.samples)
            failed = await answer(job, file, scorer, Progress(choice.name))
        causes = {(key.row, key.sample): cause for key, cause in sorted(failed.items())}
        return result(choice.name, job.answers(file), protocol.samples, protocol.ks, causes)

    def _show(self, results: Sequence[Result]) -> None:
        head = {"data": self._data, "source": self._source, "protocol": self._protocol.model_dump(),
                "answers": str(self._output)}  # fmt: skip
        if self._arguments.json:
            print(json.dumps(as_json(results, head), indent=2))
        else:
            # A table in a file or a narrow terminal keeps its columns.
            SafeConsole(highlight=False, width=1000).print(table(results, f"{self._data}: percent (95% interval)"))
        for one in results:
            for (row, sample), cause in one.failed.items():
                self._say(f"{row}: the episode {sample} of {one.model} failed and counts in no number: {cause}")
        if not any(one.answers for one in results):
            raise RunEnded("every episode failed; --resume goes on")
        self._say(f"answers: {self._output}")
        if not any(one.numbers for one in results):
            raise RunEnded(f"no answer could be scored: the columns error_kind and detail of {self._output} say why")

    def _say(self, text: str) -> None:
        self._people.print(text, markup=False, soft_wrap=True)


def _for(protocol: Protocol, settings: Config) -> Config:
    """The settings with the protocol's own: an engine with room for its answers, its system prompt."""
    data = settings.data.model_copy(update={"system_prompt": protocol.system_prompt or settings.data.system_prompt})
    sampling = settings.sampling.model_copy(update={"max_tokens": protocol.max_tokens})
    # One process: no run uses the recipe's cores meanwhile.
    return settings.model_copy(update={"data": data, "sampling": sampling})
