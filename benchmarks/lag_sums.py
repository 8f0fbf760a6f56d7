"""Steps until a small transformer is right with probability 0.8 when its answers are exactly L versions old.

    python benchmarks/lag_sums.py --json benchmarks/results/lag_sums.json

The model and the sums are the demo's, with three numbers; policy, loss and threshold are the learner's own; a copy of
the model of L versions ago samples the answers, so there is no engine. The probability is that of the written solution
of held-out sums, token by token, so an answer that is right in other words does not count.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import measure
import torch
from lag import WANTED, Run
from reaching import service_run
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmorl.config import Config, Objective
from olmorl.deploy.demo.arithmetic import Sum, sums
from olmorl.deploy.demo.settings import DemoSettings
from olmorl.learner.algorithm.objective import NO_OUTLIERS, LossInputs, next_threshold, policy_loss, step_metrics
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.policy import PackedPolicy, PolicyRow

STEPS = 34
GROUPS, GROUP_SIZE, HELD_OUT, MOST_TOKENS = 8, 8, 32, 112
DRAWN = 3
"""A step draws as many times the groups at most: a policy that has failed has no group with a gradient."""
RATE, WARM_UP, BETAS = 5e-4, 4, (0.9, 0.95)
"""As in the demo's recipe."""
RULES: Mapping[str, Mapping[str, Any]] = {
    "token": {"rho_kind": "truncate"},
    "answer": {"rho_kind": "sequence"},
    "auto": {"rho_kind": "auto"},
}
CELLS = (("token", 0), ("token", 4), ("answer", 4), ("auto", 4), ("auto", 8))


class Answer(NamedTuple):
    """One sampled solution."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    """Under the version that sampled it."""
    advantage: float


class Laboratory:
    """The demo's model, and what samples from it, trains it and asks it."""

    def __init__(self, settings: Config, seed: int) -> None:
        """Load the model of the demo that `settings` name."""
        assert settings.model.path is not None
        self.tokenizer = AutoTokenizer.from_pretrained(settings.model.path)
        self.policy = PackedPolicy(models.load(settings.model, "auto", torch.device("cpu")), 1.0, chunk=1024)
        self.sampler = AutoModelForCausalLM.from_pretrained(settings.model.path, dtype=torch.float32).eval()
        held_out = list(islice(sums(10_000, {3: 1}), HELD_OUT))
        self._held_out = [(self._prompt(one), self._ids(one.work_out(careful=True))) for one in held_out]
        self._problems: Iterator[Sum] = sums(seed, {3: 1})
        torch.manual_seed(seed)

    def _prompt(self, problem: Sum) -> list[int]:
        turn = [{"role": "user", "content": problem.question}]
        text = self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _ids(self, solution: str) -> list[int]:
        return [*self.tokenizer(solution, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]

    def logprobs(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Tensor:
        """The log-probabilities of all answers in one row, as the learner computes them."""
        lengths = tuple(len(prompt) + len(tokens) for prompt, tokens in pairs)
        asked: list[int] = []
        start = 0
        for (prompt, _), length in zip(pairs, lengths, strict=True):
            asked += range(start + len(prompt), start + length)
            start += length
        ids = [token for pair in pairs for part in pair for token in part]
        row = PolicyRow(torch.tensor(ids), lengths, torch.tensor(asked))
        logprobs_T, _ = self.policy(row)
        return logprobs_T[row.predicted_P]

    @torch.no_grad()
    def right(self) -> float:
        """The mean probability of the solution of a held-out sum."""
        lengths = [len(tokens) for _, tokens in self._held_out]
        return mean(float(part.sum().exp()) for part in self.logprobs(self._held_out).split(lengths))

    def answers(self, version: Mapping[str, Tensor]) -> list[Answer]:
        """The answers of a step by a version: groups without a gradient are left out, and others drawn."""
        self.sampler.load_state_dict(version)
        found: list[Answer] = []
        for _ in range(DRAWN):
            problems = list(islice(self._problems, GROUPS))
            prompts = [self._prompt(problem) for problem in problems]
            tokens_BT, chances_BT = self._sampled([prompt for prompt in prompts for _ in range(GROUP_SIZE)])
            parts = zip(tokens_BT.split(GROUP_SIZE), chances_BT.split(GROUP_SIZE), strict=True)
            for problem, prompt, (tokens_GT, chances_GT) in zip(problems, prompts, parts, strict=True):
                found += self._group(problem, prompt, tokens_GT, chances_GT)
            if len(found) >= GROUPS * GROUP_SIZE:
                break
        return found[: GROUPS * GROUP_SIZE]

    @torch.no_grad()
    def _sampled(self, prompts: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Tokens and log-probabilities of one answer to each prompt."""
        width = max(map(len, prompts))
        padding = self.tokenizer.pad_token_id
        ids_BP = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts])
        made = self.sampler.generate(
            ids_BP,
            attention_mask=(ids_BP != padding).long(),
            do_sample=True,
            top_k=0,
            top_p=1.0,
            max_new_tokens=MOST_TOKENS,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens_BT = made.sequences[:, width:]
        logprobs_BTV = torch.log_softmax(torch.stack(made.logits, 1), -1)
        return tokens_BT, logprobs_BTV.gather(2, tokens_BT[..., None]).squeeze(2)

    def _group(self, problem: Sum, prompt: list[int], tokens_GT: Tensor, chances_GT: Tensor) -> list[Answer]:
        """The answers to one problem, none if all are right or all are wrong."""
        solution = f"\\boxed{{{problem.ground_truth}}}"
        kept, rewards = [], []
        for tokens, chances in zip(tokens_GT.tolist(), chances_GT.tolist(), strict=True):
            ended = tokens.index(self.tokenizer.eos_token_id) + 1 if self.tokenizer.eos_token_id in tokens else None
            kept.append((tokens[:ended], chances[:ended]))
            text = self.tokenizer.decode(tokens[:ended], skip_special_tokens=True)
            rewards.append(float(text.rsplit("\n", 1)[-1] == solution))
        middle = mean(rewards)
        if middle in (0.0, 1.0):
            return []
        return [Answer(prompt, *pair, reward - middle) for pair, reward in zip(kept, rewards, strict=True)]


def learn(
    settings: Config, seed: int, lag: int, objective: Mapping[str, Any], rate: float = RATE, steps: int = STEPS
) -> Run:
    """Train for `steps` steps on answers that are exactly `lag` versions old, once there are as many versions."""
    laboratory = Laboratory(settings, seed)
    switches = resolve(Objective.model_validate(objective), MOST_TOKENS)
    parameters = list(laboratory.policy.model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=BETAS, weight_decay=0.0)
    versions = deque([copy.deepcopy(laboratory.policy.model.state_dict())], maxlen=lag + 1)
    run, threshold = Run([], []), NO_OUTLIERS
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / WARM_UP)
        if answers := laboratory.answers(versions[0]):
            logprobs_T = laboratory.logprobs([(answer.prompt, answer.tokens) for answer in answers])
            inputs = _inputs(logprobs_T, answers, len(versions) - 1)._replace(outlier_threshold=threshold)
            loss, stats_S = policy_loss(inputs, switches)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            threshold = next_threshold(stats_S, threshold)
            run.metrics.append(step_metrics(stats_S, 1) | {"outlier_threshold": threshold})
        versions.append(copy.deepcopy(laboratory.policy.model.state_dict()))
        run.right.append(laboratory.right())
    return run


def _inputs(logprobs_T: Tensor, answers: Sequence[Answer], lag: int) -> LossInputs:
    """The answers as one row of the objective."""
    lengths = torch.tensor([len(answer.tokens) for answer in answers])
    advantages = torch.tensor([answer.advantage for answer in answers])
    return LossInputs(
        logprobs_BT=logprobs_T[None],
        old_logprobs_BT=logprobs_T.detach()[None],
        behaviour_logprobs_BT=torch.tensor([one for answer in answers for one in answer.logprobs])[None],
        advantages_BT=advantages.repeat_interleave(lengths)[None],
        loss_mask_BT=torch.ones(1, len(logprobs_T), dtype=torch.bool),
        sequence_ids_BT=torch.arange(len(answers)).repeat_interleave(lengths)[None],
        lags_BT=torch.full((1, len(logprobs_T)), lag),
        loss_tokens=float(len(logprobs_T)),
        num_sequences=len(answers),
    )


def summary(rule: str, lag: int, rate: float, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds. A seed that was never right counts in `never`, not in the mean."""
    steps = [run["steps"] for run in runs if run["steps"] is not None]
    level = [run["right"][-1] for run in runs]
    return {
        "rule": rule,
        "lag": lag,
        "rate": rate,
        "seeds": len(runs),
        "steps": mean(steps) if steps else None,
        "steps_error": stdev(steps) / math.sqrt(len(steps)) if len(steps) > 1 else None,
        "never": len(runs) - len(steps),
        "level": mean(level),
        "level_error": stdev(level) / math.sqrt(len(level)) if len(level) > 1 else None,
        **{
            name: mean(run[name] for run in runs) for name in ("best", "kl_answers_max", "ess_answers_min", "threshold")
        },
        "right": [run["right"] for run in runs],
    }


def line(rule: str, lag: int, rate: float, seed: int, run: Run) -> dict[str, Any]:
    """One seed."""
    return {
        "rule": rule,
        "lag": lag,
        "rate": rate,
        "seed": seed,
        "steps": run.steps,
        "best": max(run.right),
        "kl_answers_max": max(metrics["kl_engine_learner_answers"] for metrics in run.metrics),
        "ess_answers_min": min(metrics["importance_ess_fraction_answers"] for metrics in run.metrics),
        "threshold": run.metrics[-1]["outlier_threshold"],
        "right": run.right,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One line for each cell."""
    made = Table(title=f"steps until the probability of the right answer is {WANTED}", title_justify="left")
    for heading in ("rule", "lag", "rate", "steps", "never", f"level at {STEPS}", "best", "KL", "ESS", "c"):
        made.add_column(heading, justify="right" if heading != "rule" else "left")
    for row in rows:
        made.add_row(
            row["rule"],
            str(row["lag"]),
            f"{row['rate']:g}",
            f"{row['steps']:.1f} ± {row['steps_error'] or 0:.1f}" if row["steps"] else "",
            str(row["never"] or ""),
            f"{row['level']:.3f} ± {row['level_error'] or 0:.3f}",
            f"{row['best']:.3f}",
            f"{row['kl_answers_max']:.2f}",
            f"{row['ess_answers_min']:.2f}",
            f"{row['threshold']:.2g}",
        )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--seeds", type=int, default=8, help="default: %(default)s")
    add("--scratch", type=Path, default=Path("runs"), metavar="DIR", help="the demo's model; default: %(default)s")
    add("--rate", type=float, action="append", metavar="RATE", help=f"learning rate, more than once; default: {RATE:g}")
    add("--lines", type=Path, metavar="FILE", help="a line for each seed; those that it has are not run again")
    add("--json", type=Path, metavar="FILE", help="also write the results there")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    recipe = Path(__file__).parents[1] / "deploy/recipes/demo.toml"
    settings = service_run.prepared(recipe, given.scratch, DemoSettings(), {})
    lines = given.lines or given.scratch / "lag_sums.jsonl"
    runs = [json.loads(text) for text in lines.read_text(encoding="utf-8").splitlines()] if lines.exists() else []
    rows = []
    for rate, (rule, lag) in product(given.rate or [RATE], CELLS):
        of = [run for run in runs if (run["rule"], run["lag"], run["rate"]) == (rule, lag, rate)]
        for seed in sorted(set(range(given.seeds)) - {run["seed"] for run in of}):
            of.append(line(rule, lag, rate, seed, learn(settings, seed, lag, RULES[rule], rate)))
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(of[-1]) + "\n")
        rows.append(summary(rule, lag, rate, of))
    Console(width=120).print(table(rows))
    if given.json:
        measure.write(given.json, {"benchmark": "lag_sums", "wanted": WANTED, "rows": rows}, ("torch", "transformers"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
