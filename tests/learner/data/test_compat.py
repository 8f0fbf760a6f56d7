"""A tokenizer that was imported without torch gives the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from olmorl.config import Model
from olmorl.learner.data.compat import import_tokenizers
from olmorl.learner.data.loader import open_tokenizer
from tests.deploy.folders import bare_model

pytestmark = pytest.mark.doors
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
TURNS = [{"role": "user", "content": "1 + 1 = ü?"}]
IN_A_NEW_PROCESS = """
import json, sys
from olmorl.config import Model
from olmorl.learner.data.compat import import_tokenizers
from olmorl.learner.data.loader import open_tokenizer

folder, turns, code = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "code"
model = Model(path=folder, trust_remote_code=code)
import_tokenizers(model)
tokenizer = open_tokenizer(model)
text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
found = {"text": text, "ids": tokenizer(text)["input_ids"], "has_torch": "torch" in sys.modules}
import torch
print(json.dumps({**found, "one": int(torch.ones(1))}))
"""


def in_a_new_process(folder: Path, how: str = "") -> tuple[dict[str, object], str]:
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(folder), json.dumps(TURNS), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), done.stderr


def test_the_tokens_are_the_same_without_torch(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m", TEMPLATE)
    found, said = in_a_new_process(folder)
    tokenizer = open_tokenizer(Model(path=str(folder)))
    text = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert found == {"text": text, "ids": tokenizer(text)["input_ids"], "has_torch": False, "one": 1}
    assert "PyTorch" not in said


def test_code_of_a_model_gets_torch(tmp_path: Path) -> None:
    found, _ = in_a_new_process(bare_model(tmp_path / "m", TEMPLATE), "code")
    assert found["has_torch"] is True


def test_a_process_that_has_torch_keeps_it(tmp_path: Path) -> None:
    import torch
    import transformers

    import_tokenizers(Model(path=str(bare_model(tmp_path / "m", TEMPLATE))))
    assert sys.modules["torch"] is torch
    assert transformers.is_torch_available()
