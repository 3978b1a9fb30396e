"""The agent's signals and alerts over logs of finished runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from dfx_agent.agent import config as configuration
from dfx_agent.agent.signal_inputs import SignalInputs, Source, source_of
from dfx_agent.agent.signals import SignalBank
from dfx_agent.alerting.backtest import STEP_CLOCKED, Episode, episodes
from dfx_agent.commands._backtest_plot import Curves, render
from dfx_agent.errors import UsageError
from dfx_agent.ingest.reader import AUTO, READERS, read
from dfx_agent.ingest.run import Run, UnreadableLogError
from dfx_agent.metrics.alerts import alerts_with
from dfx_agent.metrics.alerts.stability import DIVERGENCE
from dfx_agent.metrics.native import load

HELP = "replay logs of finished runs: when would the alerts have come?"
EXAMPLE = """dfx-agent backtest runs/*.csv.gz --json --fail-on critical

Thresholds are those of the settings (dfx.yaml or --config: thresholds: {KEY: NUMBER}, and
DFX_THRESHOLDS), as for an agent that serves; `dfx-agent assets --list` shows every KEY."""

# key -> value, of those that differ from the catalogue
Thresholds: TypeAlias = Mapping[str, float]

_FAIL_ON = {"critical": ("critical",), "warning": ("critical", "warning")}


@dataclass
class Report:
    """What one file gave."""

    file: str
    framework: str = ""
    num_rows: int = 0
    alerts: list[Episode] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str | None = None
    curves: Curves | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, gzipped or not")
    parser.add_argument(
        "--format", default=AUTO, choices=(AUTO, *READERS), help="how the logs are written"
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")
    parser.add_argument("--plot", metavar="FILE.html", help="draw signals, bands and alerts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--fail-on", choices=tuple(_FAIL_ON), help="exit with 1 if there was such an alert"
    )


def execute(args: argparse.Namespace) -> int:
    """0, or 1 when a file cannot be read or --fail-on found what it looks for."""
    if args.plot:
        _check_writable(Path(args.plot))
    thresholds = _thresholds(args.config)
    reports = [
        _report(file, args.format, thresholds, is_drawn=args.plot is not None)
        for file in _with_progress(args.files)
    ]
    for report in reports:
        if report.error:
            print(f"dfx-agent: {report.error}", file=sys.stderr)
    if args.plot:
        _draw(reports, thresholds, Path(args.plot))
    if args.json:
        print(json.dumps(_as_json(reports, thresholds), allow_nan=False))
    else:
        _print(reports, thresholds)
    failing = _FAIL_ON.get(args.fail_on, ())
    is_found = any(alert.severity in failing for report in reports for alert in report.alerts)
    return int(is_found or any(report.error for report in reports))


def signal_rows(run: Run) -> Iterator[tuple[int, dict[str, float]]]:
    """What the bank observes: step, signal -> value."""
    inputs, route = SignalInputs(), _routes(run)
    for step, values in run.rows:
        sources = {}
        for key, (source, scale) in route.items():
            if key in values:
                sources[source] = scale * values[key]
        yield step, inputs.signals(sources)


def replay(
    rows: Iterable[tuple[int, dict[str, float]]],
    curves: Curves | None = None,
    thresholds: Thresholds = MappingProxyType({}),
) -> list[Episode]:
    """The alerts of a run that reported these rows; what is to be drawn goes into ``curves``.

    ``thresholds`` differ from the catalogue's.
    """
    (divergence,) = alerts_with(thresholds, (DIVERGENCE,))
    bank = SignalBank(divergence.condition)
    states = (bank.observe(step, values) for step, values in rows)
    drawn = states if curves is None else map(curves.add, states)
    return episodes(drawn, alerts_with(thresholds, STEP_CLOCKED))


def _thresholds(config_file: str | None) -> Thresholds:
    """Of the settings; nothing else of them matters to a log."""
    names = os.environ.keys() & {"DFX_THRESHOLDS"}
    environment = {name: os.environ[name] for name in names}
    return dict(configuration.load({}, environment, config_file).thresholds)


def _routes(run: Run) -> dict[str, tuple[Source, float]]:
    """Native key -> where its value goes, for the keys that signals are made of; the best last."""
    names, found = load(run.framework), {}
    keys = {key for _, values in run.rows for key in values}
    for key in sorted(keys, key=lambda key: (-names.priority(key), key)):
        native = names.find(key)
        source = native and source_of(native.metric, native.labels)
        if native and source:
            found[key] = source, native.scale
    return found


def _report(file: str, format_name: str, thresholds: Thresholds, *, is_drawn: bool) -> Report:
    try:
        run = read(Path(file), format_name)
    except UnreadableLogError as error:
        return Report(file, error=str(error))
    curves = Curves() if is_drawn else None
    alerts = replay(signal_rows(run), curves, thresholds)
    return Report(file, run.framework, len(run.rows), alerts, run.warnings, curves=curves)


def _check_writable(path: Path) -> None:
    """Before minutes of work."""
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--plot {path}: name a file in a folder that exists")


def _draw(reports: list[Report], thresholds: Thresholds, path: Path) -> None:
    drawn = [(report.file, report.curves, report.alerts) for report in reports if report.curves]
    try:
        path.write_text(render(drawn, _summary_line(reports, thresholds)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}") from None


def _as_json(reports: list[Report], thresholds: Thresholds) -> dict[str, Any]:
    runs = [_run_as_json(report) for report in reports]
    return {"runs": runs, "summary": {**_summary(reports), "thresholds": dict(thresholds)}}


def _run_as_json(report: Report) -> dict[str, Any]:
    alerts = [
        {
            "alert": episode.alert,
            "severity": episode.severity,
            "row": episode.row,
            "step": episode.step,
            "symptoms": episode.symptoms,
        }
        for episode in report.alerts
    ]
    return {
        "file": report.file,
        "framework": report.framework,
        "rows": report.num_rows,
        "alerts": alerts,
        "warnings": [*report.warnings, *filter(None, [report.error])],
    }


def _summary(reports: list[Report]) -> dict[str, Any]:
    """``pages_per_100_rows`` is None without a row."""
    num_rows = sum(report.num_rows for report in reports)
    severities = [alert.severity for report in reports for alert in report.alerts]
    num_pages = severities.count("critical")
    paged = sum(any(a.severity == "critical" for a in r.alerts) for r in reports)
    return {
        "num_runs": len(reports),
        "num_unreadable": sum(report.error is not None for report in reports),
        "num_rows": num_rows,
        "num_pages": num_pages,
        "num_warnings": severities.count("warning"),
        "num_runs_paged": paged,
        "pages_per_100_rows": 100 * num_pages / num_rows if num_rows else None,
    }


def _print(reports: list[Report], thresholds: Thresholds) -> None:
    """One line a run, one line under it for each page and warning; infos are in the JSON."""
    for report in reports:
        if report.error is None:
            framework = report.framework or "no known keys"
            print(f"{report.file}: {framework}, {report.num_rows:,} rows, {_verdict(report)}")
            for line in (*_alert_lines(report.alerts), *report.warnings[:3]):
                print(f"  {line}")
    print(_summary_line(reports, thresholds))


def _summary_line(reports: list[Report], thresholds: Thresholds) -> str:
    summary = _summary(reports)
    per_100 = summary["pages_per_100_rows"]
    rate = "" if per_100 is None else f" ({per_100:.3g} per 100)"
    own = f"; {len(thresholds)} thresholds of yours" if thresholds else ""
    return (
        f"{summary['num_runs']} runs, {summary['num_rows']:,} rows: {summary['num_pages']} pages"
        f"{rate} in {summary['num_runs_paged']} runs, {summary['num_warnings']} warnings{own}"
    )


def _verdict(report: Report) -> str:
    pages = [alert for alert in report.alerts if alert.severity == "critical"]
    return f"would have paged at step {pages[0].step}" if pages else "no page"


def _alert_lines(alerts: Iterable[Episode]) -> Iterator[str]:
    for alert in alerts:
        if alert.severity != "info":
            onsets = ", ".join(f"{name} since {step}" for name, step in alert.symptoms.items())
            what = f"{alert.severity:8} step {alert.step} (row {alert.row})  {alert.alert}"
            yield f"{what}  {onsets}".rstrip()


def _with_progress(files: list[str]) -> Iterable[str]:
    """A bar for people who wait for many files; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    is_shown = console.is_terminal and len(files) > 3
    return track(files, "replaying", console=console, transient=True, disable=not is_shown)
