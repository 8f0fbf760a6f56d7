"""A new user's session: tokenizer, model, data and functions of their own, evaluation, resume with a change, export,
figure. Each number in it is compared with one that is computed separately from the files on disk.

Rewards come from the user's functions, called again on the logged texts, and from a rule of three lines in place of
the math verifier. Counts come from the lines of the ledger. What the learner says, and the weights it exports, come
from a plain loop over the logged tokens: one sequence at a time, torch's own AdamW.

These are not on disk, so they are compared in another way:

- Answers of an evaluation. The user's functions record each call in a file.
- Texts of groups that failed. The same file has them.
- Published weights, which the end of a run removes. Log-probabilities that an engine recorded with a version are those
  of the same version of the plain loop.
- Times, and rates that count what an engine had generated at a moment. They are checked for what they add up to.
- What a launcher says of a moment (queued, leased, running): checked against the bounds of the recipe.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import runpy
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import comb
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import olmorl
from olmorl.deploy.control import cli
from olmorl.learner.storage import rollout_log
from tests import ten_numbers
from tests.end_to_end.launching import Launch

STEPS, MORE_STEPS, WARMUP = 4, 6, 2
RATE, CHANGED_RATE, ADAM_EPS = 4e-3, 2e-3, 1e-5
"""An epsilon large enough that Adam does not blow the rounding of near-zero gradients up to whole updates."""
PROMPTS, GROUP, MAX_TOKENS, MAX_LAG, SAMPLES = 4, 4, 24, 1, 4
EPS_LOW, EPS_HIGH, RHO = 0.2, 0.272, 2.0
NO_OUTLIERS, OUTLIERS_PER_ANSWER = 20.0, 4
WEIGHTS = {"math": 2.0, "short": 0.5, "varied": 1.0}
HELD_OUT = "eval_held_out_"
WORDS = [
    "sea", "wave", "sand", "boat", "wind", "red", "blue", "gull", "tide", "what", "is", "plus", "?", ".", "say", "one",
    "thing", "about", "the", "and", "in", "a", "box",
]  # fmt: skip
TIMES = {
    "wall_s", "actor_tokens_per_s", "useful_tokens_per_s", "weight_publish_s", "weight_stall_s_mean",
    "weight_stall_s_max", "learner_step_s", "learner_wait_s", "learner_forward_backward_s", "learner_optimizer_s",
    "learner_snapshot_s", "learner_publish_wait_s", "weight_proof_diff_mean", "weight_proof_diff_max",
    "weight_proof_s_mean", "weight_proof_fraction", "learner_publish_fraction",
    "engine_slots", "engine_busy_fraction", "engine_slots_fraction",
    "engine_capacity_tokens_per_s", "sequences_awaiting_weights", "sequences_awaiting_verdicts",
    "sequences_awaiting_group", "groups_ready", "learner_mfu", "engine_mfu", "engine_mbu", "learner_peak_flops_per_s",
    "engines", "sequences_awaiting_environment",
}  # fmt: skip
TEMPLATE = (
    "{% for turn in messages %}<|{{ turn['role'] }}|> {{ turn['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FUNCTIONS = '''
"""Two rewards. A file in this folder records the arguments and the result of each call."""

import json
from pathlib import Path

CALLS = Path(__file__).with_name("calls.jsonl")


def words(completion):
    return (completion if isinstance(completion, str) else completion[-1]["content"]).split()


def keep(**call):
    with CALLS.open("a") as file:
        file.write(json.dumps(call) + "\\n")


async def short(prompts, completions, topic, key, log_metric, **columns):
    """Rewards short answers about the sea."""
    texts = [words(one) for one in completions]
    if topic[0] in ("nothing", "equal"):
        rewards = [None if topic[0] == "nothing" else 1.0] * len(texts)
    else:
        rewards = [float(len(text) < 15) if "sea" in text or "wave" in text else None for text in texts]
    log_metric("words", sum(map(len, texts)) / len(texts))
    keep(name="short", key=key[0], prompt=prompts[0], completions=completions, rewards=rewards, columns=sorted(columns))
    return rewards


def varied(completions, completion_ids, topic, key, trainer_state):
    """Rewards finished answers by their number of different words, in quarters."""
    rewards = [
        None if topic[0] in ("nothing", "equal") or len(ids) == 24 else min(len(set(words(one))) // 3, 4) / 4
        for one, ids in zip(completions, completion_ids, strict=True)
    ]
    at = [trainer_state.global_step, trainer_state.max_steps]
    keep(name="varied", key=key[0], completions=completions, rewards=rewards, ids=completion_ids, at=at)
    return rewards
'''
RECIPE = f"""
[run]
name = "test"
directory = "FOLDER/runs"
[model]
path = "FOLDER/model"
dtype = "float32"
[data]
train = ["FOLDER/sums.jsonl:2", "FOLDER/talk.jsonl:1"]
max_prompt_tokens = 32
[verifiers]
functions = ["FOLDER/rewards.py:short*0.5", "FOLDER/rewards.py:varied"]
math_strict = ["last_number"]
[verifiers.weights]
math = 2.0
[sampling]
group_size = {GROUP}
max_tokens = {MAX_TOKENS}
[schedule]
steps = {STEPS}
prompts_per_step = {PROMPTS}
max_lag = {MAX_LAG}
[learner]
learning_rate = {RATE}
schedule = "linear"
warmup_steps = {WARMUP}
eps = {ADAM_EPS}
[actors]
max_running = 16
kv_cache_gib = 0.1
enforce_eager = true
[checkpoint]
every = 2
keep = 9
[evaluation]
data = ["held_out=FOLDER/held.jsonl"]
every = 100
samples = {SAMPLES}
temperature = 1.0
"""
pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(1800)]
Record = dict[str, Any]


# --- what the user brings -------------------------------------------------------------------------------------------


def make_model(folder: Path) -> None:
    """A tokenizer of whole words, trained here, with a chat template; and a random Llama with tied embeddings."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = ["<unk>", "<end>", "<|system|>", "<|user|>", "<|assistant|>"]
    boxes = [rf"\boxed{{{number}}}" for number in range(4)]
    words.train_from_iterator([" ".join([*WORDS, *boxes, *map(str, range(4))])], trainers.WordLevelTrainer(
        special_tokens=special, show_progress=False
    ))  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=128, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(5)
        LlamaForCausalLM(shape).save_pretrained(folder)


def sums(kind: str, more: str) -> Iterator[Record]:
    """Conversations with a label for the math verifier."""
    for a, b in [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (0, 3), (3, 0), (2, 0), (0, 2)]:
        turns = [
            {"role": "system", "content": "say one thing in a box"},
            {"role": "user", "content": f"what is {a} plus {b} {more}"},
        ]
        yield {"messages": turns, "ground_truth": str(a + b), "dataset": "math", "topic": "sum", "key": f"{kind}{a}{b}"}


def talk(kind: str, topics: Sequence[str]) -> Iterator[Record]:
    """Prompts that the functions alone reward."""
    for number, topic in enumerate(topics):
        yield {"prompt": f"say one thing about the {WORDS[number]}", "topic": topic, "key": f"{kind}{number}"}


def make_data(folder: Path) -> None:
    """Both forms of rows, among them one without a label and one that is too long."""
    unusable = {"messages": [{"role": "user", "content": "what is 1 plus 1 ?"}], "dataset": "math", "topic": "sum"}
    over_long = {"prompt": "sea " * 40, "topic": "sea", "key": "long"}
    sets = {
        "sums.jsonl": [*sums("sum", "?"), unusable],
        "talk.jsonl": [over_long, *talk("talk", ["sea", "sea", "nothing", "equal", "sea", "sea"])],
        "held.jsonl": [*list(sums("held", "in a box ?"))[:5], *talk("heard", ["equal", "sea", "nothing"])],
    }
    for name, rows in sets.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- the session ----------------------------------------------------------------------------------------------------


@dataclass
class Session:
    """The files and the output of the commands at the end of the session."""

    run: Launch
    printed: list[str]
    """By the launcher, at each start."""
    asked: list[Record] = field(default_factory=list)
    """The output of `olmorl-ctl RUN status --json`, once at each start during training."""

    @property
    def folder(self) -> Path:
        return self.run.folder

    @cached_property
    def lines(self) -> list[Record]:
        return self.run.lines()

    @cached_property
    def calls(self) -> list[Record]:
        return [json.loads(line) for line in (self.folder / "calls.jsonl").read_text().splitlines()]

    @cached_property
    def answers(self) -> dict[str, list[Record]]:
        """By row, what both functions were asked of each group, in its order: also of those that are on no disk."""
        found: dict[str, Record] = {}
        for call in self.calls:
            answer = found.setdefault(json.dumps([call["key"], call["completions"]]), {"key": call["key"]})
            texts = [one if isinstance(one, str) else one[-1]["content"] for one in call["completions"]]
            answer |= {call["name"]: call["rewards"], "texts": texts}
            answer |= {name: call[name] for name in ("ids", "at") if name in call}
        by_row: dict[str, list[Record]] = defaultdict(list)
        for answer in found.values():
            by_row[answer["key"]].append(answer)
        return by_row

    @cached_property
    def ledger(self) -> list[Record]:
        files = sorted((self.run.run_dir / "ledger").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    @cached_property
    def groups(self) -> list[Record]:
        """Every group that was scored, with `line`: the step that it was scored for."""
        return [record for record in self.rollouts if record["completions"]]

    @cached_property
    def failures(self) -> list[Record]:
        """Every draw that failed, with its `line`."""
        return [record for record in self.rollouts if not record["completions"]]

    @cached_property
    def rollouts(self) -> list[Record]:
        files = rollout_log.files(self.run.run_dir / "rollouts")
        return [record | {"line": rollout_log.step_of(file)} for file in files for record in rollout_log.read(file)]

    @cached_property
    def rows(self) -> dict[str, Record]:
        """Rows of the training data by their place."""
        files = [self.folder / name for name in ("sums.jsonl", "talk.jsonl")]
        texts = {f"{file}:{n}": line for file in files for n, line in enumerate(file.read_text().splitlines(), 1)}
        return {place: json.loads(line) for place, line in texts.items()}

    @cached_property
    def held_out(self) -> list[Record]:
        return [json.loads(line) for line in (self.folder / "held.jsonl").read_text().splitlines()]

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder / "model")

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The user's functions once more, from a copy that keeps its calls elsewhere."""
        copy = self.folder / "again" / "rewards.py"
        copy.parent.mkdir()
        copy.write_text((self.folder / "rewards.py").read_text())
        return runpy.run_path(str(copy))

    def trained(self, step: int) -> list[Record]:
        return [group for group in self.groups if group["step"] == step]

    def ctl(self, *arguments: str) -> str:
        with redirect_stdout(io.StringIO()) as printed:
            assert cli.main([str(self.run.run_dir), *arguments]) == 0
        return printed.getvalue()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("user")
    make_model(folder / "model")
    make_data(folder)
    (folder / "rewards.py").write_text(FUNCTIONS)
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.replace("FOLDER", str(folder)))
    made = Session(Launch(folder, recipe), [])
    try:
        for done, arguments in (
            (0, ()),
            (STEPS, ("--resume", "--change", f"--steps={MORE_STEPS}", f"--learner.learning_rate={CHANGED_RATE}")),
        ):
            before = len((folder / "output.txt").read_text()) if done else 0
            made.run.start(*arguments)
            made.run.until_step(done + 1, 400)
            made.asked.append(json.loads(made.ctl("status", "--json")))
            assert made.run.wait(400) == 0, made.run.output()
            made.printed.append((folder / "output.txt").read_text()[before:])
        yield made
    finally:
        made.run.end()


@dataclass
class Loop:
    """The plain loop: the weights after each step, the starting ones first, and what the learner has to say of each."""

    weights: list[dict[str, torch.Tensor]]
    said: list[Record]


@pytest.fixture(scope="module")
def loop(session: Session) -> Loop:
    """One sequence at a time, the objective as its formula is written."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(session.folder / "model", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), eps=ADAM_EPS, weight_decay=0.0)
    made = Loop([weights_of(model)], [])
    for step in range(1, MORE_STEPS + 1):
        optimizer.zero_grad()
        threshold = session.lines[step - 2]["outlier_threshold"] if step > 1 else NO_OUTLIERS
        said = backward(model, session.trained(step), step, threshold)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        rate, steps = (RATE, STEPS) if step <= STEPS else (CHANGED_RATE, MORE_STEPS)
        rate *= step / WARMUP if step <= WARMUP else 1 - (step - 1 - WARMUP) / (steps - WARMUP)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        made.weights.append(weights_of(model))
        made.said.append(said | {"grad_norm": norm, "lr": rate})
    return made


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.state_dict().items()}


def logprobs_of(model: Any, prompt: list[int], ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each token of an answer, and entropy where it was sampled."""
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return logits.gather(1, torch.tensor(ids)[:, None])[:, 0], -(logits.exp() * logits).sum(-1)


def backward(model: Any, groups: Sequence[Record], step: int, threshold: float) -> Record:
    """Add the gradient of a step; returns what the learner says, and `spent`.

    `spent` gives the number of outliers above a threshold; it is None without stale tokens, where the threshold stays.
    """
    num_tokens = sum(len(one["token_ids"]) for group in groups for one in rewarded(group))
    sums: Counter[str] = Counter()
    stale_sizes: list[torch.Tensor] = []
    for group in groups:
        baseline = np.mean([one["reward"] for one in rewarded(group)])
        for one in rewarded(group):
            logprobs, entropy = logprobs_of(model, group["prompt_token_ids"], one["token_ids"])
            old, behaviour = logprobs.detach(), torch.tensor(one["logprobs"])
            fresh = torch.tensor(lags_of(one, step)) == 0
            drift = old - behaviour
            above = torch.minimum(2 * (drift.abs() - threshold).clamp(min=0), drift.abs())
            outliers = (drift.sign() * above).masked_fill(fresh, 0.0)
            weight = (drift + outliers.sum() - outliers).exp()
            ratio, advantage = (logprobs - old).exp(), one["reward"] - baseline
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - EPS_LOW, 1 + EPS_HIGH) * advantage)
            loss = -(weight.clamp(max=RHO) * gain).sum() / num_tokens
            loss.backward()
            mean_weight = float(weight.clamp(max=RHO).double().mean())
            stale_sizes += [(old - behaviour)[~fresh].abs()] * bool((~fresh).any())
            drift = torch.expm1(old - behaviour) - (old - behaviour)
            sums.update(
                {
                    "loss": float(loss.detach()),
                    "fresh": int(fresh.sum()),
                    "answers": 1,
                    "tis": int((weight > RHO).sum()),
                    "tis_share": float((weight > RHO).double().mean()),
                    "mean_weight": mean_weight,
                    "mean_weight_square": mean_weight**2,
                    "weight": float(weight.clamp(max=RHO).sum()),
                    "weight_square": float(weight.clamp(max=RHO).double().square().sum()),
                    "entropy": float(entropy.detach().sum()),
                    "diff": float((old - behaviour).sum()),
                    "diff_fresh": float((old - behaviour)[fresh].sum()),
                    "kl": float(drift.sum()),
                    "kl_fresh": float(drift[fresh].sum()),
                }
            )
    return {
        "loss": sums["loss"],
        "clip_fraction_low": 0.0,
        "clip_fraction_high": 0.0,
        "tis_clip_fraction": sums["tis"] / num_tokens,
        "tis_clip_fraction_answers": sums["tis_share"] / sums["answers"],
        "importance_ess_fraction_answers": sums["mean_weight"] ** 2 / sums["mean_weight_square"] / sums["answers"],
        "outlier_tokens_mean": sum(int((size > threshold).sum()) for size in stale_sizes) / max(len(stale_sizes), 1),
        "kl_engine_learner_answers": sums["kl"] / sums["answers"],
        "spent": partial(outliers_above, stale_sizes) if stale_sizes else None,
        "importance_ess_fraction": sums["weight"] ** 2 / sums["weight_square"] / num_tokens,
        "logprob_diff_mean": sums["diff"] / num_tokens,
        "logprob_diff_mean_fresh": sums["diff_fresh"] / max(sums["fresh"], 1),
        "kl_engine_learner": sums["kl"] / num_tokens,
        "kl_engine_learner_fresh": sums["kl_fresh"] / max(sums["fresh"], 1),
        "entropy_mean": sums["entropy"] / num_tokens,
    }


def outliers_above(sizes: list[torch.Tensor], threshold: float) -> float:
    """The number of outliers of an answer, on average over the answers with stale tokens."""
    return sum(int((size > threshold).sum()) for size in sizes) / len(sizes)


# --- separate computations ------------------------------------------------------------------------------------------


def moments(name: str, values: Sequence[float]) -> Record:
    return {f"{name}_mean": np.mean(values), f"{name}_std": np.std(values)} if values else {}


def math_reward(text: str, label: str) -> float:
    """1 when the boxes that come last, with nothing between them, all hold the label."""
    found = re.findall(r"(?:\\boxed\{\d\}\s*)+", text)
    return float(bool(found) and set(re.findall(r"\d", found[-1])) == {label})


def combined(verdicts: Record) -> float | None:
    applied = {name: value for name, value in verdicts.items() if value is not None}
    return sum(WEIGHTS[name] * value for name, value in applied.items()) if applied else None


def solved(verdicts: Record) -> bool:
    """With a label that is for the math verifier to say, else for the largest reward of the functions that apply."""
    if "math" in verdicts:
        return verdicts["math"] == 1
    reward = combined(verdicts)
    return reward is not None and reward == sum(WEIGHTS[n] for n, value in verdicts.items() if value is not None)


@dataclass
class Scored:
    """A group of which texts, tokens and verdicts are known."""

    verdicts: list[Record]
    texts: list[str]
    lengths: list[int]
    cut: list[bool]

    @property
    def rewards(self) -> list[float]:
        return [reward for one in self.verdicts if (reward := combined(one)) is not None]

    @property
    def solve_rate(self) -> float:
        return sum(map(solved, self.verdicts)) / len(self.rewards)


def tallied(groups: Sequence[Scored]) -> Record:
    """The fields that cover all scored groups."""
    lengths = [length for group in groups for length in group.lengths]
    fields = {
        "solve_rate_mean": np.mean([group.solve_rate for group in groups]),
        "completion_tokens_mean": np.mean(lengths),
        "completion_tokens_max": max(lengths),
        "truncated_fraction": np.mean([cut for group in groups for cut in group.cut]),
        "logged_words_mean": np.mean([np.mean([len(text.split()) for text in group.texts]) for group in groups]),
    }
    for name in WEIGHTS:
        given = [one[name] for group in groups for one in group.verdicts if one.get(name) is not None]
        fields |= moments(f"reward_{name}", given)
    return fields | moments("reward", [reward for group in groups for reward in group.rewards])


def scored(session: Session, row: Record, texts: list[str], ids: list[list[int]], given: Record) -> Scored:
    """A group with what the functions gave, and the math verifier has to."""
    verdicts = [{"short": a, "varied": b} for a, b in zip(given["short"], given["varied"], strict=True)]
    for verdict, text in zip(verdicts, texts, strict=True):
        if "ground_truth" in row:
            verdict["math"] = math_reward(text, row["ground_truth"])
    return Scored(verdicts, texts, list(map(len, ids)), [one[-1] != session.tokenizer.eos_token_id for one in ids])


def scored_again(session: Session, group: Record) -> Scored:
    """A group of the rollouts, for which the functions are called once more."""
    row, texts = session.rows[group["row"]], [one["text"] for one in group["completions"]]
    ids = [one["token_ids"] for one in group["completions"]]
    arguments = {
        "prompts": [row.get("messages", row.get("prompt"))] * GROUP,
        "completions": [[{"role": "assistant", "content": text}] for text in texts] if "messages" in row else texts,
        "topic": [row["topic"]] * GROUP,
        "key": [row["key"]] * GROUP,
    }
    given = {
        "short": asyncio.run(session.functions["short"](**arguments, log_metric=lambda name, value: None)),
        "varied": session.functions["varied"](
            completion_ids=ids,
            trainer_state=SimpleNamespace(global_step=0, max_steps=0),
            **without(arguments, "prompts"),
        ),
    }
    return scored(session, row, texts, ids, given)


def without(fields: Record, *names: str) -> Record:
    return {key: value for key, value in fields.items() if key not in names}


def events_until(session: Session, step: int) -> list[Record]:
    """The lines of the ledger up to the one that says that the step was trained."""
    last = next(n for n, e in enumerate(session.ledger) if e["event"] == "trained" and e["step"] == step)
    return session.ledger[: last + 1]


def test_each_logged_group_is_what_its_row_its_tokens_and_the_functions_say(session: Session) -> None:
    tokenizer, outcomes = session.tokenizer, Counter(group["outcome"] for group in session.groups)
    assert outcomes["trained"] == MORE_STEPS * PROMPTS and outcomes["zero_gradient"] > 0 and not outcomes["stale"]
    for group in session.groups:
        row, again = session.rows[group["row"]], scored_again(session, group)
        turns = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        assert group["prompt_token_ids"] == tokenizer(prompt, add_special_tokens=False)["input_ids"]
        assert group["prompt"] == row.get("messages", row.get("prompt"))
        for completion, verdicts, cut in zip(group["completions"], again.verdicts, again.cut, strict=True):
            ids = completion["token_ids"]
            assert completion["text"] == tokenizer.decode(ids if cut else ids[:-1])
            assert completion["finish_reason"] == ("length" if cut else "stop") and (not cut or len(ids) == MAX_TOKENS)
            assert {name: verdict["reward"] for name, verdict in completion["verdicts"].items()} == verdicts
            assert (completion["reward"], completion["solved"]) == (combined(verdicts), solved(verdicts))
        rewards = again.rewards
        assert group["outcome"] == ("trained" if len(rewards) > 1 and len(set(rewards)) > 1 else "zero_gradient")
    assert None in {one["reward"] for group in session.groups for one in group["completions"]}


def test_functions_get_what_the_row_has(session: Session) -> None:
    rows = {row.get("key"): row for row in session.rows.values()}
    for call in session.calls:
        row, chat = rows.get(call["key"], {}), not isinstance(call["completions"][0], str)
        assert len(call["completions"]) == GROUP == SAMPLES
        if call["name"] == "varied":
            texts = [one[-1]["content"] if chat else one for one in call["completions"]]
            assert [len(ids) - len(text.split()) for ids, text in zip(call["ids"], texts, strict=True)] == [
                int(ids[-1] == session.tokenizer.eos_token_id) for ids in call["ids"]
            ]
            assert 0 <= call["at"][0] <= call["at"][1] and call["at"][1] in (STEPS, MORE_STEPS)
        elif row:
            assert call["prompt"] == row.get("messages", row.get("prompt"))
            assert {"dataset", "ground_truth"} <= set(call["columns"]) or not chat


def part(name: str, groups: Sequence[Scored], failed: int) -> Record:
    """The fields of the groups of one verifier or source."""
    lengths = [length for group in groups for length in group.lengths]
    return {
        f"{name}_groups": len(groups),
        f"{name}_failed": failed,
        f"{name}_solve_rate_mean": np.mean([group.solve_rate for group in groups]) if groups else None,
        f"{name}_completion_tokens_mean": np.mean(lengths) if groups else None,
        f"{name}_truncated_fraction": np.mean([cut for group in groups for cut in group.cut]) if groups else None,
    }


def of_parts(session: Session, step: int) -> Record:
    """The fields of each verifier and each source, and the failures."""
    groups = [(one["row"], scored_again(session, one)) for one in session.groups if one["line"] == step]
    failed = [one for one in session.failures if one["line"] == step]
    fields: Record = {f"failures_{cause}": n for cause, n in Counter(one["cause"] for one in failed).items()}
    for source in {row.rpartition(":")[0] for row in [*(row for row, _ in groups), *(one["row"] for one in failed)]}:
        its = [group for row, group in groups if row.startswith(f"{source}:")]
        name = "/".join(Path(source).parts[-2:])
        fields |= part(f"source_{name}", its, sum(one["row"].startswith(f"{source}:") for one in failed))
        rewards = [reward for group in its for reward in group.rewards]
        fields[f"source_{name}_reward_mean"] = np.mean(rewards) if rewards else None
    labelled = sum("ground_truth" in session.rows[one["row"]] for one in failed)
    for name in WEIGHTS:
        judged = [group for _, group in groups if any(one.get(name) is not None for one in group.verdicts)]
        its_failed = labelled if name == "math" else 0
        fields |= part(f"verifier_{name}", judged, its_failed) if judged or its_failed else {}
    return fields


def expected_line(session: Session, step: int) -> Record:
    """All fields of a line that follow from rollouts and ledger."""
    tally = [scored_again(session, group) for group in session.groups if group["line"] == step]
    replaced = [one for one in session.rollouts if one["line"] == step and one["outcome"] != "trained"]
    batch = session.trained(step)
    rewards = [reward for group in batch for reward in scored_again(session, group).rewards]
    lags = [lag for group in batch for one in rewarded(group) for lag in lags_of(one, step)]
    events = events_until(session, step)
    outcomes = Counter(event["outcome"] for event in events if event["event"] == "decided")
    drawn = sum(event["event"] == "drawn" for event in events)
    trained = [group for group in session.groups if group["step"] and group["step"] <= step]
    decided = {event["draw"] for event in events if event["event"] == "decided"}
    ended = trained + [group for group in session.groups if group["prompt_id"] in decided]
    wasted = sum(lost_tokens(session, events))
    fed = sum(len(one["token_ids"]) for group in trained for one in rewarded(group))
    return (
        tallied(tally)
        | of_parts(session, step)
        | {
            "step": step,
            "incarnation": 1 if step <= STEPS else 2,
            "version": step,
            "batch_reward_mean": np.mean(rewards),
            "batch_groups": PROMPTS,
            "batch_tokens": sum(map(num_tokens, batch)),
            "batch_completion_tokens_mean": sum(map(num_tokens, batch)) / (PROMPTS * GROUP),
            "batch_tokens_not_finite": 0,
            "lag_mean": np.mean(lags),
            "lag_max": max(lags),
            "prompts_drawn_total": drawn,
            "groups_trained_total": step * PROMPTS,
            "groups_zero_gradient_total": outcomes["zero_gradient"],
            "groups_stale_total": 0,
            "groups_failed_total": outcomes["failed"],
            "groups_in_flight": drawn - step * PROMPTS - outcomes.total(),
            "duplicates_refused_total": 0,
            "tokens_generated_total": sum(map(num_tokens, ended)) + wasted,
            "tokens_trained_total": fed,
            "tokens_masked_total": sum(map(num_tokens, trained)) - fed,
            "tokens_zero_gradient_total": sum(map(num_tokens, ended)) - sum(map(num_tokens, trained)),
            "tokens_stale_total": 0,
            "tokens_failed_total": wasted,
            "tokens_lost_total": 0,
            "tokens_wasted_total": wasted,
            "prompt_tokens_total": sum(len(group["prompt_token_ids"]) for group in ended),
            "draws_per_trained_group": 1 + len(replaced) / PROMPTS,
            "draws_unaccounted": 0,
            "data_ended": 0,
        }
    )


def possible_flops(session: Session, step: int) -> set[float]:
    """Operations of a step. Each row computes a group's prompt once, and packing decides how many rows have one."""
    once, more = 0.0, [0.0]
    for group in session.trained(step):
        prompt, answers = len(group["prompt_token_ids"]), [len(one["token_ids"]) for one in rewarded(group)]
        once += flops_of(0, prompt, 0) + sum(flops_of(prompt, prompt + answer, answer) for answer in answers)
        more = [copies + extra * flops_of(0, prompt, 0) for copies in more for extra in range(len(answers))]
    return {once + copies for copies in more}


def flops_of(start: int, end: int, predicted: int) -> float:
    """Operations of the three passes over tokens of one sample: matrices of two layers, the head, pairs."""
    hidden, inner, kv, vocabulary = 64, 96, 32, len(WORDS) + 5 + 4 + 4
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner
    pairs = (end * (end + 1) - start * (start + 1)) / 2
    return 3 * 2 * (2 * layer * (end - start) + hidden * vocabulary * predicted + 2 * 2 * hidden * pairs)


def lost_tokens(session: Session, events: Sequence[Record]) -> Iterator[int]:
    """The lost tokens of each group that failed by then. The n-th failure of a row is its n-th unrewarded call."""
    rows = {event["draw"]: event["row"] for event in events if event["event"] == "drawn"}
    failed = Counter(rows[e["draw"]] for e in events if e["event"] == "decided" and e["outcome"] == "failed")
    for row, times in failed.items():
        unrewarded = [
            one for one in session.answers[session.rows[row]["key"]] if {*one["short"], *one["varied"]} == {None}
        ]
        for answer in unrewarded[:times]:
            yield sum(map(len, answer["ids"]))


def rewarded(group: Record) -> list[Record]:
    """The completions that are trained on."""
    return [one for one in group["completions"] if one["reward"] is not None]


def num_tokens(group: Record) -> int:
    return sum(len(one["token_ids"]) for one in group["completions"])


def lags_of(completion: Record, step: int) -> list[int]:
    """The lag of each token, in versions behind the one that the step trained."""
    return [step - 1 - number for number, start, end in completion["versions"] for _ in range(start, end)]


def test_each_line_is_what_rollouts_ledger_and_the_plain_loop_say(session: Session, loop: Loop) -> None:
    assert [line["step"] for line in session.lines] == list(range(1, MORE_STEPS + 1))
    threshold = NO_OUTLIERS
    for line, learned in zip(session.lines, loop.said, strict=True):
        told = {key: value for key, value in line.items() if not key.startswith("eval_") and key not in TIMES}
        assert told.pop("tokens_evaluation_total") in evaluation_tokens(session, line["step"])
        flops, spent, before = told.pop("learner_flops"), learned.pop("spent"), threshold
        threshold = told.pop("outlier_threshold")
        if spent is None:
            assert threshold == before
        else:
            assert spent(1.05 * threshold) <= OUTLIERS_PER_ANSWER
            assert threshold in (0, NO_OUTLIERS) or spent(0.9 * threshold) > OUTLIERS_PER_ANSWER
        assert any(flops == pytest.approx(one, rel=1e-6) for one in possible_flops(session, line["step"]))
        expected = expected_line(session, line["step"]) | learned
        missing = {name: None for name, value in expected.items() if value is None}  # without a scored group
        assert {name: told.pop(name) for name in missing} == missing
        known = {name: value for name, value in expected.items() if name not in missing}
        assert told == pytest.approx(known, rel=1e-4, abs=1e-6)


def evaluation_tokens(session: Session, step: int) -> set[int]:
    """Tokens of all rounds that ended by a step, and of any prompts of a round that has begun and not ended."""
    told = {line[f"{HELD_OUT}version"]: line["step"] for line in session.lines if f"{HELD_OUT}version" in line}
    sums = {0}
    rounds = zip(*(session.answers[row["key"]] for row in session.held_out), strict=True)
    for (begins, ends), of_round in zip(told.items(), rounds, strict=True):
        tokens = [sum(map(len, one["ids"])) for one in of_round]
        if ends <= step:
            sums = {sum(tokens, before) for before in sums}
        elif begins <= step:
            for one in tokens:
                sums |= {before + one for before in sums}
    return sums


def test_the_tables_of_the_run_give_its_numbers_again(session: Session) -> None:
    tables = olmorl.read_run(session.run.run_dir)
    assert tables.metrics.num_rows == len(session.lines) == MORE_STEPS
    for line in tables.metrics.to_pylist():
        expected = ten_numbers.of_step(tables, line["step"])
        assert {name: line[name] for name in expected} == pytest.approx(expected)
    outcomes = tables.draws.to_pandas().outcome.value_counts()
    for outcome in ("trained", "zero_gradient", "failed"):
        assert session.lines[-1][f"groups_{outcome}_total"] <= outcomes.get(outcome, 0)
    assert outcomes["trained"] == session.lines[-1]["groups_trained_total"]


def test_the_export_is_what_the_plain_loop_learns(session: Session, loop: Loop) -> None:
    from transformers import AutoModelForCausalLM

    assert "the policy after step 4" in session.ctl("export", str(session.folder / "after_4"), "--step", "4")
    session.ctl("export", str(session.folder / "newest"))
    folders = [session.folder / "after_4", session.folder / "newest", session.run.run_dir / "export"]
    before, newest, last = (weights_of(AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32)) for f in folders)
    for ours, theirs in ((before, loop.weights[STEPS]), (last, loop.weights[MORE_STEPS])):
        assert ours.keys() == theirs.keys()
        assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) <= 2e-6
    assert all(torch.equal(last[name], newest[name]) for name in last)
    assert max(float((loop.weights[-1][name] - loop.weights[0][name]).abs().max()) for name in last) > 1e-3
    texts = [session.tokenizer.__class__.from_pretrained(f).get_vocab() for f in (folders[2], session.folder / "model")]
    assert texts[0] == texts[1]


@torch.no_grad()
def test_an_engine_samples_with_the_version_that_it_names(session: Session, loop: Loop) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(session.folder / "model", dtype=torch.float32)
    seen = set()
    for group in session.groups:
        for one in group["completions"]:
            if len(one["versions"]) > 1:
                continue  # the cache still holds what the version before it computed
            version = one["versions"][0][0]
            model.load_state_dict(loop.weights[version])
            logprobs, _ = logprobs_of(model, group["prompt_token_ids"], one["token_ids"])
            assert logprobs.tolist() == pytest.approx(one["logprobs"], abs=2e-5)
            seen.add(version)
    assert len(seen) > 2


def test_evaluations_are_what_the_kept_answers_say(session: Session) -> None:
    rows = session.held_out
    told = [line for line in session.lines if f"{HELD_OUT}version" in line]
    assert [line[f"{HELD_OUT}version"] for line in told] == [0, STEPS, MORE_STEPS]
    assert {len(session.answers[row["key"]]) for row in rows} == {len(told)}
    for number, line in enumerate(told):
        fields = {key: value for key, value in line.items() if key.startswith(HELD_OUT) and key != f"{HELD_OUT}version"}
        expected = evaluated(session, rows, number)
        assert fields == pytest.approx({f"{HELD_OUT}{key}": value for key, value in expected.items()})


def evaluated(session: Session, rows: Sequence[Record], number: int) -> Record:
    """The fields of one round."""
    answered, versions = [], []
    for row in rows:
        answer = session.answers[row["key"]][number]
        group = scored(session, row, answer["texts"], answer["ids"], answer)
        if group.rewards:
            answered.append(group)
            versions.append(answer["at"][0])
    tally = tallied(answered)
    solves = [(len(group.rewards), sum(map(solved, group.verdicts))) for group in answered]
    kept = ("reward_mean", "completion_tokens_mean", "truncated_fraction", "logged_words_mean")
    return {
        **{key: tally[key] for key in kept},
        **{f"{name}_mean": tally[f"reward_{name}_mean"] for name in WEIGHTS},
        "accuracy": np.mean([right / number for number, right in solves]),
        "version_oldest": min(versions),
        "version_newest": max(versions),
        "prompts": len(rows),
        "failed": len(rows) - len(answered),
        "tokens": sum(sum(group.lengths) for group in answered),
        **{f"pass_at_{k}": pass_at(k, solves) for k in (2, 4)},
    }


def answered_by(fields: Record) -> str:
    """The versions that answered a round, as printed."""
    oldest, newest = fields["version_oldest"], fields["version_newest"]
    return str(oldest) if oldest == newest else f"{oldest}-{newest}"


def pass_at(k: int, solves: Sequence[tuple[int, int]]) -> float:
    """Over prompts with k answers: the share of the choices of k among them that hold a right one."""
    return float(np.mean([1 - comb(n - right, k) / comb(n, k) for n, right in solves if n >= k]))


# --- printed output -------------------------------------------------------------------------------------------------


def test_the_launcher_counts_the_rows(session: Session) -> None:
    folder = session.folder
    for printed in session.printed:
        assert "data: 16 of 18 rows used, 1 over-long, 1 unusable\n" in printed
        assert "evaluation: 8 of 8 rows used\n" in printed
        assert f"  {folder}/sums.jsonl:11: no usable label" in printed
        assert "evaluation.data: 3 of 8 prompts of held_out are in data.train too" in printed
    for change in (f"schedule.steps: {STEPS} -> {MORE_STEPS}", f"learner.learning_rate: {RATE} -> {CHANGED_RATE}"):
        assert f"changed by this start: {change}\n" in session.printed[1]


STEP = re.compile(
    r"step +(?P<step>\d+)/(?P<steps>\d+)  reward (?P<reward>\S+)  batch (?P<batch>\S+)  (?P<speed>\S+) tok/s"
    r"  lag (?P<lag>\S+) \(max (?P<most>\d+)\)  length (?P<length>\d+)  step (?P<took>\S+)s  wait (?P<wait>\S+)s"
    r"  in flight (?P<flight>\d+)(?:  held_out_accuracy (?P<accuracy>\S+) \(v[\d-]+\))?\n"
)


def test_the_lines_of_the_steps_are_rounded_and_no_more(session: Session) -> None:
    found = [match for printed in session.printed for match in STEP.finditer(printed)]
    assert [int(match["step"]) for match in found] == list(range(1, MORE_STEPS + 1))
    for match, line in zip(found, session.lines, strict=True):
        expected = line | expected_line(session, line["step"])
        assert int(match["steps"]) == (STEPS if line["step"] <= STEPS else MORE_STEPS)
        assert match.group("reward", "batch") == tuple(f"{expected[f'{key}reward_mean']:.3f}" for key in ("", "batch_"))
        assert match.group("lag", "most") == (f"{expected['lag_mean']:.2f}", str(expected["lag_max"]))
        assert match["length"] == f"{expected['completion_tokens_mean']:.0f}"
        assert match["speed"] == f"{expected['actor_tokens_per_s']:,.0f}"
        assert match.group("took", "wait") == tuple(f"{expected[f'learner_{key}_s']:.1f}" for key in ("step", "wait"))
        assert int(match["flight"]) == expected["groups_in_flight"]
    # The rounds after the last steps come later than their lines.
    first = f"{evaluated(session, session.held_out, 0)['accuracy']:.3f}"
    assert {match["accuracy"] for match in found} <= {first, None}


def rows_of(table: str) -> dict[str, list[str]]:
    """The cells of a printed table by the first of its row."""
    rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in table.splitlines() if line[:1] in "│┃"]
    return {row[0]: row[1:] for row in rows if row}


@pytest.mark.parametrize(("start", "done", "part", "evaluations"), [(0, STEPS, 2, (0, 1)), (1, MORE_STEPS, 3, (0, 2))])
def test_the_summary_is_of_the_first_and_the_last_steps(
    session: Session, start: int, done: int, part: int, evaluations: tuple[int, int]
) -> None:
    printed = rows_of(session.printed[start])
    title = "".join(session.printed[start].split())  # it is wrapped anywhere
    assert f"runs/test:{done}steps;thisstarttook" in title
    lines = [line | expected_line(session, line["step"]) for line in session.lines[:done]]
    assert printed.pop("") == [f"first {part} steps", f"last {part} steps"]
    begins = [0.0, *(line["wall_s"] for line in lines)]
    expected = {}
    for key, form in (("reward_mean", ".3f"), ("completion_tokens_mean", ".0f"), ("lag_mean", ".2f")):
        expected[key] = [format(np.mean([one[key] for one in some]), form) for some in (lines[:part], lines[-part:])]
    for key in ("learner_step_s", "learner_wait_s"):
        expected[key] = [f"{np.mean([one[key] for one in some]):.2f}" for some in (lines[:part], lines[-part:])]
    stalls = [[one["weight_stall_s_mean"] for one in some] for some in (lines[:part], lines[-part:])]
    there = [[stall for stall in some if stall is not None] for some in stalls]
    expected["weight_stall_s_mean"] = [f"{np.mean(some):.3f}" if some else "-" for some in there]
    trained = [line["tokens_trained_total"] for line in lines]
    expected["useful_tokens_per_s"] = [
        f"{trained[part - 1] / begins[part]:,.0f}",
        f"{(trained[-1] - trained[-1 - part]) / (begins[-1] - begins[-1 - part]):,.0f}",
    ]
    speeds = np.array([line["actor_tokens_per_s"] for line in lines]) * np.diff(begins)
    expected["actor_tokens_per_s"] = [
        f"{speeds[:part].sum() / begins[part]:,.0f}",
        f"{speeds[-part:].sum() / (begins[-1] - begins[-1 - part]):,.0f}",
    ]
    rows = session.held_out
    rounds = [evaluated(session, rows, number) for number in evaluations]
    expected[f"{HELD_OUT}accuracy"] = [f"{one['accuracy']:.3f} (v{answered_by(one)})" for one in rounds]
    totals = [key for key in lines[-1] if re.fullmatch(r"(prompts_drawn|groups_.*)_total|groups_in_flight", key)]
    for key in (*totals, "tokens_generated_total", "tokens_trained_total"):
        expected[key] = ["", f"{lines[-1][key]:,}"]
    assert printed == expected


def test_status_while_it_trains_and_afterwards(session: Session) -> None:
    for number, asked in enumerate(session.asked, 1):
        live = asked.pop("live")
        assert (asked.pop("silence"), live["incarnation"], live["steps"]) == (
            "",
            number,
            (STEPS, MORE_STEPS)[number - 1],
        )
        assert asked.pop("verdict") == live["verdict"]
        line = session.lines[asked["step"] - 1]
        assert {key: line[key] for key in asked if not key.startswith(HELD_OUT)} == {
            key: value for key, value in asked.items() if not key.startswith(HELD_OUT)
        }
        assert 0 <= live["step"] <= live["steps"] and live["learner_restarts"] == live["actor_deaths"] == 0
        assert live["queued"] + live["leased"] + live["results"] <= (MAX_LAG + 1) * PROMPTS + 1
        assert [actor["name"] for actor in live["actors"]] == ["actor-0"]
    printed = session.ctl("status")
    last = session.lines[-1] | expected_line(session, MORE_STEPS)
    for key, (cell,) in rows_of(printed).items():
        assert cell == (f"{last[key]:,}" if isinstance(last[key], int) else f"{last[key]:,.4g}")
    assert len(rows_of(printed)) == 15
    assert f"step {MORE_STEPS}, incarnation 2" in " ".join(printed.split())  # a title is wrapped anywhere
    assert f"finished, all {MORE_STEPS} steps are done" in printed


def test_the_ledger_has_every_draw(session: Session) -> None:
    events, table = session.ledger, rows_of(session.ctl("ledger"))
    counts = Counter(event["outcome"] for event in events if event["event"] == "decided")
    drawn = [event for event in events if event["event"] == "drawn"]
    counts["trained"] = PROMPTS * MORE_STEPS
    counts["in_flight"] = len(drawn) - counts.total()  # spares of the last step
    assert {name: int(cell) for name, (cell,) in table.items() if name != "outcome"} == +counts
    found = [json.loads(line) for line in session.ctl("ledger", "--json").splitlines()]
    assert [(one["prompt_id"], one["row"]) for one in found] == [(one["draw"], one["row"]) for one in drawn]
    for group in session.groups:
        record = found[group["prompt_id"]]
        assert (record["outcome"], record["step"], record["row"]) == (group["outcome"], group["step"], group["row"])
    nothing = {place for place, row in session.rows.items() if row["topic"] == "nothing"}
    assert {one["row"] for one in found if one["outcome"] == "failed"} >= nothing


def test_times_add_up(session: Session) -> None:
    """A rate is a count over the time between two lines, and no learner waits and works for longer than that."""
    before, generated = {"wall_s": 0.0, "tokens_trained_total": 0}, 0.0
    for line in session.lines:
        seconds = line["wall_s"] - before["wall_s"]
        trained = line["tokens_trained_total"] - before["tokens_trained_total"]
        assert line["useful_tokens_per_s"] * seconds == pytest.approx(trained)
        assert line["learner_step_s"] > 0 and line["learner_wait_s"] >= 0 and line["weight_publish_s"] > 0
        assert line["learner_step_s"] + line["learner_wait_s"] < seconds + 0.01
        parts = [line["learner_forward_backward_s"], line["learner_optimizer_s"]]
        assert min(parts) >= 0 and sum(parts) <= line["learner_step_s"]
        # Publishing begins after the step.
        after = [line["learner_snapshot_s"], line["learner_publish_wait_s"]]
        assert min(after) >= 0 and line["learner_step_s"] + sum(after) <= seconds + 0.05
        assert (line["weight_proof_diff_mean"] or 0) <= (line["weight_proof_diff_max"] or 0) + 1e-12 < 1e-5
        assert (line["weight_stall_s_mean"] is None) == (line["weight_stall_s_max"] is None)
        assert (line["weight_stall_s_mean"] or 0) <= (line["weight_stall_s_max"] or 0)
        # An engine counts while its heartbeats are young, which a busy machine delays.
        assert line["engines"] in (0, 1)
        if line["engine_busy_fraction"] is not None:
            assert line["engines"] == 1
            assert 0 <= line["engine_slots_fraction"] <= line["engine_busy_fraction"] + 0.01 <= 1.01
            assert line["engine_slots_fraction"] * line["engine_slots"] <= line["engine_slots"] <= 16.001
            waiting = sum(line[f"sequences_awaiting_{what}"] for what in ("weights", "verdicts", "group"))
            assert 0 <= waiting <= ((MAX_LAG + 1) * PROMPTS + len(session.held_out)) * GROUP
            assert line["engine_capacity_tokens_per_s"] is None or line["engine_capacity_tokens_per_s"] > 0
        assert 0 <= line["groups_ready"] <= (MAX_LAG + 1) * PROMPTS
        assert line["learner_mfu"] * line["learner_step_s"] * line["learner_peak_flops_per_s"] == pytest.approx(
            line["learner_flops"]
        )
        assert 0 < line["learner_mfu"] < 1
        assert all(line[f"engine_{name}"] is None or 0 <= line[f"engine_{name}"] < 1 for name in ("mfu", "mbu"))
        generated += line["actor_tokens_per_s"] * seconds
        before = line
    there = sum(len(ids) for answers in session.answers.values() for answer in answers for ids in answer["ids"])
    # Tokens since the last heartbeat, which comes every second, are counted with the next line.
    assert 0.05 * there < generated <= there


def test_the_figure_has_the_curves(session: Session) -> None:
    """Each curve of the picture is the numbers up to a scale; and a png of it is a picture."""
    from matplotlib.image import imread

    session.ctl("figure", str(session.folder / "curves.png"))
    assert min(imread(session.folder / "curves.png").shape[:2]) > 500
    session.ctl("figure", str(session.folder / "curves.svg"))
    drawn = (session.folder / "curves.svg").read_text()
    assert f"<!-- test: {MORE_STEPS} steps -->" in drawn
    paths = [np.array(re.findall(r"[ML] (\S+) (\S+)", path), float) for path in re.findall(r'<path d="([^"]*)"', drawn)]
    lines = [line | expected_line(session, line["step"]) for line in session.lines]
    keys = [
        "reward_mean", *(f"reward_{name}_mean" for name in WEIGHTS), "completion_tokens_mean", "truncated_fraction",
        "loss", "entropy_mean", "grad_norm", "actor_tokens_per_s", "useful_tokens_per_s", "lag_mean",
    ]  # fmt: skip
    curves = {key: [(line["step"], line[key]) for line in lines] for key in keys}
    told = [line for line in lines if f"{HELD_OUT}version" in line]
    for key in ("accuracy", "reward_mean"):
        curves[HELD_OUT + key] = [(line[f"{HELD_OUT}version"], line[HELD_OUT + key]) for line in told]
    for key, points in curves.items():
        assert any(is_drawn(np.array(points, float), path) for path in paths), key


def is_drawn(points: Any, path: Any) -> bool:
    """Whether the path is these points, each coordinate scaled and moved, with y downwards."""
    if path.shape != points.shape:
        return False
    scales = [np.polyfit(points[:, axis], path[:, axis], 1) for axis in (0, 1)]
    off = [np.abs(np.polyval(scales[axis], points[:, axis]) - path[:, axis]).max() for axis in (0, 1)]
    return scales[0][0] > 0 > scales[1][0] and max(off) < 0.01


def test_nothing_is_left_running(session: Session) -> None:
    session.run.until_gone()
