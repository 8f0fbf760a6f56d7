"""Measures the learner alone on one GPU, in parts of at most 90 seconds: trained tokens/s, MFU, memory, idle time.

    python benchmarks/gpu_learner.py --json benchmarks/results/gpu_learner.json
    python benchmarks/gpu_learner.py --tiny --only "auto*"       the same with a small model, also on a CPU, to try it

A part is a random model with some settings, in a process of its own: two counted steps on long-tailed answers, one
under the profiler, and the peak of two full rows. It needs neither an engine nor Ray nor the network. Each result is
printed and written at once, so that little is lost when the machine goes.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import measure
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from olmorl import config
from olmorl.config import with_key
from olmorl.deploy.cluster.device_peak import device_peak
from olmorl.deploy.preflight.memory_auto import decided
from olmorl.learner.algorithm.presets import resolve
from olmorl.learner.batching.packing import pack
from olmorl.learner.trainer.deepspeed_trainer import DeepSpeedTrainer
from olmorl.learner.trainer.memory import rank_memory
from olmorl.learner.trainer.pinned_memory import ALLOCATOR_SETTINGS
from olmorl.learner.trainer.process_group import Ranks
from olmorl.messages import Sample, Shard

GIB: Final = 2**30
PART_S: Final = 90.0
ENDS: Final = 24
"""Tokens that end an answer. A random model samples one of them about every `vocabulary / ENDS` tokens."""
PACKAGES: Final = ("torch", "deepspeed", "transformers", "triton")


@dataclass(frozen=True)
class Workload:
    """A model's shape and the lengths of its samples, in tokens."""

    shape: Mapping[str, int]
    prompt: int
    answer: int
    vocabulary: int = 100_352
    groups: int = 2


_SMALL: Final = {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16}
_LARGE: Final = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8, "num_attention_heads": 32}
_TINY: Final = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
WORKLOADS: Final[Mapping[str, Workload]] = {
    "1.6B": Workload(_SMALL | {"num_key_value_heads": 8, "head_dim": 128}, prompt=256, answer=8192),
    "7B-like": Workload(_LARGE | {"num_key_value_heads": 8, "head_dim": 128}, prompt=256, answer=8192),
    "7B-like long": Workload(_LARGE | {"num_key_value_heads": 8, "head_dim": 128}, prompt=256, answer=32_512),
    "tiny": Workload(_TINY | {"num_key_value_heads": 1, "head_dim": 32}, prompt=16, answer=64, vocabulary=512),
}
_PLAIN: Final = {"learner.compile": False, "learner.gradient_checkpointing": True, "learner.row_tokens": 8448}
"""Nothing compiled, every layer recomputed, rows of the longest sample."""
_KEEP: Final = {"learner.gradient_checkpointing": False}
_COMPILED: Final = {"learner.compile": True}
PARTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "auto": ("1.6B", {}),
    "auto, not compiled": ("1.6B", {"learner.compile": False}),
    "auto, varlen": ("1.6B", {"learner.attention": "varlen"}),
    "compiled, rows of 16,896": ("1.6B", _COMPILED | _KEEP | {"learner.row_tokens": 16_896}),
    "compiled, rows of 8,448": ("1.6B", _COMPILED | _KEEP | {"learner.row_tokens": 8448}),
    "compiled, recomputed, rows of 33,792": (
        "1.6B",
        _COMPILED | {"learner.gradient_checkpointing": True, "learner.row_tokens": 33_792},
    ),
    "plain": ("1.6B", _PLAIN),
    "plain, compiled": ("1.6B", _PLAIN | _COMPILED),
    "plain, every second layer": ("1.6B", _PLAIN | {"learner.gradient_checkpointing": 2}),
    "plain, offload": ("1.6B", _PLAIN | {"learner.gradient_checkpointing": "offload"}),
    "plain, sdpa": ("1.6B", _PLAIN | {"learner.attention": "sdpa"}),
    "plain, 8 tiles": ("1.6B", _PLAIN | {"learner.mlp_tiles": 8}),
    "plain, ZeRO-3": ("1.6B", _PLAIN | {"learner.zero_stage": 3}),
    "plain, head in bfloat16": ("1.6B", _PLAIN | {"model.fp32_head": False}),
    "7B-like, auto": ("7B-like", {}),
    "7B-like, 32,768, auto": ("7B-like long", {}),
}
"""Name of a part, its workload, and the keys that it changes. Those that the project aims for come first."""


def build(folder: Path, work: Workload) -> None:
    """A random Qwen 3 in bfloat16."""
    ends = list(range(work.vocabulary // 2, work.vocabulary // 2 + ENDS))
    shape = Qwen3Config(
        vocab_size=work.vocabulary,
        max_position_embeddings=work.prompt + work.answer,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ends,
        pad_token_id=0,
        **work.shape,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(shape).to(torch.bfloat16)
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)


def settings_of(model: Path, work: Workload, changes: Mapping[str, Any], gpu_share: float = 1.0) -> config.Config:
    """The settings of a part, with what `auto` means for this GPU. Without one the learner is on the CPU."""
    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory / GIB if on_gpu else None
    settings = config.Config(
        model=config.Model(path=str(model), fp32_head=True, dtype="bfloat16" if on_gpu else "float32"),
        data=config.Data(max_prompt_tokens=work.prompt),
        sampling=config.SamplingSettings(max_tokens=work.answer),
        schedule=config.Schedule(prompts_per_step=work.groups),
        learner=config.Learner(device="cuda" if on_gpu else "cpu", zero_stage=2, learning_rate=1e-5),
        cluster=config.Cluster(gpus_per_node=2 if on_gpu else 0, gpu_memory_gib=memory and memory * gpu_share),
    )
    for key, value in changes.items():
        rows = key == "learner.row_tokens"
        settings = with_key(settings, key, max(value, work.prompt + work.answer) if rows else value)
    return decided(settings).settings


def trainer_of(settings: config.Config) -> DeepSpeedTrainer:
    """The learner of one rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    return DeepSpeedTrainer(
        settings.model,
        settings.learner,
        resolve(settings.objective, settings.sampling.max_tokens),
        temperature=1.0,
        steps=1000,
        seed=0,
        ranks=Ranks(0, 1, address),
        peak=device_peak(settings, on_gpu=torch.cuda.is_available()),
    )


def shard_of(settings: config.Config, work: Workload, step: int, longest: bool) -> Shard:
    """Groups of eight answers with long-tailed lengths, or two rows with an answer of full length each.

    The second row comes while the gradients of the first are there.
    """
    rng = np.random.default_rng(step)
    lengths = rng.lognormal(np.log(0.37 * work.answer), 0.8, 8 * work.groups).clip(16, work.answer).astype(int)
    groups = [[(g, lengths[8 * g + i]) for i in range(8)] for g in range(work.groups)]
    if longest:
        groups = [[(group, settings.row_tokens - work.prompt)] for group in range(2)]
    prompts = rng.integers(2, work.vocabulary, (work.groups, work.prompt)).astype(np.int32)
    samples = [
        [
            Sample(
                draw_id=draw,
                prompt_ids=prompts[draw],
                completion_ids=rng.integers(2, work.vocabulary, size).astype(np.int32),
                behaviour_logprobs=rng.normal(-np.log(work.vocabulary), 0.1, size).astype(np.float32),
                loss_mask=np.ones(size, np.bool_),
                lags=np.zeros(size, np.int32),
                advantage=float(rng.normal()),
            )
            for draw, size in group
        ]
        for group in groups
    ]
    return pack(samples, step=step, num_ranks=1, num_minibatches=1, row_tokens=settings.row_tokens)[0]


def learner(model: Path, name: str, tiny: bool) -> dict[str, Any]:
    """One part. Times and MFU are of the steps after the first, which compiles."""
    workload, changes = PARTS[name]
    work = WORKLOADS["tiny" if tiny else workload]
    settings = settings_of(model, work, changes)
    on_gpu = torch.cuda.is_available()
    planned = rank_memory(settings.model, settings.learner, 1, settings.row_tokens, on_gpu=on_gpu).peak
    trainer = trainer_of(settings)
    took, mfu = [], []
    for step in (1, 2, 3):
        shard = shard_of(settings, work, step, longest=False)
        seconds, values = timed(lambda shard=shard: asyncio.run(trainer.train(shard)))  # type: ignore[misc]
        took.append(shard.loss_tokens[0] / seconds)
        if peak := values.get("learner_peak_flops_per_s"):
            mfu.append(values["learner_flops"] / seconds / peak)
    found = {
        "row_tokens": settings.row_tokens,
        "gradient_checkpointing": settings.learner.gradient_checkpointing,
        "first_step_tokens_per_s": took[0],
        "tokens_per_s": took[1:],
        "mfu": mfu[1:],
        "planned_peak_gib": planned / GIB,
        "snapshot_ms": [1000 * timed(trainer.snapshot)[0] for _ in range(4)],
    }
    if on_gpu:
        found |= _profile(trainer, shard_of(settings, work, 3, longest=False))
        found |= _peak(trainer, shard_of(settings, work, 4, longest=True))
    trainer.close()
    return found


def _peak(trainer: DeepSpeedTrainer, shard: Shard) -> dict[str, float]:
    """Memory at the peak of a step whose row is full."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    asyncio.run(trainer.train(shard))
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.max_memory_reserved() / GIB,
        "outside_torch_gib": (total - free - torch.cuda.memory_reserved()) / GIB,
    }


def _profile(trainer: DeepSpeedTrainer, shard: Shard) -> dict[str, Any]:
    """Kernels of one step, the share of the time in which the GPU ran none, and the kernels that took most time."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        asyncio.run(trainer.train(shard))
        torch.cuda.synchronize()
    kernels = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    spans = sorted((event.time_range.start, event.time_range.end) for event in kernels)
    busy, until = 0.0, 0.0
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    names: dict[str, float] = {}
    for event in kernels:
        names[event.name[:60]] = names.get(event.name[:60], 0.0) + event.time_range.elapsed_us()
    longest = sorted(names.items(), key=lambda item: -item[1])[:12]
    return {
        "kernels": len(kernels),
        "gpu_idle": 1 - busy / (spans[-1][1] - spans[0][0]) if spans else None,
        "longest_kernels_share": [[name, time / busy] for name, time in longest],
    }


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, with all that it left to the GPU, and its result."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    since = time.perf_counter()
    result = call()
    wait()
    return time.perf_counter() - since, result


def table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """One line for each part."""
    made = Table(title="the learner alone", title_justify="left")
    for heading in ("part", "rows", "recomputed", "tokens/s", "MFU", "peak", "planned", "idle", "kernels"):
        made.add_column(heading, justify="left" if heading == "part" else "right")
    for name, found in results.items():
        if "failed" in found:
            made.add_row(name, "", "", found["failed"])
            continue
        made.add_row(
            name,
            f"{found['row_tokens']:,}",
            str(found["gradient_checkpointing"]).lower(),
            f"{median(found['tokens_per_s']):,.0f}",
            f"{median(found['mfu']):.1%}" if found["mfu"] else "",
            f"{found['peak_gib']:.2f}" if "peak_gib" in found else "",
            f"{found['planned_peak_gib']:.2f}",
            f"{found['gpu_idle']:.1%}" if found.get("gpu_idle") is not None else "",
            f"{found['kernels']:,}" if "kernels" in found else "",
        )
    made.caption = "Peak and planned: GiB, of two full rows."
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    given = _parser().parse_args(argv)
    if given.part:
        print(json.dumps(learner(given.model, given.part, given.tiny)))
        return 0
    if not torch.cuda.is_available() and not given.tiny:
        print("this benchmark needs an NVIDIA GPU and a CUDA build of torch; --tiny tries it without", file=sys.stderr)
        return 2
    names = [name for name in PARTS if any(fnmatch.fnmatch(name, pattern) for pattern in given.only)]
    results = json.loads(given.json.read_text())["parts"] if given.json and given.json.exists() else {}
    for name in names:
        results[name] = _part(name, given)
        print(name, json.dumps(results[name]), flush=True)
        if given.json:
            gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
            measure.write(given.json, {"benchmark": "gpu_learner", "gpu": gpu, "parts": results}, PACKAGES)
    Console(width=150).print(table({name: results[name] for name in names}))
    return int(any("failed" in results[name] for name in names))


def _part(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One part in a process of its own, with the model of its workload, which is made if it is missing."""
    workload = "tiny" if given.tiny else PARTS[name][0]
    model = given.models / workload.replace(" ", "-")
    if not (model / "config.json").is_file():
        build(model, WORKLOADS[workload])
    command = [str(Path(__file__).resolve()), "--part", name, "--model", str(model)]
    return result_of([*command, *(["--tiny"] if given.tiny else [])], given.timeout)


def result_of(words: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """The result that a part prints in a process of its own, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            env=os.environ | {"PYTORCH_ALLOC_CONF": ALLOCATOR_SETTINGS},
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {timeout_s:g} s"}
    if done.returncode:
        return {"failed": f"exit code {done.returncode}; its errors are above"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--only", nargs="+", default=["*"], metavar="PATTERN", help="parts, as in `plain*`; default: all")
    add("--tiny", action="store_true", help="a small model and short rows; also on a CPU")
    models = Path(tempfile.gettempdir()) / "olmorl-gpu-models"
    add("--models", type=Path, default=models, metavar="FOLDER", help="keeps the random models; default: %(default)s")
    add("--timeout", type=float, default=PART_S, metavar="S", help="for one part; default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="write the results, or bring them up to date, after each part")
    add("--part", help=argparse.SUPPRESS)
    add("--model", type=Path, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
