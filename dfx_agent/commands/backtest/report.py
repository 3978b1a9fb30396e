"""The results of a backtest as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dfx_agent.commands.backtest.episodes import Episode
from dfx_agent.commands.backtest.found_logs import BY_NAME
from dfx_agent.commands.backtest.replay import Report, Thresholds

PassedOver = Sequence[tuple[str, str]]

_MAX_PASSED_OVER_SHOWN = 20


def as_json(
    reports: list[Report], thresholds: Thresholds, passed_over: PassedOver = ()
) -> dict[str, Any]:
    return {
        "runs": [_run_as_json(report) for report in reports],
        "summary": {
            **totals(reports),
            "passed_over": [{"file": file, "reason": why} for file, why in passed_over],
            "thresholds": dict(thresholds),
        },
    }


def _run_as_json(report: Report) -> dict[str, Any]:
    coverage, num_rows_of = report.coverage, report.coverage.tail.num_rows_of
    return {
        "file": report.file,
        "run": report.name,
        "framework": report.framework,
        "rows": report.num_rows,
        "rows_judged": coverage.num_rows_judged,
        "signals": {
            signal: {"keys": keys, "rows": num_rows_of.get(signal, 0)}
            for signal, keys in coverage.keys.items()
        },
        "missing_families": coverage.missing_families,
        "can_page_by_vote": coverage.can_page,
        "alerts": [_episode_as_json(episode) for episode in report.alerts],
        "restarts": [
            {"row": row, "step_before": before, "step": step}
            for row, before, step in coverage.restarts
        ],
        "audit": report.audit,
        "is_cut": report.is_cut,
        "num_left_out": report.num_left_out,
        "warnings": [*report.warnings, *filter(None, [report.error])],
    }


def _episode_as_json(episode: Episode) -> dict[str, Any]:
    """``row`` and ``last_row`` are the first and the last row on which the alert fired."""
    return {
        "alert": episode.alert,
        "severity": episode.severity,
        "row": episode.row,
        "step": episode.step,
        "last_row": episode.last_row,
        "last_step": episode.last_step,
        "symptoms": episode.symptoms,
        "onset_step": episode.onset_step,
        "sentence": episode.sentence,
        "action": episode.action,
        "runbook": _runbook(episode),
    }


def _runbook(episode: Episode) -> str:
    return f"docs/runbook.md#{episode.alert.lower()}"


def totals(reports: list[Report]) -> dict[str, Any]:
    """``pages_per_100_rows`` is None without a row."""
    num_rows = sum(report.num_rows for report in reports)
    severities = [alert.severity for report in reports for alert in report.alerts]
    num_pages = severities.count("critical")
    paged = sum(any(a.severity == "critical" for a in r.alerts) for r in reports)
    read = [report for report in reports if report.error is None]
    return {
        "num_runs": len(reports),
        "num_unreadable": len(reports) - len(read),
        "num_runs_not_judged": sum(not report.is_judged for report in read),
        "num_restarts": sum(len(report.coverage.restarts) for report in read),
        "num_rows": num_rows,
        "num_rows_judged": sum(report.coverage.num_rows_judged for report in reports),
        "num_pages": num_pages,
        "num_warnings": severities.count("warning"),
        "num_runs_paged": paged,
        "pages_per_100_rows": 100 * num_pages / num_rows if num_rows else None,
    }


def lines(
    reports: list[Report], thresholds: Thresholds, passed_over: PassedOver = ()
) -> Iterator[str]:
    """Each run with what it was judged from, its pages and warnings; infos are in the JSON."""
    for report in reports:
        if report.error is None:
            yield f"{report.title}: {_judged_from(report)}: {verdict(report)}"
            audit = (f"audit: {line}" for line in report.audit)
            details = (
                *_alert_lines(report.alerts), *_restarts(report), *audit, *_missing(report),
                *report.warnings,
            )  # fmt: skip
            yield from (f"  {line}" for line in details)
    yield from _passed_over_lines(passed_over)
    yield summary_line(reports, thresholds)


def _passed_over_lines(passed_over: PassedOver) -> Iterator[str]:
    """Lines about files without a log: opened files by name, other files counted by kind."""
    opened = [(file, why) for file, why in passed_over if not why.endswith(BY_NAME)]
    for file, why in opened[:_MAX_PASSED_OVER_SHOWN]:
        yield f"passed over: {file}: {why.removeprefix(f'{file} ')}"
    if len(opened) > _MAX_PASSED_OVER_SHOWN:
        yield f"passed over: {len(opened) - _MAX_PASSED_OVER_SHOWN:,} more (--json names them)"
    kinds = Counter(why.removesuffix(BY_NAME).strip() for _, why in passed_over
                    if why.endswith(BY_NAME))  # fmt: skip
    if kinds:
        counts = ", ".join(f"{num:,} {kind}" for kind, num in sorted(kinds.items()))
        yield f"passed over, not opened: {counts} (--json names them)"


def verdict(report: Report) -> str:
    pages = [alert for alert in report.alerts if alert.severity == "critical"]
    if pages:
        return f"would have paged at step {pages[0].step}"
    if not report.is_judged:
        return f"NOT JUDGED: {report.coverage.why_not_judged}"
    if not report.coverage.can_page:
        found = ", ".join(report.coverage.families) or "the loss"
        return f"no page, but {found} cannot page by vote: only one signal's collapse would have"
    return "no page"


def summary_line(reports: list[Report], thresholds: Thresholds) -> str:
    summary = totals(reports)
    per_100 = summary["pages_per_100_rows"]
    rate = "" if per_100 is None else f" ({per_100:.3g} per 100)"
    own = f"; {len(thresholds)} thresholds of yours" if thresholds else ""
    few = summary["num_runs_not_judged"]
    not_judged = f"; {few} not judged" if few else ""
    return (
        f"{_counted(summary['num_runs'], 'run')}, {_counted(summary['num_rows'], 'row')}: "
        f"{_counted(summary['num_pages'], 'page')}{rate} in "
        f"{_counted(summary['num_runs_paged'], 'run')}, "
        f"{_counted(summary['num_warnings'], 'warning')}{not_judged}{own}"
    )


def _counted(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def _judged_from(report: Report) -> str:
    coverage = report.coverage
    found = (f"{signal} ({', '.join(keys)})" for signal, keys in coverage.keys.items())
    return (
        f"{report.framework or 'no framework recognised'}, {_counted(report.num_rows, 'row')}, "
        f"{coverage.num_rows_judged:,} judged by {', '.join(found) or 'no signal'}"
    )


def _missing(report: Report) -> Iterator[str]:
    if report.coverage.missing_families and report.coverage.has_numbers:
        missing = ", ".join(report.coverage.missing_families)
        yield f"no signal of {missing} was found; name its key: --map NAME=KEY"


def _restarts(report: Report) -> Iterator[str]:
    for row, before, step in report.coverage.restarts:
        yield f"row {row}: the step falls from {before} to {step}; a new attempt begins"


def _alert_lines(alerts: Iterable[Episode]) -> Iterator[str]:
    """What happened, then what to do, each on its own line below the alert."""
    for alert in alerts:
        if alert.severity != "info":
            rows = f"step {alert.step} (row {alert.row} to {alert.last_row})"
            yield f"{alert.severity:8} {rows}  {alert.alert}"
            yield f"         {alert.sentence}"
            yield f"         {alert.action} {_runbook(alert)}"
