"""Writes the Grafana boards: `python -m olmorl.deploy.grafana.build`. Needs the package grafana-foundation-sdk."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import DashboardLinkType, DataSourceRef, VariableRefresh

from olmorl.deploy.grafana.panels import BOARDS, WINDOW, GrafanaBoard, GrafanaPanel

FOLDER = Path(__file__).parent / "boards"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
_TAG = "olmorl"
_WIDTH, _HEIGHT = 8, 8
ANNOTATIONS = {
    "Faults": (
        "red",
        'changes(olmorl_actor_deaths_total{run="$run"}[1m]) > 0'
        ' or changes(olmorl_learner_restarts_total{run="$run"}[1m]) > 0',
    ),
    "Checkpoints": ("blue", 'delta(olmorl_steps_since_checkpoint{run="$run"}[1m]) < 0'),
    "Evaluations": ("green", 'changes(max by (run) ({__name__=~"olmorl_eval_.+_version",run="$run"})[1m:5s]) > 0'),
}
WINDOW_QUERY = (
    'ceil(4 * max(max_over_time(olmorl_step_period_seconds_median{run="$run"}[${__range_s}s]))) > 120 or vector(120)'
)
"""The seconds of the boards' variable `window`: four steps, and at least two minutes."""
_WINDOWS = {"1m": "one minute", "5m": "five minutes", "1h": "one hour", WINDOW: "`Window` (four steps or more)"}


def text(board: GrafanaBoard) -> str:
    """The board as Grafana imports it."""
    return json.dumps(_dashboard(board).build(), cls=JSONEncoder, indent=1) + "\n"


def path(board: GrafanaBoard) -> Path:
    """Where the board is kept."""
    return FOLDER / f"{board.uid.removeprefix('olmorl-')}.json"


def _dashboard(board: GrafanaBoard) -> dashboard.Dashboard:
    link = dashboard.DashboardLink("OlmoRL").type(DashboardLinkType.DASHBOARDS).tags([_TAG])
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .tags([_TAG])
        .refresh("10s")
        .time("now-1h", "now")
        .link(link.as_dropdown(True).include_vars(True).keep_time(True))
        .with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(_variable("run", "Run", "label_values(olmorl_since_step_seconds, run)"))
        .with_variable(_variable("window", "Window (s)", f"query_result({WINDOW_QUERY})").regex(r"/^\{\} (\d+) /"))
        .with_variable(
            _variable("actor", "Actor", 'label_values(olmorl_policy_version{run="$run"}, process)')
            .multi(True)
            .include_all(True)
            .all_value("actor.*")
        )
    )
    for name, (color, expr) in ANNOTATIONS.items():
        made.annotation(
            dashboard.AnnotationQuery().name(name).datasource(_SOURCE).enable(True).icon_color(color).expr(expr)
        )
    for number, panel in enumerate(board.panels, 1):
        made.with_panel(_panel(panel).id(number))
    return made


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    found = dashboard.QueryVariable(name).label(label).datasource(_SOURCE).query(query)
    return found.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)


def _panel(panel: GrafanaPanel) -> Any:
    made: Any = stat.Panel() if panel.is_number else timeseries.Panel()
    made.title(panel.title).description(_description(panel)).unit(panel.unit).datasource(_SOURCE)
    made.span(_WIDTH).height(_HEIGHT)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().ref_id(letter).expr(query.expr).legend_format(query.legend or panel.title)
        made.with_target(target.datasource(_SOURCE))
    if panel.is_number:
        if panel.shows_name:
            made.text_mode(BigValueTextMode.NAME)
        made.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    else:
        legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
        made.legend(legend.show_legend(True)).tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        made.line_width(1).fill_opacity(30 if panel.stacked else 10).show_points(VisibilityMode.NEVER)
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL if panel.stacked else StackingMode.NONE))
    return made


def _description(panel: GrafanaPanel) -> str:
    waits = sorted({query.waits_for for query in panel.queries if query.waits_for})
    windows = sorted({_WINDOWS[each] for query in panel.queries for each in re.findall(r"\[(.+?)\]", query.expr)})
    over = f" Over {' and '.join(windows)}." if windows else ""
    empty = "Empty" if all(query.waits_for for query in panel.queries) else "In part empty"
    return f"Good: {panel.good}{over}" + (f" {empty} before {' or '.join(waits)}." if waits else "")


def main() -> None:
    """Write every board."""
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        path(board).write_text(text(board), encoding="utf-8")


if __name__ == "__main__":
    main()
