"""``attach --check``: what would work for each process, and the remedy where it would not."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from dfx_agent.attach.preflight import Preflight, Route
from dfx_agent.errors import AttachError


def print_table(checks: Iterable[tuple[str, Preflight]], method: str) -> int:
    """0 when something would work for one process at least, 2 when nothing would."""
    table = Table(box=None, pad_edge=False)
    for heading in ("PROCESS", "PYTHON", "WORKS", "BY", "BECAUSE", "REMEDY"):
        table.add_column(heading, overflow="fold")
    can_any = False
    for process, check in checks:
        try:
            taken = check.route(method)
        except AttachError:
            taken = None
        can_any = can_any or taken is not None
        for row in _rows(check, taken):
            table.add_row(process, check.python or "-", *row)
            process = ""  # noqa: PLW2901 (said once)
    Console().print(table)
    return 0 if can_any else AttachError.exit_code


def _rows(check: Preflight, taken: str | None) -> Iterable[tuple[str, str, str, str]]:
    if taken is not None:
        yield "yes", taken, "", ""
        return
    said: set[str] = set()
    for route in check.routes:
        if not route.works and route.reason not in said:
            said.add(route.reason)
            yield "no", _names(check.routes, route.reason), route.reason, route.remedy


def _names(routes: Iterable[Route], reason: str) -> str:
    return ", ".join(route.name for route in routes if route.reason == reason)
