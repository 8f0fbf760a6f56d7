"""What a run sends where, and the checks before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from olmorl import config
from olmorl.deploy.tracking import tracking
from olmorl.deploy.tracking.records import TrackedLine
from olmorl.deploy.tracking.tracking import (
    SAMPLES,
    Tracking,
    check_tracking,
    environment_of_launcher,
    tracking_id,
)
from olmorl.deploy.view.run_history import sample_of
from olmorl.errors import ConfigError
from tests.deploy.ended_draws import ended
from tests.deploy.tracking.otlp_receiver import OtlpReceiver


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment_of_launcher():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def settings(folder: Path, **telemetry: Any) -> config.Config:
    return config.build({"run": {"directory": str(folder)}, "telemetry": telemetry})


def test_a_run_without_a_tracker_starts_nothing(tmp_path: Path) -> None:
    made = Tracking(settings(tmp_path), {})
    made.add_ended(ended(), None)
    made.add_line({"step": 1})
    assert made.num_dropped == 0
    made.close()


def test_lines_samples_and_traces_reach_their_places(
    tmp_path: Path,
    receiver: OtlpReceiver,
    fake_trackio: Callable[[str], None],
) -> None:
    log = tmp_path / "log"
    values = "{key: getattr(value, 'data', value) for key, value in metrics.items()}"
    fake_trackio(f"pathlib.Path({str(log)!r}).open('a').write(repr({values}) + chr(10))")
    made = Tracking(settings(tmp_path, tracker="trackio"), {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url})
    for draw in range(SAMPLES + 2):
        one = ended(draw)
        made.add_ended(one, sample_of(one))
    made.add_line({"step": 6, "loss": 0.5})
    made.add_line({"step": 7, "loss": 0.25})
    made.close()
    curves, table, last = log.read_text().splitlines()
    assert (curves, last) == ("{'loss': 0.5}", "{'loss': 0.25}")
    assert table.count("'trained', '1', '6 x 7?', '42'") == SAMPLES
    assert len(receiver.traces()) == SAMPLES + 2 and made.num_dropped == 0


def test_an_evaluation_takes_no_answers_with_it(tmp_path: Path) -> None:
    made, put = Tracking(settings(tmp_path), {}), list[TrackedLine]()
    made._feeds = {"trackio": SimpleNamespace(put=put.append)}  # type: ignore[dict-item]
    made.add_ended(ended(), sample_of(ended()))
    made.add_line({"eval_held_version": 1})
    made.add_line({"step": 1})
    assert [len(one.samples) for one in put] == [0, 1]


def test_tracker_and_traces_close_at_the_same_time(tmp_path: Path) -> None:
    made, both = Tracking(settings(tmp_path), {}), Barrier(2, timeout=10)
    made._feeds = {name: SimpleNamespace(close=both.wait) for name in ("trackio", "traces")}  # type: ignore[misc]
    made.close()
    assert not both.broken


def test_a_run_keeps_its_id_and_another_one_in_its_folder_gets_another(tmp_path: Path) -> None:
    recipe = settings(tmp_path / "first")
    made = tracking_id(recipe)
    assert made.startswith("run-") and tracking_id(recipe) == made
    (tmp_path / "first").rename(tmp_path / "moved")
    assert tracking_id(settings(tmp_path / "moved")) == made
    shutil.rmtree(tmp_path / "moved")
    assert tracking_id(settings(tmp_path / "moved")) != made


@pytest.mark.parametrize("tracker", ["tensorboard", "wandb", "trackio"])
def test_a_package_that_is_not_installed_is_an_error_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf'telemetry.tracker = "{tracker}".*pip install {tracker}'):
        check_tracking(settings(tmp_path, tracker=tracker))


def test_weights_and_biases_needs_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: object())
    asked = settings(tmp_path, tracker="wandb")
    with pytest.raises(ConfigError, match="WANDB_API_KEY; WANDB_MODE=offline"):
        check_tracking(asked)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password stored\n")
    (tmp_path / "netrc").chmod(0o600)
    check_tracking(asked)
    assert environment_of_launcher() == {"WANDB_API_KEY": "stored"}
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_tracking(asked)


def test_traces_need_their_packages_and_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = settings(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    check_tracking(asked)
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install opentelemetry-sdk"):
        check_tracking(asked)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match=r"grpc.*http/protobuf"):
        check_tracking(asked)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    check_tracking(asked)
