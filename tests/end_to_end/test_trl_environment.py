"""A script of TRL with an environment class, run by the whole service with a real engine and learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from olmorl.learner.storage import rollout_log
from olmorl.trl import GRPOConfig, GRPOTrainer

STEPS = 3
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}"
    "{% for turn in messages %}<|{{ turn.role }}|> {{ turn.content }}{% if turn.role == 'assistant' %}<end>{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]


class Total:
    """As TRL's guide writes them."""

    def __init__(self) -> None:
        self.reward = 0.0

    def reset(self, **kwargs: Any) -> str | None:
        self.total = kwargs["start"]
        return f" begin at {self.total}"

    def add(self, number: int) -> str:
        """
        Add to the total.

        Args:
            number: The number to add.

        Returns:
            The total.
        """
        self.total += number
        self.reward = float(self.total)
        return str(self.total)


def reward_func(environments: list[Total], **kwargs: Any) -> list[float]:
    return [env.reward for env in environments]


def make_model(folder: Path) -> None:
    """A random model of few words, some of which are whole calls: it acts without having learned to."""
    calls = [f'<tool_call>{{"name":"add","arguments":{{"number":{n}}}}}</tool_call>' for n in range(1, 5)]
    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<unk>", "<end>", "<|user|>", "<|assistant|>", "<|tool|>"]
    text = " ".join([*calls, "add", "begin", "at", *map(str, range(9))])
    words.train_from_iterator([text], trainers.WordLevelTrainer(special_tokens=special, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(folder)


def test_a_script_of_trl_trains_on_what_its_tools_changed(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    rows = [{"prompt": [{"role": "user", "content": "add"}], "start": start} for start in range(4)]
    args = GRPOConfig(
        output_dir=str(tmp_path / "runs" / "trl"), max_steps=STEPS, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=96, max_prompt_length=32, max_tool_calling_iterations=3, use_cpu=True, bf16=False,
        learning_rate=1e-3,
    )  # fmt: skip
    overrides = {
        "episodes.tool_parser": "hermes", "actors.max_running": 16, "actors.kv_cache_gib": 0.1,
        "actors.enforce_eager": True, "schedule.max_lag": 1, "schedule.max_useless_groups": 1000,
    }  # fmt: skip
    trainer = GRPOTrainer(
        str(tmp_path / "model"), reward_func, args, rows, environment_factory=Total, overrides=overrides
    )
    tables = trainer.train()
    assert tables.metrics.column("step").to_pylist() == list(range(1, STEPS + 1))
    records = [one for file in rollout_log.files(tmp_path / "runs/trl/rollouts") for one in rollout_log.read(file)]
    trained = [one for record in records if record["outcome"] == "trained" for one in record["completions"]]
    assert len(trained) == STEPS * 8
    for one in trained:
        first, *_ = one["turns"]
        start = int(first["messages"][0]["content"].rpartition(" ")[2])
        whole = [turn["reply"] for turn in one["turns"] if turn["finish_reason"] == "stop"]
        calls = [call for reply in whole for call in reply.get("tool_calls", ())]
        added = [call["function"]["arguments"]["number"] for call in calls]
        assert one["verdicts"]["reward_func"]["reward"] == one["reward"] == (start + sum(added) if added else 0)
    assert any(len(one["turns"]) > 1 for one in trained)
