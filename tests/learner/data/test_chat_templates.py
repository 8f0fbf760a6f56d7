"""The light tokenizer gives the same text as transformers, and its errors name the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer

from olmorl.config import Model
from olmorl.errors import ModelError
from olmorl.learner.data.chat_templates import LightTokenizer, check_vocabulary, template_of
from olmorl.learner.data.loader import open_tokenizer
from tests.deploy.folders import bare_model

TURNS = [{"role": "system", "content": "Be <b>rief</b>."}, {"role": "user", "content": "1 + 1 = ü?"}]
TEMPLATES = {
    "plain": "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
    "prompted": "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}",
    "special": "{{ eos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ bos_token }}",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=True) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}",
    "loops": "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "tools": "{% if tools is none %}none{% endif %}{% if documents %}some{% endif %}",
    "blocks": "  {% if true %}\n  x\n  {% endif %}\n  {%- set y = 3 %}{{ y }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_writes_what_transformers_writes(tmp_path: Path, name: str) -> None:
    folder = bare_model(tmp_path / "m", TEMPLATES[name])
    light, heavy = LightTokenizer(folder), open_tokenizer(Model(path=str(folder)))
    text = light.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert text == heavy.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    for special in (True, False):
        ours = light([text, "", "ü"], add_special_tokens=special)["input_ids"]
        assert ours == heavy([text, "", "ü"], add_special_tokens=special)["input_ids"]
    assert light.largest_id == len(heavy) - 1


def test_a_template_may_refuse(tmp_path: Path) -> None:
    light = LightTokenizer(bare_model(tmp_path / "m", "{{ raise_exception('no system turn') }}"))
    with pytest.raises(TemplateError, match="no system turn"):
        light.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)


def test_a_given_template_goes_before_the_folders_own(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m", "{% broken")
    assert LightTokenizer(folder, "given").chat_template == "given"
    with pytest.raises(ModelError, match=r"the chat template of .*/m: not a Jinja template: line 1"):
        LightTokenizer(folder)
    with pytest.raises(ModelError, match=r"the chat template of .*/m: not a Jinja template: line 1"):
        open_tokenizer(Model(path=str(folder)))


def test_templates_among_the_tokenizers_settings(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m", None)
    assert LightTokenizer(folder).chat_template is None
    for given in ("one", [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "one"}]):
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"chat_template": given, "eos_token": {"content": "E"}})
        )
        assert LightTokenizer(folder).chat_template == "one"


@pytest.mark.parametrize("text", ["{% for m in messages %}", "{{ m |nofilter }}", "{% nothing %}", "{{ 'x }}"])
def test_a_text_that_is_no_template_is_named_by_its_key(text: str) -> None:
    with pytest.raises(ModelError, match=r"model\.chat_template: not a Jinja template"):
        template_of(text)


def test_a_file_of_the_template(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages }}")
    assert template_of(str(file)) == "{{ messages }}"
    for name, content in (("missing.jinja", None), ("bytes.jinja", b"\xff\xfe")):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match="neither a Jinja text nor a readable file"):
            template_of(str(tmp_path / name))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.model", "vocab.json", "spm.model", "qwen.tiktoken"])
def test_a_vocabulary_of_any_kind_will_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer there.*model\.tokenizer"):
        check_vocabulary(tmp_path, str(tmp_path))
    (tmp_path / name).touch()
    check_vocabulary(tmp_path, str(tmp_path))


def test_a_folder_without_a_tokenizer_gets_no_invented_one(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer there"):
        open_tokenizer(Model(path=str(folder)))


def test_an_extra_token_counts(tmp_path: Path) -> None:
    folder = bare_model(tmp_path / "m")
    assert LightTokenizer(folder).largest_id == 256
    larger = Tokenizer.from_file(str(folder / "tokenizer.json"))
    larger.add_tokens(["one", "two"])
    larger.save(str(folder / "tokenizer.json"))
    assert LightTokenizer(folder).largest_id == 258
