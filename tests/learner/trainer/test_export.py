"""Shares of a checkpoint, written and read by hand; and the model that they are exported as."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import uvloop
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from olmorl import config
from olmorl.deploy.control import cli
from olmorl.errors import ConfigError, DataError, ResourceError, UserError
from olmorl.learner.storage import checkpoint_dir
from olmorl.learner.storage.checkpoint_dir import Part
from olmorl.learner.storage.ledger_state import LedgerState
from olmorl.learner.trainer import export_process
from olmorl.learner.trainer import model as models
from olmorl.learner.trainer.checkpoint_shards import KINDS, ParameterPiece, Share, Shares, file_of
from olmorl.learner.trainer.export import export
from olmorl.run_dir import RunFiles

Weights = dict[str, torch.Tensor]
NOBODY = 65534


def pieces(weights: Weights, rank: int, world: int) -> list[ParameterPiece]:
    """Every rank has its part of each; the moments are the weights plus 1 and plus 2."""
    whole = [ParameterPiece(name, 0, {k: w.flatten() + i for i, k in enumerate(KINDS)}) for name, w in weights.items()]
    return [piece.part(rank, world) for piece in whole]


def write(folder: Path, weights: Weights, world: int, **others: torch.Tensor) -> None:
    for rank in range(world):
        share = Share(rank, world, pinned=False)
        share.copy(pieces(weights, rank, world), others if rank == 0 else {}, steps=7)
        share.write(folder)


def test_any_piece_is_read_from_the_shares_that_hold_it(tmp_path: Path) -> None:
    weights = {"a": torch.arange(10.0), "b": torch.arange(100.0, 101.0)}
    write(tmp_path, weights, world=3, random=torch.tensor([3, 1], dtype=torch.uint8))
    shares = Shares(tmp_path)
    assert (shares.steps, shares.numels) == (7, {"a": 10, "b": 1})
    assert shares.read("master", "a", 3, 9).tolist() == [3, 4, 5, 6, 7, 8]
    assert shares.read("exp_avg", "a", 0, 10).tolist() == list(range(1, 11))
    assert shares.read("exp_avg_sq", "b", 0, 1).tolist() == [102]
    assert shares.others("random")[""].tolist() == [3, 1]
    assert shares.others("random", rank=1) == shares.others("random", rank=9) == {}


def test_a_share_is_a_safetensors_file(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=2, buffer=torch.ones(3, 2, dtype=torch.bfloat16))
    tensors = load_file(file_of(tmp_path, 0))
    assert tensors["master/a"].tolist() == [0, 1]
    assert torch.equal(tensors["buffer"], torch.ones(3, 2, dtype=torch.bfloat16))
    assert load_file(file_of(tmp_path, 1))["exp_avg/a"].tolist() == [3, 4]


def test_a_copy_does_not_change_with_what_it_was_copied_from(tmp_path: Path) -> None:
    weights = {"a": torch.arange(4.0)}
    share = Share(0, 1, pinned=False)
    for steps in (1, 2):
        (piece,) = pieces(weights, 0, 1)
        share.copy([piece], {}, steps)
        piece.tensors["master"].fill_(-1.0)
        share.write(tmp_path)
        assert (Shares(tmp_path).steps, Shares(tmp_path).read("master", "a", 0, 4).tolist()) == (steps, [0, 1, 2, 3])


def test_a_share_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no checkpoint of a learner"):
        Shares(tmp_path)
    write(tmp_path, {"a": torch.arange(4.0)}, world=2)
    second = file_of(tmp_path, 1)
    data = second.read_bytes()
    second.write_bytes(data[:-3])
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged .*--from-step"):
        Shares(tmp_path)
    second.unlink()
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: missing"):
        Shares(tmp_path)


@pytest.mark.parametrize("after", [b'"steps": "', b""], ids=["header", "data"])
def test_a_bit_that_flipped_is_found_by_one_of_all_readers(tmp_path: Path, after: bytes) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=3)
    share = file_of(tmp_path, 1)
    data = bytearray(share.read_bytes())
    data[data.index(after) + len(after) if after else -1] ^= 1
    share.write_bytes(data)
    Shares(tmp_path, reader=0, readers=2)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged \(its bytes .*--from-step"):
        Shares(tmp_path, reader=1, readers=2)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: damaged"):
        Shares(tmp_path)


def test_a_share_without_a_digest_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=1)
    share = file_of(tmp_path, 0)
    share.write_bytes(share.read_bytes().replace(b'"digest"', b'"tsegid"', 1))
    with pytest.raises(ResourceError, match=r"share_0\.safetensors: damaged .*--from-step"):
        Shares(tmp_path)


def test_a_share_that_is_removed_while_others_are_looked_through_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a": torch.arange(4.0)}, world=2)
    look_through = Shares._refuse_damage

    def refuse_damage(shares: Shares, rank: int) -> None:
        look_through(shares, rank)
        file_of(tmp_path, 1).unlink()

    monkeypatch.setattr(Shares, "_refuse_damage", refuse_damage)
    with pytest.raises(ResourceError, match=r"share_1\.safetensors: missing; .*--from-step"):
        Shares(tmp_path)


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[..., tuple[Path, Weights]]:
    """A run directory with a complete checkpoint of step 4, written on two ranks, of a model trained a little."""

    def make(path: str, dtype: str = "bfloat16", **more: Any) -> tuple[Path, Weights]:
        model = {"path": path, "dtype": dtype, **more.pop("model", {})}
        tree = {"run": {"directory": tmp_path}, "model": model, **more}
        settings = config.build(tree)
        settings.run_dir.mkdir()
        (settings.run_dir / "config.toml").write_text(config.to_toml(settings))
        loaded = models.load(config.Model(path=path, dtype="float32"), "auto", torch.device("cpu"))
        weights = {name: weight.detach() * 1.001 for name, weight in loaded.named_parameters()}
        checkpoints = settings.run_dir / "checkpoints"
        write(checkpoint_dir.shares_of(checkpoints, 4, 1), weights, world=2)
        part = Part(step=4, incarnation=1, ledger_incarnation=1, ledger_bytes=0)
        checkpoint_dir.complete(checkpoints, part, LedgerState())
        return settings.run_dir, weights

    return make


@pytest.mark.parametrize("name", ["olmo3", "qwen2", "llama"])
def test_a_checkpoint_is_exported_as_its_master_weights_rounded(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path, name: str
) -> None:
    run_dir, weights = run_of(tiny_models[name])
    assert export(run_dir, None, tmp_path / "out") == 4
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    loaded = dict(model.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[key], weight.to(torch.bfloat16)) for key, weight in weights.items())
    vocabulary = AutoTokenizer.from_pretrained(tiny_models[name]).get_vocab()
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == vocabulary


def in_loop_of_a_process_of_ray(work: Coroutine[Any, Any, None]) -> None:
    """Run it as the orchestrator does: in a thread that is not the main one, in the loop that Ray makes."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: uvloop.new_event_loop().run_until_complete(work)).result(120)


def test_a_killed_export_leaves_no_folder_and_the_next_one_is_whole(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str]
) -> None:
    run_dir, weights = run_of(tiny_models["llama"])
    folder = RunFiles(run_dir).export_of(4)
    program = (
        "import asyncio, sys; from pathlib import Path; from olmorl.learner.trainer.export_process import export_step; "
        "asyncio.run(export_step(Path(sys.argv[1]), 4))"
    )
    killed = subprocess.Popen([sys.executable, "-c", program, str(run_dir)])
    deadline = time.monotonic() + 120
    while not list(folder.parent.glob(".step_4.*.partial")):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.001)
    (exporting,) = psutil.Process(killed.pid).children()
    killed.kill()
    killed.wait()
    exporting.wait(60)
    assert not folder.exists() and len(list(folder.parent.iterdir())) == 1, "half a folder of another name"

    in_loop_of_a_process_of_ray(export_process.export_step(run_dir, 4))
    assert list(folder.parent.iterdir()) == [folder]
    loaded = dict(AutoModelForCausalLM.from_pretrained(folder, dtype="auto").named_parameters())
    assert all(torch.equal(loaded[key], weight.to(torch.bfloat16)) for key, weight in weights.items())
    with pytest.raises(ResourceError, match="exists and is not empty"):
        asyncio.run(export_process.export_step(run_dir, 4))


def test_damage_in_a_checkpoint_is_noticed_and_leaves_no_export(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str]
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    share = file_of(checkpoint_dir.shares_of(run_dir / "checkpoints", 4, 1), 1)
    data = bytearray(share.read_bytes())
    data[-100] ^= 1
    share.write_bytes(data)
    with pytest.raises(ResourceError, match="damaged"):
        asyncio.run(export_process.export_step(run_dir, 4))
    assert list(RunFiles(run_dir).exports.iterdir()) == []


TEMPLATE = "{{ messages[-1].content }}"


def trained_otherwise(run_of: Callable[..., tuple[Path, Weights]], path: str, base: Path) -> tuple[Path, Weights]:
    """A run with a chat template and a sampling that are not those of the model's own folder."""
    shutil.copytree(path, base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"eos_token": "5"})
    tokenizer.chat_template = "the base model's"
    tokenizer.save_pretrained(base)
    GenerationConfig(eos_token_id=[1, 3], pad_token_id=0, do_sample=True, temperature=0.6, top_k=20).save_pretrained(
        base
    )
    sampling = {"temperature": 0.9, "stop": ["</answer>"]}
    return run_of(str(base), "float32", model={"chat_template": TEMPLATE}, sampling=sampling)


def test_an_export_has_what_the_policy_was_trained_with(
    run_of: Callable[..., tuple[Path, Weights]],
    tiny_models: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, _ = trained_otherwise(run_of, tiny_models["llama"], tmp_path / "base")
    out = tmp_path / "out"
    assert cli.main([str(run_dir), "export", str(out)]) == 0
    assert "its answers ended at the texts ['</answer>']" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(out).chat_template == TEMPLATE
    settings = json.loads((out / "generation_config.json").read_text())
    del settings["transformers_version"]
    assert settings == {
        "eos_token_id": [1, 3, 5], "pad_token_id": 0, "do_sample": True, "temperature": 0.9, "top_p": 1.0, "top_k": 0
    }  # fmt: skip
    assert {stat.S_IMODE(file.stat().st_mode) for file in out.iterdir()} == {stat.S_IMODE(out.stat().st_mode) & 0o666}


LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), AutoTokenizer.from_pretrained(sys.argv[1])
chat = tokenizer.apply_chat_template([{"role": "user", "content": "7"}], return_tensors="pt", return_dict=True)
print(chat["input_ids"].tolist(), model.generate(**chat, do_sample=False, max_new_tokens=6)[0].tolist())
"""


def given_away(out: Path) -> list[str]:
    """Give the folder to another user; returns the words before a command that may read only what modes allow."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []  # the modes are tested elsewhere
    for file in (out, *out.iterdir()):
        os.chown(file, NOBODY, NOBODY)
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


@pytest.mark.slow
def test_another_user_loads_an_export_with_transformers_and_with_a_server(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path
) -> None:
    served = tmp_path / "served"  # vLLM's attention on a CPU takes no smaller heads
    shutil.copytree(tiny_models["llama"], served)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(served, head_dim=32)).save_pretrained(served)
    run_dir, _ = trained_otherwise(run_of, str(served), tmp_path / "base")
    out = tmp_path / "out"
    export(run_dir, None, out)
    other = given_away(out)
    command = [*other, sys.executable, "-c", LOAD, str(out)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    asked, answered = map(json.loads, re.findall(r"\[[\d, ]*\]", loaded.stdout.replace("[[", "[").replace("]]", "]")))
    assert asked == [7], "with the chat template of training"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *other,
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(out),
        "--port",
        str(port),
    ]
    command += ["--enforce-eager", "--max-model-len", "64", "--dtype", "float32", "--host", "127.0.0.1"]
    with (tmp_path / "server.log").open("w") as log:
        environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        answer = asked_when_up(server, port, tmp_path / "server.log")
    finally:
        server.terminate()
        server.wait(60)
    assert answer["choices"][0]["token_ids"] == answered[len(asked) :]
    assert answer["prompt_token_ids"] == asked


def asked_when_up(server: subprocess.Popen[bytes], port: int, log: Path) -> Any:
    """The server's answer to the same question, as soon as it answers."""
    body = {"model": str(log.parent / "out"), "messages": [{"role": "user", "content": "7"}], "temperature": 0}
    body |= {"max_tokens": 6, "return_token_ids": True}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    give_up = time.monotonic() + 240
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            pytest.fail(error.read().decode())
        except OSError:
            assert server.poll() is None and time.monotonic() < give_up, log.read_text()
            time.sleep(0.5)


def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no complete checkpoint of step 5; there are: 4"):
        export(run_dir, 5, out)
    with pytest.raises(DataError, match="exists and is not empty"):
        export(run_dir, 4, run_dir)
    recipe = (run_dir / "config.toml").read_text()
    (run_dir / "config.toml").write_text(recipe.replace(tiny_models["llama"], tiny_models["qwen2"]))
    with pytest.raises(ConfigError, match=r"the checkpoint is of another model: .*q_proj\.bias"):
        export(run_dir, 4, out)
    (run_dir / "config.toml").write_text(recipe.replace('mode = "real"', 'mode = "simulated"'))
    with pytest.raises(UserError, match="a simulated run has no model"):
        export(run_dir, 4, out)
    assert not list(tmp_path.glob("out*"))
    checkpoint_dir.remove_incomplete(run_dir / "checkpoints")
    (run_dir / "checkpoints" / "step_4" / "complete").unlink()
    (run_dir / "config.toml").write_text(recipe)
    with pytest.raises(DataError, match="no checkpoint is complete yet"):
        export(run_dir, None, out)


def test_the_command_exports_and_refuses_in_one_line(
    run_of: Callable[..., tuple[Path, Weights]],
    tiny_models: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    out = tmp_path / "out"
    assert cli.main([str(run_dir), "export", str(out), "--step", "9"]) == 2
    assert "no complete checkpoint of step 9; there are: 4" in capsys.readouterr().err
    assert cli.main([str(run_dir), "export", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: the policy after step 4\n"
    assert (out / "model.safetensors").exists()


def test_a_folder_that_cannot_be_written_is_named(
    run_of: Callable[..., tuple[Path, Weights]], tiny_models: dict[str, str], tmp_path: Path
) -> None:
    run_dir, _ = run_of(tiny_models["llama"])
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(
        ResourceError, match=r"\.out\.\d+\.partial: the model cannot be written \(.*Not a directory.*export FOLDER"
    ):
        export(run_dir, 4, tmp_path / "file" / "out")
