"""The chat templates that TRL ships, unchanged: every turn is token-exact, or a start refuses the template.

    python -m tests.actors.episodes.test_public_templates FOLDER

prints the table of the templates (`*.jinja`) in a folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from olmorl.actors.episodes.suffix import TemplateRenderer
from olmorl.actors.episodes.template_check import call, faults
from tests.actors.episodes.test_suffix import TOOLS, play_at_random, tokenizer_of

PACKAGE = "trl==1.16.0"
STOPS = {
    "cohere": ["<|END_OF_TURN_TOKEN|>"],
    "deepseek": ["<｜end▁of▁sentence｜>"],
    "gemma4": ["<turn|>", "<eos>", "<|tool_response>"],
    "diffusion_gemma": ["<turn|>", "<eos>", "<|tool_response>"],
    "gemma": ["<end_of_turn>", "<eos>"],
    "glm4moe": ["<|endoftext|>", "<|user|>", "<|observation|>"],
    "gptoss": ["<|return|>", "<|endoftext|>", "<|call|>"],
    "idefics3": ["<end_of_utterance>"],
    "smolvlm": ["<end_of_utterance>"],
    "llama3": ["<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"],
    "llava": ["</s>"],
    "muse": ["<|eot|>"],
    "phi3": ["<|end|>", "<|endoftext|>", "<|assistant|>"],
    "": ["<|im_end|>", "<|endoftext|>"],
}
"""The stop tokens of the models of each template, by the beginning of its name."""
MARK = re.compile(r"<[|｜][^\s<>{}'\"]{1,40}[|｜]?>|</?[a-z_]{1,20}[|]?>|\[/?[A-Z_]{3,20}\]")
"""What looks like a special token in a template."""
PARTS = "leaves the answer out|'str object' has no attribute 'text'"
"""Templates of models with images read a message as a list of parts."""
NO_REPLIES = {"gptoss": r"ends an answer with no stop token", "idefics3": PARTS, "llava_next": PARTS, "smolvlm": PARTS}
NO_TOOLS = {
    **dict.fromkeys(("cohere", "gemma", "gemma3"), "does not show the tool 'add'.*roles must alternate"),
    **dict.fromkeys(("cohere2", "phi3", "phi3_5"), "does not show the tool 'add'.*drops the text of the role 'tool'"),
    **dict.fromkeys(("deepseek_r1_distill", "deepseekv3", "llama3", "qwen2_5_vl"), "does not show the tool 'add'"),
    **dict.fromkeys(("idefics3", "llava_next", "smolvlm"), "does not show the tool 'add'"),
    **dict.fromkeys(("llama3_1", "llama3_2"), "the results of two calls: .*only supports single tool-calls"),
}
LEFT_OUT = {"lfm2": "the call", "gptoss": "the text", "muse_glimmer": "the text"}
"""What a template leaves out of an earlier answer when an agent has rewritten its history."""


def opened(path: Path, marks: Sequence[str] = ()) -> tuple[Any, list[str]]:
    """A tokenizer with the template and these special tokens more, and the stop tokens."""
    template = path.read_text(encoding="utf-8")
    stops = next(stops for start, stops in STOPS.items() if path.stem.startswith(start))
    return tokenizer_of(template, ["<bos>", *stops, *MARK.findall(template), *marks], stops[0]), stops


def left_out(path: Path) -> str:
    made = call("add", {"a": "qzcallzq"})
    result = {"role": "tool", "name": "add", "tool_call_id": made["id"], "content": "qzresultzq"}
    conversation = [
        {"role": "user", "content": "begin"},
        {"role": "assistant", "content": "qztextzq", "tool_calls": [made]}, result,
        {"role": "assistant", "content": "done"}, {"role": "user", "content": "go on"},
    ]  # fmt: skip
    text = opened(path)[0].apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, tools=TOOLS)
    return " and ".join(f"the {part}" for part in ("text", "call", "result") if f"qz{part}zq" not in text)


def judged(path: Path, role: str | None, *, users: bool = True) -> str:
    """Why a start refuses the template; nothing after 200 random conversations that were exact."""
    tokenizer, stops = opened(path)
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    refused = faults(TemplateRenderer(tokenizer, ids, tools=TOOLS if role else ()), role)
    if not refused:
        play_at_random(tokenizer, stops, role, path.stem, users=users)
    return "; ".join(refused)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_template_is_exact_or_refused_with_its_reason(tmp_path: Path) -> None:
    folder = installed(tmp_path, PACKAGE) / "trl" / "chat_templates"
    templates = sorted(path for path in folder.glob("*.jinja") if not path.stem.endswith("_training"))
    assert len(templates) == 41
    for path in templates:
        replies = judged(path, None)
        assert_expected(path.stem, replies, NO_REPLIES)
        refused = judged(path, "tool", users=not replies)
        assert_expected(path.stem, refused, NO_TOOLS)
        assert refused or left_out(path) == LEFT_OUT.get(path.stem, "")


def assert_expected(name: str, refused: str, expected: dict[str, str]) -> None:
    assert re.search(expected.get(name, "^$"), refused), f"{name}: {refused or 'exact'}"


def installed(folder: Path, *packages: str) -> Path:
    """Install packages in the folder, without what they need. The test is skipped where that cannot be done."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed")
    command = [uv, "pip", "install", "--python", sys.executable, "--no-deps", "--target", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
    return folder


def main(folder: Path) -> None:
    print("| template | replies of users | results of tools | left out of a history |\n|---|---|---|---|")
    for path in sorted(folder.glob("*.jinja")):
        replies = judged(path, None)
        tools = judged(path, "tool", users=not replies)
        print(
            f"| {path.stem} | {replies or 'exact'} | {tools or 'exact'} | {'' if tools else left_out(path)} |",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
