"""Small recipes for runs of a test: on a random policy with real engines, or without a model."""

from __future__ import annotations

import json
from pathlib import Path

from tests.end_to_end.launching import Launch

REWARD = '''
def variety(completions, **columns):
    """Between 0 and 1, and seldom equal over a group of random answers."""
    texts = [c[-1]["content"] if isinstance(c, list) else c for c in completions]
    return [len(set(text)) % 7 / 6 for text in texts]
'''
ON_FOUR_HOSTS = ("--learner.nodes=2", "--learner.ranks_per_node=1", "--actors.nodes=2")
"""The arguments with which a run without a model uses two hosts for the learner and two for actors."""


def make_policy(folder: Path) -> Path:
    """A random policy with its tokenizer."""
    from olmorl.deploy.demo.settings import ModelSize
    from olmorl.deploy.demo.tiny_model import build_model, build_tokenizer

    tokenizer = build_tokenizer(256)
    sizes = ModelSize(hidden=64, intermediate=128, heads=2, sliding_window=16, max_tokens=256)
    build_model(sizes, tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def real(folder: Path, policy: Path, more: str) -> Launch:
    """A run on `policy` with real engines, data and a reward of its own, and `more` lines in its recipe."""
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"say {i} things", "n": i} for i in range(500)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f'[run]\nname = "test"\ndirectory = "{folder}/runs"\n'
        f'[model]\npath = "{policy}"\n'
        f'[data]\ntrain = ["{folder}/data.jsonl"]\nmax_prompt_tokens = 64\n'
        f'[verifiers]\nfunctions = ["{folder}/reward.py:variety"]\n' + more
    )
    return Launch(folder, recipe)


def simulated(folder: Path, more: str) -> Launch:
    """A run without a model, of two ranks and two engines, and `more` lines in its recipe."""
    recipe = folder / "recipe.toml"
    recipe.write_text(
        f'[run]\nname = "test"\nmode = "simulated"\ndirectory = "{folder}/runs"\n'
        "[sampling]\ngroup_size = 4\nmax_tokens = 128\n"
        "[learner]\nranks_per_node = 2\n"
        "[actors]\nengines_per_node = 2\nmax_running = 16\n"
        "[simulation]\ntokens_per_s = 200\nmean_tokens = 60\n" + more
    )
    return Launch(folder, recipe)
