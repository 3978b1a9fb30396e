"""``attach --check``: what would work for each process, and the remedy where it would not."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from dfx_agent.attach import passive, preflight
from dfx_agent.attach.discover import Member
from dfx_agent.attach.preflight import Preflight, Route
from dfx_agent.base.errors import AttachError
from dfx_agent.commands.attach.passive_job import sees


def print_table(members: Iterable[Member], method: str) -> int:
    """0 when a guest could be brought into one process at least, 2 when into none.

    Looking from outside always works: it decides only when it is the ``method`` asked for.
    """
    table = Table(box=None, pad_edge=False)
    for heading in ("PROCESS", "PYTHON", "WORKS", "BY", "BECAUSE", "REMEDY"):
        table.add_column(heading, overflow="fold")
    can_any = method == passive.METHOD
    for member in members:
        check = preflight.check(member.pid)
        route_name = _route_name(check, method)
        can_any = can_any or route_name is not None
        seen, remedy = sees(passive.find_logs(member.process))
        process = str(member)
        for row in (*_rows(check, route_name, method), ("yes", passive.METHOD, seen, remedy)):
            table.add_row(process, check.python or "-", *row)
            process = ""
    Console(markup=False).print(table)
    return 0 if can_any else AttachError.exit_code


def _route_name(check: Preflight, method: str) -> str | None:
    try:
        return None if method == passive.METHOD else check.route(method)
    except AttachError:
        return None


def _rows(
    check: Preflight, route_name: str | None, method: str
) -> Iterable[tuple[str, str, str, str]]:
    if method == passive.METHOD:
        return
    if route_name is not None:
        yield "yes", route_name, "", ""
        return
    reasons: set[str] = set()
    for route in check.routes:
        if not route.works and route.reason not in reasons:
            reasons.add(route.reason)
            yield "no", _names(check.routes, route.reason), route.reason, route.remedy


def _names(routes: Iterable[Route], reason: str) -> str:
    return ", ".join(route.name for route in routes if route.reason == reason)
