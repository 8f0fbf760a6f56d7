"""Chat templates, and a small tokenizer without transformers: it checks data before anything heavy is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from olmorl.errors import ConfigError, ModelError

Turns = Sequence[Mapping[str, Any]]
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""A tokenizer's folder holds one of these files, or another `*.model`, `*.tiktoken` or `*.vocab`."""
_MEND = "correct it, or give another one in model.chat_template (leave that out for the tokenizer's own)"
RENDERING_FAILED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors that a template raises on unexpected values, in addition to jinja2.TemplateError."""


def check_vocabulary(folder: Path, name: str) -> None:
    """Refuse a folder without a vocabulary: transformers may invent an empty tokenizer for it.

    Raises:
        ModelError: `name` has none.
    """
    others = ("*.model", "*.tiktoken", "*.vocab")
    if any((folder / file).is_file() for file in VOCABULARIES) or any(any(folder.glob(kind)) for kind in others):
        return
    raise ModelError(
        f"{name}: no tokenizer there: the folder holds no {VOCABULARIES[0]}; save one with tokenizer.save_pretrained, "
        "or name another folder or hub name in model.tokenizer"
    )


def template_of(text: str) -> str:
    """`model.chat_template`: Jinja text, or the file that it names.

    Raises:
        ModelError: there is no such file, or its text is not a template.
    """
    source = _read(text) if names_a_file(text) else text
    compiled(source, "model.chat_template")
    return source


def names_a_file(text: str) -> bool:
    """Whether `model.chat_template` is the name of a file, not Jinja text."""
    return not any(sign in text for sign in "{}\n")


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"model.chat_template: {name} is neither a Jinja text nor a readable file: {error}") from None


def compiled(template: str, name: str) -> Any:
    """The template as transformers would compile it. Raises ModelError, which names `name`, if it is not Jinja."""
    from jinja2 import TemplateError, TemplateSyntaxError

    try:
        return _environment().from_string(template)
    except TemplateSyntaxError as error:
        raise ModelError(f"{name}: not a Jinja template: line {error.lineno}: {error.message}; {_MEND}") from None
    except TemplateError as error:
        raise ModelError(f"{name}: not a Jinja template: {error}; {_MEND}") from None


def check_template_kwargs(chat_template: object, given: Mapping[str, Any]) -> None:
    """Check that the chat template uses each of the values. Jinja would silently ignore a misspelt one.

    Raises:
        ConfigError: it does not use one, or there is no template.
        ModelError: the template is not Jinja.
    """
    names = _names(str(chat_template or "")) if given else set()
    for name in given:
        if name not in names:
            reason = "does not use it" if chat_template else "is missing"
            raise ConfigError(
                f"data.chat_template_kwargs: {name}: the tokenizer's chat template {reason}; remove the value, spell "
                "it as the template does, or give another template in model.chat_template"
            )


def _names(template: str) -> set[str]:
    """Every name in the Jinja code of the template. Raises ModelError if it is not Jinja."""
    from jinja2 import Environment, TemplateSyntaxError

    try:
        return {text for _, kind, text in Environment().lex(template) if kind == "name"}
    except TemplateSyntaxError as error:
        raise ModelError(f"the chat template is not Jinja: line {error.lineno}: {error.message}") from None


def _environment() -> Any:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the text of an assistant and does not change it."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


class LightTokenizer:
    """The part of a transformers tokenizer that loading data needs, made from `tokenizer.json` within milliseconds.

    Raises:
        ModelError: a file of the folder is damaged, or its chat template is not one.
    """

    def __init__(self, folder: Path, chat_template: str | None = None) -> None:
        """`chat_template` replaces the one of the folder."""
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{file}: not a tokenizer: {error}; save it again, or download it again") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        settings = _json(folder / "tokenizer_config.json")
        own = _own_template(folder, settings)
        self.chat_template = own if chat_template is None else chat_template
        name = "model.chat_template" if chat_template is not None else f"the chat template of {folder}"
        self._compiled = compiled(self.chat_template, name) if self.chat_template else None
        names = {key: _content(value) for key, value in settings.items() if key.endswith("_token")}
        self._special = {key: value for key, value in names.items() if value is not None}

    @property
    def largest_id(self) -> int:
        """The largest token id that it can produce."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def apply_chat_template(self, turns: Turns, *, tokenize: bool, add_generation_prompt: bool, **given: Any) -> str:
        """The conversation as text. Raises jinja2.TemplateError, or one of `RENDERING_FAILED`.

        Args:
            given: `data.chat_template_kwargs`.
        """
        assert not tokenize and self._compiled is not None
        values = {"tools": None, "documents": None, **self._special, **given}
        text: str = self._compiled.render(messages=turns, add_generation_prompt=add_generation_prompt, **values)
        return text

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return {"input_ids": [one.ids for one in encoded]}


def _own_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    given = settings.get("chat_template")
    if isinstance(given, list):  # several by name
        given = next((one.get("template") for one in given if one.get("name") == "default"), None)
    return given if isinstance(given, str) else None


def _json(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: not JSON: {error}; save the tokenizer again, or download it again") from None
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str | None:
    """A special token is a text, or an object around it."""
    found = token.get("content") if isinstance(token, dict) else token
    return found if isinstance(found, str) else None
