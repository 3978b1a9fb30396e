"""The first row of a board about ranks: what the agent found, who is to blame, what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as cm
from grafana_foundation_sdk.models import dashboard as dm

from dashboards.common import (
    GREY,
    ORANGE,
    RED,
    TEAL,
    as_table,
    background,
    by_threshold,
    cells,
    columns,
    instant,
    limits,
    prop,
    query,
    states,
    tiles,
    values,
)
from dashboards.promql import by, lately, of_role, of_run, recent
from dfx_agent.catalogue.per_rank import RANK_UP
from dfx_agent.catalogue.verdicts import (
    RUN_STATE,
    STRAGGLER_LOST_SECONDS,
    VERDICT_ACTIVE,
    VERDICT_STATE,
)

STATES = (("found", 3), ("warning", 2), ("insufficient evidence", 1), ("clear", 0))
_VERDICT_STATES = tuple(row for row in STATES if row[0] != "warning")
TILE_TEXTS = values(
    ("0", "clear", TEAL), ("1", "not enough evidence", GREY), ("2", "WARNING", ORANGE),
    ("3", "FOUND", RED),
)  # fmt: skip


def verdicts() -> Any:
    states = [f"{lately(of_run(VERDICT_STATE, state=s))} * {value}" for s, value in _VERDICT_STATES]
    panel = tiles(
        "Verdicts",
        "What the agent concluded within the window 'Averaged over', first of the whole run, in "
        "which alerts count, too. Teal is normal; grey: it would have to guess and does not. "
        "FOUND: read who and why on the right, then the evidence on the agent's page.",
        "none",
    )
    panel.with_target(instant(by("run", "max", _run_states(lately)), "run"))
    panel.with_target(instant(by("kind", "max", " or ".join(states)), "{{kind}}", "B"))
    panel.mappings([TILE_TEXTS]).color_scheme(by_threshold()).thresholds(limits(GREY))
    panel.orientation(cm.VizOrientation.HORIZONTAL).justify_mode(cm.BigValueJustifyMode.AUTO)
    return panel.text(common.VizTextDisplayOptions().title_size(14).value_size(14))


def blamed() -> Any:
    found = by("kind, role, rank, cause, stage", "max", lately(of_run(VERDICT_ACTIVE)))
    standing = by("state", "max", recent(of_run(RUN_STATE)))
    nothing = f'label_replace({standing}, "cause", "$1", "state", "(.*)")'
    panel = cells(
        "Who and why",
        "One line for each rank to blame: what is wrong, where, and the cause. 'nothing found' is "
        "normal; without a rank to blame the state of the run stands here. Start with the rank "
        "named here on every other panel.",
    )
    panel.with_target(as_table(instant(f"{found} or ({nothing} unless on () {found})")))
    panel.transformations(
        [
            columns({"kind": "Problem", "rank": "Rank", "cause": "Cause", "stage": "Stage",
                     "role": "Role", "Value": "Value"}),
        ]
    )  # fmt: skip
    everything = dm.RegexMap(
        options=dm.DashboardRegexMapOptions(
            pattern=".+", result=dm.ValueMappingResult(color=RED, index=1)
        )
    )
    of_state = values(
        ("clear", "nothing found", TEAL), ("warning", "an alert fires", ORANGE),
        ("insufficient evidence", "not enough evidence", GREY),
    )  # fmt: skip
    mappings = [of_state, everything]
    panel.override_by_name("Cause", [background(), prop("mappings", mappings)])
    panel.override_by_name("Value", [prop("custom.hidden", True)])
    detail = "/d/dfx-e2e?${run:queryparam}&${role:queryparam}&var-lane=${__value.raw}"
    link = {"title": "This rank in detail", "url": f"{detail}&${{__url_time_range}}"}
    panel.override_by_name("Rank", [prop("links", [link])])
    for name, width in (("Problem", 100), ("Rank", 60), ("Stage", 110), ("Role", 90)):
        panel.override_by_name(name, [prop("custom.width", width)])
    return panel


def _run_states(window: Callable[[str], str]) -> str:
    return " or ".join(f"{window(of_run(RUN_STATE, state=s))} * {value}" for s, value in STATES)


def history() -> Any:
    panel = states(
        "Verdicts over time",
        "When each problem was found (red), excluded (teal) or not decided (grey). Intermittent "
        "red is a problem that is barely larger than the normal spread of the ranks.",
        [TILE_TEXTS],
    )
    now = [f"{of_run(VERDICT_STATE, state=s)} * {value}" for s, value in _VERDICT_STATES]
    panel.with_target(query(by("run", "max", _run_states(str)), "run"))
    panel.with_target(query(by("kind", "max", " or ".join(now)), "{{kind}}", "B"))
    return panel.max_data_points(300)


def lost_seconds() -> Any:
    lost = by("rank", "max", lately(of_run(STRAGGLER_LOST_SECONDS)))
    panel = tiles(
        "Lost per step",
        "What the other ranks lose in each step by waiting for the rank named here. "
        "'none' is normal. Compare with the step time: that much faster the job could be.",
        "s",
    )
    panel.with_target(instant(f"{lost} or {nobody('rank')}", "rank {{rank}}"))
    panel.color_scheme(by_threshold()).thresholds(limits(TEAL, (1e-9, RED)))
    panel.mappings([values(("0", "none", TEAL))]).decimals(2)
    return panel


def nobody(label: str) -> str:
    """0 while there is a run and nobody is blamed, so that the panel can say so."""
    lost = by("rank", "max", lately(of_run(STRAGGLER_LOST_SECONDS)))
    up = by("role", "max", recent(of_role(RANK_UP)))
    return f'(label_replace(0 * {up}, "{label}", "–", "", "") unless on () {lost})'
