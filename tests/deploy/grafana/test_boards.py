"""The boards are what their builder makes, and ask only for metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from olmorl import metrics
from olmorl.deploy.grafana import build
from olmorl.deploy.grafana.panels import BOARDS, GrafanaBoard

ROOT = Path(__file__).resolve().parents[3]
OUTSIDE = {"up", "ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"}
"""Metrics of Prometheus and of its client."""
GRID = 24
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def loaded(board: GrafanaBoard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(build.path(board).read_text(encoding="utf-8"))
    return found


def known() -> set[str]:
    """Every metric that a process may export."""
    flat = {metrics.prometheus_name(name) for name in metrics.HELP}
    labelled = {metrics.prometheus_name(family.name) for family in metrics.FAMILIES}
    return flat | labelled | {metrics.prometheus_name(name) for name in metrics.HISTOGRAMS} | OUTSIDE


@boards
def test_a_board_is_what_its_builder_makes(board: GrafanaBoard) -> None:
    made = build.text(board)
    assert build.path(board).read_text(encoding="utf-8") == made, "run: python -m olmorl.deploy.grafana.build"


def test_no_other_board_is_there() -> None:
    assert set(build.FOLDER.iterdir()) == {build.path(board) for board in BOARDS}


@boards
def test_a_board_fits_the_schema_of_grafana(board: GrafanaBoard) -> None:
    register_default_plugins()
    read = Dashboard.from_json(loaded(board))
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == loaded(board)
    assert read.panels


@boards
def test_every_panel_says_what_good_is_and_lies_on_the_grid(board: GrafanaBoard) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in loaded(board)["panels"]:
        assert re.match(r"Good: .+\.$", panel["description"]), panel["title"]
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < GRID, panel["title"]
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert len({panel["id"] for panel in loaded(board)["panels"]}) == len(board.panels)


@boards
def test_every_query_asks_for_a_metric_that_exists(board: GrafanaBoard) -> None:
    for panel in board.panels:
        for query in panel.queries:
            bare = re.sub(r"\{[^}]*\}", "", query.expr)
            names = set(re.findall(r"\b(?:(?:olmorl|process)_\w+?|up|ALERTS)(?=\b|_bucket)", bare))
            assert names <= known(), (panel.title, names - known())
            # vLLM names its own metrics.
            assert names or "__name__" in query.expr or "vllm:" in query.expr, panel.title


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt install prometheus)"
)
@boards
def test_prometheus_can_read_every_query(tmp_path: Path, board: GrafanaBoard) -> None:
    queries = [query.expr for panel in board.panels for query in panel.queries]
    queries += [*(expr for _, expr in build.ANNOTATIONS.values()), build.WINDOW_QUERY]
    values = {"${window}": "120", "${__range_s}": "3600"}
    queries = [re.sub(r"\$\{\w+\}", lambda found: values[found[0]], expr) for expr in queries]
    rules = [{"record": f"query_{number}", "expr": expr} for number, expr in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    check = ["promtool", "check", "rules", str(tmp_path / "rules.yml")]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr


@boards
def test_variables_annotations_and_links(board: GrafanaBoard) -> None:
    made = loaded(board)
    assert [variable["name"] for variable in made["templating"]["list"]] == ["source", "run", "window", "actor"]
    assert [each["name"] for each in made["annotations"]["list"]] == ["Faults", "Checkpoints", "Evaluations"]
    assert made["links"][0]["tags"] == made["tags"] == ["olmorl"]
    assert made["links"][0]["includeVars"] and made["links"][0]["keepTime"]


def test_every_alert_asks_for_metrics_that_exist() -> None:
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert set(re.findall(r"\bolmorl_\w+", rule["expr"])) <= known(), rule["alert"]
