"""The demo: a tiny policy and its problems, made on the spot once and kept in a cache named after its settings.

    runs/cache/sums-<hash>/model/        a Hugging Face folder
                           train.jsonl   problems to learn from
                           test.jsonl    other problems, held out

`resolve` only fills in the paths, so that `--dry-run` can show them; `prepare` makes the missing files.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

from olmorl.config import Config
from olmorl.deploy.demo.arithmetic import sums
from olmorl.deploy.demo.calculator import calculated_sums
from olmorl.deploy.demo.mixture import mixture
from olmorl.deploy.demo.problem import Problem, write
from olmorl.deploy.demo.settings import DemoSettings, Progress, WarmStart
from olmorl.errors import unwritable

BUILDS: Mapping[str, DemoSettings] = {
    "demo": DemoSettings(),
    "mixed": DemoSettings("mixture", num_train=4000, warm_start=WarmStart(steps=720, careful_share=0.4)),
    "calculator": DemoSettings("calculator", {3: 40, 4: 40, 5: 20}),
}
"""The demos that `model.build` can name."""


def resolve(config: Config, settings: DemoSettings | None = None) -> Config:
    """Fill in the paths of the model and data of `model.build`. Given data stays; a second call changes nothing."""
    if config.model.build is None:
        return config
    folder = _folder(config, settings or BUILDS[config.model.build])
    data, evaluation = config.data, config.evaluation
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": str(folder / "model")}),
            "data": data.model_copy(update={"train": data.train or [str(folder / "train.jsonl")]}),
            "evaluation": evaluation.model_copy(
                update={"data": evaluation.data or [f"held_out={folder / 'test.jsonl'}"]}
            ),
        }
    )


def prepare(config: Config, progress: Progress, settings: DemoSettings | None = None) -> None:
    """Make the files that `resolve` named, if they are missing: one to five minutes on one core.

    Args:
        progress: called with a word for people and the finished share.

    Raises:
        ResourceError: the folder of the runs has no room for it.
    """
    if config.model.build is None:
        return
    settings = settings or BUILDS[config.model.build]
    folder = _folder(config, settings)
    try:
        if folder.exists():
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise unwritable(folder.parent, error) from None
    try:
        _make(part, settings, progress)
        part.rename(folder)
    except OSError as error:
        if not folder.exists():  # else another start has made it meanwhile
            raise unwritable(folder.parent, error) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _folder(config: Config, settings: DemoSettings) -> Path:
    return settings.folder(config.run.directory / "cache")


def _make(folder: Path, settings: DemoSettings, progress: Progress) -> None:
    # Imported here, so that a dry run needs no torch.
    from transformers.utils import logging

    from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer, warm_start

    # One stream of different problems feeds all three: none of the held-out ones is ever trained on.
    source: Iterator[Problem]
    if settings.problems == "mixture":
        source = mixture(settings.seed)
    else:
        source = (sums if settings.problems == "sums" else calculated_sums)(settings.seed, settings.terms)
    write(folder / "test.jsonl", islice(source, settings.num_test))
    write(folder / "train.jsonl", islice(source, settings.num_train))
    tokenizer = build_tokenizer(settings.policy.max_tokens)
    model = build_model(settings.policy, tokenizer, settings.seed)
    warm_start(model, tokenizer, source, settings.warm_start, settings.seed, progress)
    logging.disable_progress_bar()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
