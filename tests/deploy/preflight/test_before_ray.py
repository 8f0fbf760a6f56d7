"""What only the hosts or a slow import would show is found before Ray starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from olmorl import config
from olmorl.config import Verifiers
from olmorl.deploy.preflight.local_checks import check_port
from olmorl.errors import ModelError, ResourceError, RewardFunctionError
from olmorl.learner.trainer.recurrent_layers import refuse_recurrent
from olmorl.verifiers.functions import function_scorer


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        settings = config.build({"run": {"directory": tmp_path, "mode": "simulated"}, "telemetry": {"port": port}})
        with pytest.raises(ResourceError, match=rf"telemetry\.port = {port}: .*give another one, or 0"):
            check_port(settings)
    check_port(settings)


@pytest.mark.parametrize(
    "tree",
    [
        {"layer_types": ["linear_attention", "full_attention"]},
        {"layer_types": ["conv", "full_attention"]},
        {"layers_block_type": ["mamba", "attention"]},
        {"mamba_d_state": 16},
        {"state_size": 16},
        {"hybrid_override_pattern": "M-*"},
    ],
)
def test_recurrent_layers_are_refused(tree: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"has recurrent layers .*no setting helps"):
        refuse_recurrent("m", tree)


@pytest.mark.parametrize("tree", [{}, {"layer_types": ["full_attention", "sliding_attention", "chunked_attention"]}])
def test_attention_of_any_kind_is_not(tree: dict[str, object]) -> None:
    refuse_recurrent("m", tree)


def test_an_import_that_takes_long_is_announced_and_one_that_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "reward.py"
    file.write_text("import time\ntime.sleep(600)\ndef f(completions): return [1.0 for _ in completions]\n")
    monkeypatch.setattr(function_scorer, "_SLOW_IMPORT_S", 0.2)
    pool = function_scorer.Pool
    monkeypatch.setattr(function_scorer, "Pool", lambda *values, **more: pool(*values, **more, start_timeout_s=4.0))
    with pytest.raises(RewardFunctionError, match=r"reward\.py:f: .*was not ready after 4 s: its import hangs"):
        function_scorer.check(Verifiers(functions=[f"{file}:f"]))
    assert "reward.py:f: the import has taken 0.2 s; waiting" in capsys.readouterr().out
