"""`olmorl-data difficulty`: how often the start policy solves each prompt of a recipe, and the prompts in between.

FOLDER/answers.jsonl      one row an answer, as `olmorl-eval` writes it; goes on after a kill
FOLDER/pass_rates.jsonl   one row a prompt
FOLDER/SOURCE.jsonl       the rows of a source whose pass rate is within the bounds, for `data.train`
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from olmorl import config
from olmorl.deploy.data_sets.conversion import write
from olmorl.deploy.demo import demo
from olmorl.deploy.evaluation.answer_file import AnswerFile
from olmorl.deploy.evaluation.measures import Answers
from olmorl.deploy.evaluation.progress import Progress
from olmorl.deploy.evaluation.sampler import Job, answer, check_single, prompts_of
from olmorl.errors import ConfigError, DataError
from olmorl.learner.data.loader import Loader, open_tokenizer, training_sources
from olmorl.learner.data.readers import parse_spec, read
from olmorl.learner.data.stream import Source
from olmorl.ports import Sampling
from olmorl.toml import literal
from olmorl.verifiers.label_check import LabelChecker
from olmorl.verifiers.scorer import VerifierScorer

_ANSWERS, _RATES = "answers.jsonl", "pass_rates.jsonl"


class PassRate(NamedTuple):
    """How often a prompt was solved. The columns are those of `olmorl-verify --pass-rate`."""

    num_samples: int
    num_errors: int
    pass_rate: float | None
    """None: no answer has a reward."""
    reward_mean: float | None


class Difficulty:
    """Every prompt of `data.train` is answered once, over all starts of the command."""

    def __init__(self, arguments: argparse.Namespace, settings: config.Config) -> None:
        self._arguments = arguments
        self._settings = demo.resolve(settings)
        self._folder: Path = arguments.output
        self.lines: list[str] = []
        """What the command says at its end."""

    async def run(self) -> None:
        """Generate, score and write.

        Raises:
            DataError: a source cannot be used, or the folder has the answers of another command.
        """
        demo.prepare(self._settings, lambda what, share: None)
        settings, arguments = self._settings, self._arguments
        with LabelChecker(settings.verifiers) as check:
            loader = Loader(settings.data, open_tokenizer(settings.model), settings.verifiers, check)
            sources = training_sources(loader, settings.data, arguments.limit)
        _check_names(sources)
        self._folder.mkdir(parents=True, exist_ok=True)
        sampling = Sampling(temperature=settings.sampling.temperature, max_tokens=settings.sampling.max_tokens,
                            stop=tuple(settings.sampling.stop))  # fmt: skip
        rows = list({row.row: row for source in sources for row in source.rows}.values())
        job = Job(
            settings.model.path, "train", settings, prompts_of(rows, arguments.samples), sampling, arguments.samples
        )
        scorer = VerifierScorer(settings.verifiers, settings.schedule.steps)
        with AnswerFile(self._folder / _ANSWERS, resume=arguments.resume, replace=arguments.force) as file:
            try:
                await scorer.start()
                await answer(job, file, scorer, Progress(settings.model.path))
            finally:
                await scorer.stop()
            rates = {row: pass_rate(answers) for row, answers in job.answers(file).items()}
            file.finish()
        self._write(sources, rates)

    def _write(self, sources: list[Source], rates: Mapping[str, PassRate]) -> None:
        write(({"row": row, **rate._asdict()} for row, rate in rates.items()), self._folder / _RATES)
        specs = []
        for source, text in zip(sources, self._settings.data.train, strict=True):
            file = self._folder / f"{Path(source.name).stem}.jsonl"
            kept = list(self._kept(source.name, rates))
            asked = sum(row.row in rates for row in source.rows)
            self.lines.append(f"{source.name}: {len(kept):,} of {asked:,} prompts are within the bounds")
            if kept:
                write(kept, file)
                weight = parse_spec(text).weight
                specs.append(f"{file}:{weight:g}" if weight is not None else str(file))
        self.lines.append(f"pass rates: {self._folder / _RATES}; in the recipe: [data] train = {literal(specs)}")

    def _kept(self, name: str, rates: Mapping[str, PassRate]) -> Iterator[dict[str, Any]]:
        """The rows as they were read, with their pass rates. A prompt without any reward stays."""
        least, most = self._arguments.min_pass_rate or 0.0, self._arguments.max_pass_rate
        for place, values in read(name, self._settings.data.split, columns=True):
            rate = rates.get(place)
            if rate is not None and (rate.pass_rate is None or least <= rate.pass_rate <= most):
                yield {**values, **rate._asdict()}


def pass_rate(answers: Answers) -> PassRate:
    """The pass rate of one prompt."""
    scored = [outcome for outcome in answers.outcomes if outcome.solved is not None]
    rewards = [outcome.reward for outcome in scored if outcome.reward is not None]
    return PassRate(
        len(scored),
        len(answers.outcomes) - len(scored),
        sum(bool(outcome.solved) for outcome in scored) / len(scored) if scored else None,
        sum(rewards) / len(rewards) if rewards else None,
    )


def check(arguments: argparse.Namespace, settings: config.Config) -> None:
    """Raises ConfigError or DataError for options that do not go together, before anything starts."""
    if arguments.resume and arguments.force:
        raise ConfigError("--resume goes on with the answers and --force replaces them: give one of them")
    least, most = arguments.min_pass_rate or 0.0, arguments.max_pass_rate
    if least > most:
        raise ConfigError(f"--min-pass-rate {least:g} is over --max-pass-rate {most:g}: no prompt would be left")
    if settings.run.mode == "simulated":
        raise ConfigError("a simulated run has no model: its prompts have no difficulty")
    check_single(settings, "difficulty")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise DataError(f"{arguments.output}: it is a file; -o names a folder")


def _check_names(sources: list[Source]) -> None:
    """Raises DataError for two sources that would have one output file."""
    names = [Path(source.name).stem for source in sources]
    for name in names:
        if names.count(name) > 1 or f"{name}.jsonl" in (_ANSWERS, _RATES):
            raise DataError(f"data.train: {name}.jsonl would be written twice; rename one of the sources")
