from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl import config
from olmorl.config import Config, Data, Verifiers
from olmorl.deploy.demo import demo
from olmorl.deploy.demo.arithmetic import Sum
from olmorl.deploy.demo.demo import prepare, resolve
from olmorl.deploy.demo.settings import DemoSettings, ModelSize, WarmStart
from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer, warm_start
from olmorl.errors import ResourceError
from olmorl.learner.data.loader import Loader

SMALL = DemoSettings(
    num_train=20,
    num_test=5,
    policy=ModelSize(hidden=32, intermediate=32, layers=2, heads=1),
    warm_start=WarmStart(steps=2, batch=2),
)


def demo_config(folder: Path, **overrides: str) -> Config:
    pairs = [("run.directory", str(folder)), ("model.build", "demo")]
    tree: dict[str, Any] = {}
    for dotted, value in [*pairs, *overrides.items()]:
        section, key = dotted.split(".")
        tree.setdefault(section, {})[key] = value
    return config.build(tree)


def test_paths_are_filled_in_without_making_anything(tmp_path: Path) -> None:
    resolved = resolve(demo_config(tmp_path))
    folder = DemoSettings().folder(tmp_path / "cache")
    assert resolved.model.path == str(folder / "model")
    assert resolved.data.train == [str(folder / "train.jsonl")]
    assert resolved.evaluation.data == [f"held_out={folder / 'test.jsonl'}"]
    assert resolve(resolved) == resolved
    assert not folder.exists()


def test_a_recipe_that_builds_nothing_stays_as_it_is() -> None:
    plain = Config()
    assert resolve(plain) is plain


def test_the_settings_name_the_cache(tmp_path: Path) -> None:
    assert SMALL.folder(tmp_path) != DemoSettings().folder(tmp_path)
    assert SMALL.folder(tmp_path) == SMALL.folder(tmp_path)


def test_what_is_made_is_a_model_folder_with_data_and_is_made_once(tmp_path: Path) -> None:
    settings, seen = demo_config(tmp_path), list[float]()
    prepare(settings, lambda _, share: seen.append(share), SMALL)
    assert seen == [0.5, 1.0]
    prepare(settings, lambda _, share: seen.append(share), SMALL)
    assert len(seen) == 2

    folder = SMALL.folder(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == [folder]
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    assert model.config.architectures == ["Olmo3ForCausalLM"]
    train, test = ((folder / f"{name}.jsonl").read_text().splitlines() for name in ("train", "test"))
    assert (len(train), len(test), set(train) & set(test)) == (20, 5, set())

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    source = Loader(Data(strict=True), tokenizer, Verifiers()).load(str(folder / "train.jsonl"))
    assert tokenizer.decode(source.rows[0].token_ids).startswith("<|user|>What is ")
    assert tokenizer.decode(source.rows[0].token_ids).endswith("?<|assistant|>")


def test_of_two_first_starts_one_makes_the_model(tmp_path: Path) -> None:
    folder = SMALL.folder(tmp_path / "cache")

    def other_start(what: str, share: float) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "model").mkdir(exist_ok=True)

    prepare(demo_config(tmp_path), other_start, SMALL)
    assert list((tmp_path / "cache").iterdir()) == [folder], "the part of this start is gone"


def test_a_disk_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(demo, "_make", full)
    with pytest.raises(ResourceError, match="No space left on device"):
        prepare(demo_config(tmp_path), lambda *_: None, SMALL)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(demo_config(tmp_path), stop, SMALL)
    assert list((tmp_path / "cache").iterdir()) == []


def test_every_text_comes_back_from_its_tokens() -> None:
    tokenizer = build_tokenizer(64)
    for text in (Sum((27, 85)).work_out(careful=True), "naïve  \t\n≤ 🙂 "):
        ids = tokenizer(text)["input_ids"]
        assert len(ids) == len(text.encode())
        assert tokenizer.decode(ids) == text


def test_the_warm_start_teaches_and_keeps_the_random_state() -> None:
    tokenizer = build_tokenizer(256)
    before = torch.get_rng_state()
    model = build_model(ModelSize(hidden=32, intermediate=64, layers=2, heads=1), tokenizer, seed=0)
    problem = Sum((27, 85))
    question = tokenizer(f"<|user|>{problem.question}<|assistant|>")["input_ids"]
    answer = tokenizer(problem.work_out(careful=True) + "<|end|>")["input_ids"]
    ids, labels = torch.tensor([question + answer]), torch.tensor([[-100] * len(question) + answer])
    with torch.no_grad():
        untrained = float(model(input_ids=ids, labels=labels).loss)
    settings = WarmStart(steps=80, batch=4, careful_share=1.0)
    warm_start(model, tokenizer, iter([problem] * 400), settings, 0, lambda what, share: None)
    with torch.no_grad():
        assert float(model(input_ids=ids, labels=labels).loss) < 0.5 * untrained
    assert torch.equal(torch.get_rng_state(), before)
