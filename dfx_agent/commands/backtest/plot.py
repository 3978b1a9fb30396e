"""Replayed runs as one HTML file: every signal with its band, and when alerts would have come.

plotly.js goes into the file: it needs no network. A run is drawn when it is opened.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfx_agent.base.errors import DfxError
from dfx_agent.base.html import template
from dfx_agent.commands.backtest.episodes import Episode
from dfx_agent.snapshot import SignalState

_DIGITS = 4
_COLOURS = {"critical": "#d62728", "warning": "#e6a100"}
Curve = list[float | None]


@dataclass
class Curves:
    """What is drawn of one run, by row; ``signals`` is name -> (value, band low, band high)."""

    steps: list[int] = field(default_factory=list)
    signals: dict[str, tuple[Curve, Curve, Curve]] = field(default_factory=dict)

    def add(self, state: SignalState) -> None:
        """Keep this state's numbers."""
        num_rows = len(self.steps)
        self.steps.append(state.step)
        for row in state.signals:
            curves = self.signals.setdefault(row.signal, ([], [], []))
            numbers = row.value, row.baseline_low, row.baseline_high
            for curve, number in zip(curves, numbers, strict=True):
                curve.extend([None] * (num_rows - len(curve)))
                curve.append(_short(number))


@dataclass(frozen=True)
class _Run:
    """One run as it is written above its plot; ``page`` is its first."""

    name: str
    num_rows: str
    alerts: Sequence[Episode]
    page: Episode | None


def render(runs: Iterable[tuple[str, Curves, Sequence[Episode]]], summary: str) -> str:
    """The page; runs that would have paged are open. DfxError when plotly is not there."""
    drawn = list(runs)
    return template(__package__, "plot.html").render(
        summary=summary,
        runs=[_run(*run) for run in drawn],
        figures=[_figure(curves, alerts) for _, curves, alerts in drawn],
        plotly=_plotly(),
    )


def _run(name: str, curves: Curves, alerts: Sequence[Episode]) -> _Run:
    loud = [alert for alert in alerts if alert.severity in _COLOURS]
    page = next((alert for alert in loud if alert.severity == "critical"), None)
    return _Run(name, f"{len(curves.steps):,}", loud, page)


def _figure(curves: Curves, alerts: Sequence[Episode]) -> dict[str, Any]:
    """One panel a signal, all over the same rows; the step is in the text that hovers."""
    names = list(curves.signals)
    height = 1 / max(1, len(names))
    rows = {"title": {"text": "row"}, "anchor": f"y{len(names)}" if len(names) > 1 else "y"}
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "height": 60 + 130 * len(names), "showlegend": False, "hovermode": "x",
        "margin": {"l": 130, "r": 20, "t": 10, "b": 40}, "xaxis": rows,
        "shapes": [_line(alert) for alert in alerts if alert.severity in _COLOURS],
    }  # fmt: skip
    for i, name in enumerate(names):
        axis = f"y{i + 1}" if i else "y"
        top = 1 - i * height
        layout[f"yaxis{i + 1}" if i else "yaxis"] = {
            "domain": [top - 0.85 * height, top], "title": {"text": name},
        }  # fmt: skip
        traces += _panel(curves, name, axis)
    return {"traces": traces, "layout": layout}


def _panel(curves: Curves, name: str, axis: str) -> list[dict[str, Any]]:
    value, low, high = curves.signals[name]
    rows = list(range(len(value)))
    band = {"x": rows, "yaxis": axis, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    steps = [f"step {step}" for step in curves.steps[: len(value)]]
    return [
        {**band, "y": low},
        {**band, "y": high, "fill": "tonexty", "fillcolor": "rgba(120,120,120,.25)"},
        {"x": rows, "y": value, "yaxis": axis, "text": steps, "mode": "lines",
         "line": {"width": 1.2, "color": "#1f77b4"}},
    ]  # fmt: skip


def _line(alert: Episode) -> dict[str, Any]:
    line = {"color": _COLOURS[alert.severity], "width": 1.5, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": alert.row, "x1": alert.row,
            "y0": 0, "y1": 1, "line": line}  # fmt: skip


def _short(number: float | None) -> float | None:
    """Without digits that no eye sees; None for what is not a number either."""
    if number is None or not abs(number) < float("inf"):
        return None
    return float(f"{number:.{_DIGITS}g}")


def _plotly() -> str:
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        raise DfxError("--plot draws with plotly: pip install plotly")
    return (Path(spec.origin).parent / "package_data" / "plotly.min.js").read_text("utf-8")
