"""A policy small enough for one core: Olmo 3's architecture, a token a byte, warm-started on worked solutions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Olmo3Config, Olmo3ForCausalLM, PreTrainedTokenizerFast

from olmorl.deploy.demo.calculator import CalculatedSum
from olmorl.deploy.demo.muon import Muon
from olmorl.deploy.demo.problem import Problem

if TYPE_CHECKING:
    from olmorl.deploy.demo.settings import ModelSize, Progress, WarmStart

END = "<|end|>"
PAD = "<|pad|>"
POOL = 4
"""Batches whose solutions are sorted by length together."""
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}"
    "{% if turn.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer(max_tokens: int) -> Any:
    """A tokenizer with one token for each byte, each role and the end, so that decoding restores every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLES),
        model_max_length=max_tokens,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(size: ModelSize, tokenizer: Any, seed: int) -> Olmo3ForCausalLM:
    """A fresh fp32 model: three layers of sliding attention to one of full attention, as in Olmo 3."""
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    config = Olmo3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.max_tokens,
        sliding_window=size.sliding_window,
        rope_parameters={"sliding_attention": dict(rope), "full_attention": dict(rope)},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Olmo3ForCausalLM(config)


def warm_start(
    model: Olmo3ForCausalLM,
    tokenizer: Any,
    source: Iterator[Problem],
    settings: WarmStart,
    seed: int,
    progress: Progress,
) -> None:
    """Train `model` in place on worked solutions, on one thread.

    Muon learns this in a sixth of the time that Adam needs, which keeps the demo short.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    optimizers = _optimizers(model, settings)
    batches = _batches(tokenizer, source, settings, random.Random(seed))
    for step, (ids_BT, labels_BT) in enumerate(batches):
        warm_up, left = (step + 1) / 20, 1 - step / settings.steps
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, warm_up, 1.5 * left)
        torch.autograd.backward(_loss(model, ids_BT, labels_BT))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        progress("warm start", (step + 1) / settings.steps)
    torch.set_num_threads(threads)


def _optimizers(model: Olmo3ForCausalLM, settings: WarmStart) -> list[tuple[torch.optim.Optimizer, float]]:
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("model.layers")]
    matrices = set(map(id, inner))
    rest = [p for p in model.parameters() if id(p) not in matrices]
    return [
        (Muon(inner), settings.matrix_lr),
        (torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0), settings.vector_lr),
    ]


def _loss(model: Olmo3ForCausalLM, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """Mean over the tokens of the solutions. Logits are computed only for these tokens."""
    hidden_BTD = model.model(input_ids=ids_BT).last_hidden_state[:, :-1]
    wanted_BT = labels_BT[:, 1:] >= 0
    return cross_entropy(model.lm_head(hidden_BTD[wanted_BT]), labels_BT[:, 1:][wanted_BT])


def _batches(
    tokenizer: Any, source: Iterator[Problem], settings: WarmStart, chance: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """`(ids_BT, labels_BT)` for each step, alike in length, padded on the right; a label of -100 is ignored."""
    for start in range(0, settings.steps, POOL):
        problems = islice(source, min(POOL, settings.steps - start) * settings.batch)
        pool = [_example(tokenizer, problem, chance.random() < settings.careful_share) for problem in problems]
        pool.sort(key=lambda example: len(example[0]))
        batches = [pool[i : i + settings.batch] for i in range(0, len(pool), settings.batch)]
        chance.shuffle(batches)
        for batch in batches:
            ids, labels = zip(*batch, strict=True)
            yield _padded(ids, tokenizer.pad_token_id), _padded(labels, -100)


def _padded(rows: Sequence[list[int]], padding: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, rows)), batch_first=True, padding_value=padding)


def _example(tokenizer: Any, problem: Problem, careful: bool) -> tuple[list[int], list[int]]:
    """Token ids of a solved problem, and the same with -100 for the tokens that are not the policy's."""
    turns = [{"role": "user", "content": problem.question}]
    said = problem.play(careful) if isinstance(problem, CalculatedSum) else [problem.work_out(careful)]
    ids: list[int] = []
    labels: list[int] = []
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    for answer, reply in zip_longest(said[::2], said[1::2]):
        asked, answered = tokenizer(text)["input_ids"], tokenizer(answer + END)["input_ids"]
        ids += asked + answered
        labels += [-100] * len(asked) + answered
        turn = {"role": "user", "content": reply}
        text = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    return ids, labels
