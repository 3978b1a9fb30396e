"""The agent's signals and alerts over logs of finished runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from dfx_agent.agent import config as configuration
from dfx_agent.base.errors import UsageError
from dfx_agent.commands.backtest import report as shown
from dfx_agent.commands.backtest.error_rates import labels_of, markdown, rates_as_json
from dfx_agent.commands.backtest.found_logs import Found, find_logs
from dfx_agent.commands.backtest.plot import render
from dfx_agent.commands.backtest.replay import Report, Thresholds, replay, replay_log, signal_rows
from dfx_agent.node.logs.key_map import KeyMap
from dfx_agent.node.logs.key_map import parse as parse_map
from dfx_agent.node.logs.reader import AUTO, READERS, open_logs
from dfx_agent.node.logs.run import NotALogError, UnreadableLogError

__all__ = ["replay", "signal_rows"]

HELP = "replay logs of finished runs: when would the alerts have come?"
EXAMPLE = """dfx-agent backtest runs/*.csv.gz --json --fail-on critical
  dfx-agent backtest metrics.jsonl --map reward=env/all/reward --map step=batch
  dfx-agent backtest DIR --summary

Every run says which signals were found, from which keys, and how many rows could be judged. Where
nothing could be judged (no signal that can page, too few rows, signals that never
change), or lines were damaged and left out, the exit code is 1.

Lines that begin with "audit" are never alerts: the reward rises and held-out scores or a part of it
do not, or responses became longer. People should look at samples there.

--summary counts pages against labels: a CSV file (LABELS.csv or INVENTORY.csv in the folder or
above it, or --labels FILE) with the columns path or name, kind (healthy, collapse, ambiguous),
onset_row (from 0) and, if you like, sample (in, out).

Thresholds are those of the settings (dfx.yaml or --config: thresholds: {KEY: NUMBER}, and
DFX_THRESHOLDS), as for an agent that serves; `dfx-agent assets --list` shows every KEY."""

_FAIL_ON = {"critical": ("critical",), "warning": ("critical", "warning")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log, or a folder of logs")
    add_format_arguments(parser)
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")
    parser.add_argument("--plot", metavar="FILE.html", help="draw signals, bands and alerts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--summary", action="store_true", help="error rates against labels")
    parser.add_argument("--labels", metavar="FILE.csv", help="what is known of the runs")
    parser.add_argument(
        "--fail-on", choices=tuple(_FAIL_ON), help="exit with 1 if there was such an alert"
    )


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """How a log is to be read; `watch` takes the same."""
    parser.add_argument(
        "--format",
        default=AUTO,
        choices=(AUTO, *READERS),
        metavar="FORMAT",
        help=f"how the logs are written: {', '.join((AUTO, *READERS))}",
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="NAME=KEY",
        help="the log's key for a signal or for the step, for example reward=train/score; repeat",
    )


def key_map_of(args: argparse.Namespace) -> KeyMap:
    """UsageError for a --map that names no signal."""
    try:
        return parse_map(args.map)
    except ValueError as error:
        raise UsageError(str(error)) from None


def execute(args: argparse.Namespace) -> int:
    """0, or 1 when a file cannot be read or judged whole, or --fail-on found what it looks for."""
    if args.plot:
        _check_writable(Path(args.plot))
    thresholds, key_map = _thresholds(args.config), key_map_of(args)
    labels = labels_of(args.files, args.labels) if args.summary else None
    found = find_logs(args.files, labels=labels.path if labels else None)
    reports: list[Report] = []
    for path in _with_progress(found.logs):
        reports += _reports(path, args, found, key_map, thresholds)
    for report in reports:
        if report.error:
            print(f"dfx-agent: {report.error}", file=sys.stderr)
    if args.plot:
        _draw(reports, thresholds, Path(args.plot))
    if args.json:
        result = shown.as_json(reports, thresholds, found.passed_over)
        if labels:
            result["summary"]["rates"] = rates_as_json(reports, labels)
        print(json.dumps(result, allow_nan=False))
    elif labels:
        print(markdown(reports, labels), end="")
    else:
        for line in shown.lines(reports, thresholds, found.passed_over):
            print(line)
    return _exit_code(reports, _FAIL_ON.get(args.fail_on, ()))


def _exit_code(reports: list[Report], failing: tuple[str, ...]) -> int:
    """Print runs that could not be judged on stderr too: they must not pass for clean runs."""
    not_judged = [report for report in reports if report.error is None and not report.is_judged]
    for report in not_judged:
        why = report.coverage.why_not_judged
        print(f"dfx-agent: {report.title} is not judged: {why}", file=sys.stderr)
    cut = [report for report in reports if report.is_cut]
    for report in cut:
        rows = f"the first {report.num_rows:,} rows are judged, the rest cannot be read"
        print(f"dfx-agent: {report.title} is damaged: {rows}", file=sys.stderr)
    damaged = [report for report in reports if report.num_left_out]
    for report in damaged:
        print(
            f"dfx-agent: {report.title} is damaged: lines or rows that were left out: "
            f"{report.num_left_out:,}",
            file=sys.stderr,
        )
    if not reports:
        print("dfx-agent: no log was found", file=sys.stderr)
    is_found = any(alert.severity in failing for report in reports for alert in report.alerts)
    has_error = any(report.error for report in reports)
    return int(is_found or has_error or bool(not_judged or cut or damaged) or not reports)


def _reports(
    path: Path, args: argparse.Namespace, found: Found, key_map: KeyMap, thresholds: Thresholds
) -> list[Report]:
    """Of each run of a file; what is no log is passed over unless the user named it."""
    is_named, reports = path in found.named, []
    try:
        for log in open_logs(path, args.format, key_map):
            report = replay_log(log, thresholds, is_drawn=args.plot is not None)
            if is_named or report.framework or report.coverage.keys:
                reports.append(report)
            else:
                found.passed_over.append((report.title, "no key of it is known; --map names keys"))
    except NotALogError as error:
        if is_named:
            reports.append(Report(str(path), error=str(error)))
        else:
            found.passed_over.append((str(path), str(error)))
    except UnreadableLogError as error:
        reports.append(Report(str(path), error=str(error)))
    return reports


def _thresholds(config_file: str | None) -> Thresholds:
    """Of the settings; nothing else of them matters to a log."""
    names = os.environ.keys() & {"DFX_THRESHOLDS"}
    environment = {name: os.environ[name] for name in names}
    return dict(configuration.load({}, environment, config_file).thresholds)


def _check_writable(path: Path) -> None:
    """Before minutes of work."""
    if not path.parent.is_dir() or path.is_dir():
        raise UsageError(f"--plot {path}: name a file in a folder that exists")


def _draw(reports: list[Report], thresholds: Thresholds, path: Path) -> None:
    drawn = [(report.title, report.curves, report.alerts) for report in reports if report.curves]
    try:
        path.write_text(render(drawn, shown.summary_line(reports, thresholds)), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {path}: {error.strerror}") from None


def _with_progress(files: list[Path]) -> Iterable[Path]:
    """A bar for people who wait for many files; nothing in a pipe."""
    if len(files) <= 3 or not sys.stderr.isatty():
        return files  # a bar that is off still prints an empty line with the oldest rich
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if not console.is_terminal:
        return files
    return track(files, "replaying", console=console, transient=True)
