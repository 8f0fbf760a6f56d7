from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from olmorl import config
from olmorl.config import Data, Evaluation, Model, Verifiers
from olmorl.errors import ConfigError, DataError, ModelError
from olmorl.learner.data.checks import check_ordered
from olmorl.learner.data.loader import Loader, evaluation_sets, open_tokenizer, training_sources
from olmorl.learner.data.stream import PromptStream
from olmorl.learner.orchestrator.draw_source import prompt_of
from olmorl.messages import EpisodeStart, Version

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
)


@pytest.fixture
def tokenizer() -> Any:
    """One token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    outer = PreTrainedTokenizerFast(tokenizer_object=inner)
    outer.chat_template = TEMPLATE
    return outer


def row(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "ground_truth": "4", "dataset": "math"} | more


def loader(tokenizer: Any, functions: tuple[str, ...] = (), **data: Any) -> Loader:
    return Loader(Data(**data), tokenizer, Verifiers(functions=list(functions)))


def test_a_row_has_the_tokens_of_the_chat_template(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = jsonl(row("2+2?"), row([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]))
    ours = loader(tokenizer, system_prompt="Think first.")
    first, second = ours.load(str(path)).rows
    assert tokenizer.decode(first.token_ids) == "[system]Think first.[user]2+2?[assistant]"
    assert tokenizer.decode(second.token_ids) == "[system]Be brief.[user]2+2?[assistant]"
    assert (first.row, first.messages, first.datasets, first.ground_truths) == (f"{path}:1", "2+2?", ("math",), ("4",))
    assert not first.thinking_opened


def test_rows_of_an_environment_keep_their_columns_and_need_no_label(
    tokenizer: Any, jsonl: Callable[..., Path]
) -> None:
    path = str(jsonl({"prompt": "2+2?", "level": 3}, row("3+3?")))
    ours = Loader(Data(), tokenizer, Verifiers(), episode=EpisodeStart(environment="world:World"))
    first, second = ours.load(path).rows
    assert [each.episode.environment for each in (first, second) if each.episode] == ["world:World"] * 2
    assert (first.columns, first.datasets, second.datasets) == ({"level": 3}, (), ("math",))
    assert prompt_of(first, lane="train", draw_id=0, attempt=1, group_size=2, min_version=Version(1, 0)).episode
    (single,) = loader(tokenizer).load(path).rows
    assert single.episode is None
    prompt = prompt_of(single, lane="train", draw_id=0, attempt=1, group_size=2, min_version=Version(1, 0))
    assert prompt.episode is UNSET


def test_rows_whose_files_lead_out_of_the_tree_of_bash_are_refused(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = str(jsonl(row("1", files={"a.txt": "x"}), row("2", files={"../../etc/passwd": "x"}), row("3")))
    ours = Loader(Data(), tokenizer, Verifiers(), episode=EpisodeStart(environment="box:bash,submit"))
    assert [one.row for one in ours.load(path).rows] == [f"{path}:1", f"{path}:3"]
    reason = "its column files has '../../etc/passwd', which is no relative path inside of the tree"
    assert ours.report.reasons == [f"{path}:2: {reason}"]
    without = Loader(Data(), tokenizer, Verifiers(), episode=EpisodeStart(environment="box:submit"))
    assert len(without.load(path).rows) == 3


def test_the_template_shows_the_tools_of_an_environment(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    tokenizer.chat_template = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" + TEMPLATE
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    ours = Loader(Data(), tokenizer, Verifiers(), episode=EpisodeStart(environment="world:World", tools=(tool,)))
    (only,) = ours.load(str(jsonl(row("2+2?")))).rows
    assert tokenizer.decode(only.token_ids) == "add;[user]2+2?[assistant]"


def in_the_box(tokenizer: Any, environment: str = "box:python,submit") -> Loader:
    tokenizer.chat_template = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" + TEMPLATE
    tools = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("python", "submit"))
    return Loader(Data(), tokenizer, Verifiers(), episode=EpisodeStart(environment=environment, tools=tools))


def test_a_row_names_the_built_in_tools_that_its_prompt_shows(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    chosen: list[Any] = [["submit"], ["submit", "python"], [], None]
    path = str(jsonl(*(row("2+2?") | {"tools": names} for names in chosen), row("3+3?")))
    found = in_the_box(tokenizer).load(path).rows
    shown = [tokenizer.decode(one.token_ids).partition("[user]")[0] for one in found]
    assert shown == ["submit;", "python;submit;", "", "python;submit;", "python;submit;"]
    assert [
        "".join(f"{tool['function']['name']};" for tool in one.episode.tools) for one in found if one.episode
    ] == shown
    own = in_the_box(tokenizer, "shop.py:Shop").load(path).rows
    assert {len(one.episode.tools) for one in own if one.episode} == {2}, "the column is the user's own"


@pytest.mark.parametrize("names", [["submit", "bash"], "submit", [["submit"]]])
def test_a_tool_of_a_row_that_the_recipe_does_not_name_is_an_error_with_its_place(
    tokenizer: Any, jsonl: Callable[..., Path], names: Any
) -> None:
    path = jsonl(row("2+2?"), row("3+3?") | {"tools": names})
    with pytest.raises(DataError) as error:
        in_the_box(tokenizer).load(str(path))
    said = f"{path}:2: its column tools is {names!r}: give a list of tools that episodes.environment names"
    assert str(error.value) == f"{said} (python, submit)"


def test_a_base_model_gets_the_turns_parted_by_empty_lines(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    tokenizer.chat_template = None
    (only,) = loader(tokenizer, system_prompt="Sums.").load(str(jsonl(row("2+2?")))).rows
    assert tokenizer.decode(only.token_ids) == "Sums.\n\n2+2?\n"


def test_a_template_that_opens_the_thinking_tag_is_noticed(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    tokenizer.chat_template = TEMPLATE + "<think>\n"
    (only,) = loader(tokenizer).load(str(jsonl(row("2+2?")))).rows
    assert only.thinking_opened


def test_over_long_prompts_are_filtered_or_shortened_and_counted(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = str(jsonl(row("a" * 100), row("b")))
    filtering = loader(tokenizer, max_prompt_tokens=30)
    assert [r.messages for r in filtering.load(path).rows] == ["b"]
    assert (filtering.report.read, filtering.report.used, filtering.report.over_long) == (2, 1, 1)
    shortening = loader(tokenizer, max_prompt_tokens=30, over_long="truncate")
    first, _ = shortening.load(path).rows
    assert tokenizer.decode(first.token_ids) == "a" * 19 + "[assistant]"
    assert (shortening.report.used, shortening.report.truncated) == (2, 1)
    assert str(shortening.report) == "2 of 2 rows used, 1 truncated"


def test_unusable_rows_are_reported_with_place_and_reason(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = jsonl(row("2+2?"), row("3?", ground_truth=None), row([{"role": "tool", "content": "x"}]))
    ours = loader(tokenizer)
    assert len(ours.load(str(path)).rows) == 1
    assert ours.report.refused == 2
    assert ours.report.reasons[0] == f"{path}:2: no usable label: the column ground_truth is missing"
    assert ours.report.reasons[1] == f"{path}:3: the chat template refuses the conversation: no tools"


def test_strict_data_makes_an_unusable_row_an_error(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = jsonl(row("2+2?"), row("3?", ground_truth=None))
    with pytest.raises(DataError, match=r"rows\.jsonl:2: no usable label"):
        loader(tokenizer, strict=True).load(str(path))


def test_a_set_without_a_usable_row_is_an_error_with_a_reason(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"none of its 2 rows .*:2: no usable label"):
        loader(tokenizer).load(str(jsonl(row("a", ground_truth=None), row("b", ground_truth=None))))
    with pytest.raises(DataError, match="none of its 0 rows"):
        loader(tokenizer).load(str(jsonl()))


def test_other_columns_are_kept_for_user_functions_only(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = str(jsonl({"prompt": "2+2?", "answer": "4"}))
    (free,) = loader(tokenizer, functions=("m:f",)).load(path).rows
    assert free.columns == {"answer": "4"}
    (labelled,) = loader(tokenizer).load(str(jsonl(row("?", level=3)))).rows
    assert labelled.columns == {}


def test_a_curriculum_reads_the_numbers_of_its_column(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = str(jsonl(row("a", pass_rate=0.25), row("b", pass_rate=None), row(""), row("c", pass_rate=1), row("d")))
    ours = Loader(Data(curriculum="pass_rate"), tokenizer, Verifiers())
    assert [(one.messages, one.ease) for one in ours.load(path).rows] == [
        ("a", 0.25), ("b", None), ("c", 1.0), ("d", None)
    ]  # fmt: skip
    assert all(one.ease is None for one in loader(tokenizer).load(path).rows)
    other = Loader(Data(curriculum="passrate"), tokenizer, Verifiers()).load(path)
    with pytest.raises(DataError, match=r"no row has a number in the column passrate: .*olmorl-data difficulty"):
        check_ordered([other], "passrate")
    check_ordered([other], None)
    check_ordered([ours.load(path)], "pass_rate")


def test_progress_is_reported_while_loading(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    seen: list[tuple[str, int]] = []
    path = str(jsonl(*[row(str(i)) for i in range(1100)]))
    ours = Loader(Data(), tokenizer, Verifiers(), progress=lambda name, number: seen.append((name, number)))
    assert len(ours.load(path).rows) == 1100
    assert seen == [(path, 512), (path, 1024)]


def training_stream(loader: Loader, data: Data, seed: int) -> PromptStream:
    return PromptStream(training_sources(loader, data), seed, data.shuffle, data.epochs)


def test_the_training_stream_mixes_all_sets(tokenizer: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(f"{name}{i}")) + "\n" for i in range(4)))
    data = Data(train=[f"{tmp_path}/a.jsonl:3", f"{tmp_path}/b.jsonl:1"], epochs=1)
    stream = training_stream(Loader(data, tokenizer, Verifiers()), data, seed=0)
    drawn = [str(one.messages)[0] for one in iter(stream.draw, None)]
    assert (drawn.count("a"), drawn.count("b")) == (6, 2)
    with pytest.raises(DataError, match="names no data set"):
        training_stream(Loader(Data(), tokenizer, Verifiers()), Data(), seed=0)


def test_evaluation_sets_have_names_and_a_limit(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = jsonl(*[row(str(i)) for i in range(9)])
    sets = evaluation_sets(loader(tokenizer), Evaluation(data=[str(path), f"held_out={path}"], limit=5))
    assert {name: len(rows) for name, rows in sets.items()} == {"rows": 5, "held_out": 5}
    for texts in ([f"train={path}"], [f"a b={path}"], [f"gsm8k-test={path}", f"gsm8k_test={path}"]):
        with pytest.raises(DataError, match="put another name in front"):
            evaluation_sets(loader(tokenizer), Evaluation(data=texts))


def test_evaluation_rows_are_not_counted_as_training_rows(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    path = str(jsonl(*[row(str(i)) for i in range(9)]))
    ours = loader(tokenizer)
    held_out = ours.for_evaluation()
    training_sources(ours, Data(train=[path]))
    evaluation_sets(held_out, Evaluation(data=[path], limit=4))
    assert (str(ours.report), str(held_out.report)) == ("9 of 9 rows used", "4 of 4 rows used")


def test_of_a_folder_evaluation_takes_what_training_leaves(tokenizer: Any, tmp_path: Path) -> None:
    for split, prompt in (("train", "a"), ("test", "b")):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row(prompt)))
    ours = loader(tokenizer)
    (source,) = training_sources(ours, Data(train=[str(tmp_path)]))
    assert [one.messages for one in source.rows] == ["a"]
    (held_out,) = evaluation_sets(ours.for_evaluation(), Evaluation(data=[str(tmp_path)])).values()
    assert [one.messages for one in held_out] == ["b"]


def test_a_saved_tokenizer_is_opened_with_the_given_template(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "other.jinja").write_text("other")
    assert open_tokenizer(Model(path=str(tmp_path))).chat_template == TEMPLATE
    assert open_tokenizer(Model(path=str(tmp_path), chat_template="{{ x }}")).chat_template == "{{ x }}"
    with_file = Model(path=str(tmp_path), chat_template=str(tmp_path / "other.jinja"))
    assert open_tokenizer(with_file).chat_template == "other"


def test_a_folder_without_a_tokenizer_is_a_clear_error(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer there"):
        open_tokenizer(Model(path=str(tmp_path)))
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="neither a Jinja text nor a readable file"):
        open_tokenizer(Model(path=str(tmp_path), chat_template="missing.jinja"))


def test_labels_are_checked_many_at_a_time_and_reasons_keep_their_rows(
    tokenizer: Any, jsonl: Callable[..., Path]
) -> None:
    asked: list[int] = []

    class OnlyNumbers:
        def check_many(self, labels: Sequence[tuple[str, Any]]) -> list[str | None]:
            asked.append(len(labels))
            return [None if str(truth).isdigit() else f"{truth} is no number" for _, truth in labels]

    rows = [row(f"{i}?", ground_truth="x" if i % 7 == 3 else str(i)) for i in range(700)]
    path = jsonl(*rows, row("last", ground_truth=["x", "y"]), row("very last", ground_truth=["5"]))
    ours = Loader(Data(), tokenizer, Verifiers(), OnlyNumbers())
    used = ours.load(str(path)).rows
    assert asked == [512, 191]
    assert [r.ground_truths for r in used[:4]] == [("0",), ("1",), ("2",), ("4",)]
    assert used[-1].ground_truths == ("5",)
    assert ours.report.reasons[0] == f"{path}:4: no usable label: x is no number"
    assert (ours.report.read, ours.report.refused) == (702, 101)


THINKS = (
    TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)


@pytest.mark.parametrize(
    ("given", "end", "opened"),
    [({}, "<think>", True), ({"enable_thinking": True}, "<think>", True),
     ({"enable_thinking": False}, "<think></think>", False)],
)  # fmt: skip
def test_values_for_the_template_are_given_in_training_and_evaluation(
    tokenizer: Any, jsonl: Callable[..., Path], given: dict[str, Any], end: str, opened: bool
) -> None:
    tokenizer.chat_template = THINKS
    path = str(jsonl(row("2+2?")))
    ours = loader(tokenizer, chat_template_kwargs=given, train=[path])
    trained = training_stream(ours, Data(train=[path]), 0).draw()
    (evaluated,) = evaluation_sets(ours, Evaluation(data=[f"held={path}"]))["held"]
    for one in (trained, evaluated):
        assert one is not None
        assert tokenizer.decode(one.token_ids) == f"[user]2+2?[assistant]{end}"
        assert one.thinking_opened is opened


@pytest.mark.parametrize("name", ["enable_thinkng", "thinking", "enable", "tools"])
def test_a_value_that_no_template_asks_for_is_refused(tokenizer: Any, name: str) -> None:
    """Jinja would pass over it in silence."""
    tokenizer.chat_template = THINKS
    with pytest.raises(ConfigError, match=rf"data\.chat_template_kwargs: {name}: .* does not use it"):
        loader(tokenizer, chat_template_kwargs={name: True})
    tokenizer.chat_template = "{{ ' }}"
    loader(tokenizer)
    with pytest.raises(ModelError, match="not Jinja: line 1"):
        loader(tokenizer, chat_template_kwargs={"enable_thinking": True})
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"chat template is missing.* model\.chat_template"):
        loader(tokenizer, chat_template_kwargs={"enable_thinking": True})


@pytest.mark.parametrize(
    ("name", "value"), [("tokenize", True), ("add_generation_prompt", False), ("messages", "x"), ("a b", 1), ("x", [1])]
)
def test_values_that_are_not_for_a_template_are_refused_with_the_key(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=r"data\.chat_template_kwargs"):
        config.build({"data": {"chat_template_kwargs": {name: value}}})


def test_values_for_the_template_come_from_recipe_and_command_line_and_are_kept(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[data.chat_template_kwargs]\nenable_thinking = false\neffort = "low"\nbudget = 3\n')
    found = config.load(recipe, [("data.chat_template_kwargs.budget", "4")])
    assert found.data.chat_template_kwargs == {"enable_thinking": False, "effort": "low", "budget": 4}
    assert found.data.chat_template_kwargs["enable_thinking"] is False
    recipe.write_text(config.to_toml(found))
    assert config.load(recipe) == found


def test_turns_need_a_chat_template_and_plain_prompts_do_not(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    tokenizer.chat_template = None
    path = jsonl(row("2+2?"), row([{"role": "user", "content": "2+2?"}]))
    with pytest.raises(ModelError, match=r"rows\.jsonl:2: a conversation, .*model\.chat_template, or write .* string"):
        loader(tokenizer).load(str(path))


def test_a_prompt_without_a_token_is_refused(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    tokenizer.chat_template = "{% if 'skip' not in messages[0].content %}{{ messages[0].content }}{% endif %}"
    ours = loader(tokenizer)
    rows = ours.load(str(jsonl(row("skip me"), row("2+2?")))).rows
    assert [r.messages for r in rows] == ["2+2?"]
    assert ours.report.refused == 1 and "the prompt is empty" in ours.report.reasons[0]
    with pytest.raises(DataError, match=r"none of its 1 rows .*the tokenizer makes no token"):
        loader(tokenizer).load(str(jsonl(row("skip all"))))


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('never') }}",
        "{{ nothing.of.this }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.index('zzz') }}",
        "{{ messages[7].content.strip() }}",
    ],
)
def test_a_template_that_refuses_all_is_to_blame_and_not_the_rows(
    tokenizer: Any, jsonl: Callable[..., Path], template: str
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=r"the chat template refuses all 2 rows .*model\.chat_template"):
        loader(tokenizer).load(str(jsonl(row("a"), row("b"))))


def test_a_set_that_is_empty_or_over_long_says_which(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="the file is empty"):
        loader(tokenizer).load(str(jsonl()))
    tokenizer.chat_template = "{{ messages[0].content }}"
    long = jsonl(row("a" * 20), row("a" * 90), row("a" * 31))
    with pytest.raises(
        DataError, match=r'3 prompts are over data\.max_prompt_tokens = 10 \(20 to 90 tokens\).*over_long = "truncate"'
    ):
        loader(tokenizer, max_prompt_tokens=10).load(str(long))
    both = jsonl(row("a" * 20), row("b", ground_truth=None))
    with pytest.raises(DataError, match=r"1 prompts are over .*\(20 to 20 tokens\).*; .*:2: no usable label"):
        loader(tokenizer, max_prompt_tokens=10).load(str(both))


def test_the_second_set_is_judged_by_its_own_rows(tokenizer: Any, jsonl: Callable[..., Path]) -> None:
    ours = loader(tokenizer, max_prompt_tokens=30)
    ours.load(str(jsonl(row("a"), row("b" * 100), row("c", ground_truth=None))))
    with pytest.raises(DataError, match=r"none of its 0 rows can be used; the file is empty.*prompt$"):
        ours.load(str(jsonl()))
