"""The history of runs in a serving agent or hub: it is written, and the page and the API read it.

`/api/v1/history` lists stored runs, `/api/v1/history/RUN` has one run with its incidents, and
`/api/v1/compare?a=RUN&b=RUN` compares two. The pages `/history` and `/history/RUN` show the same to
people. After a restart, scalars and the heatmap have the steps that an earlier agent stored.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from dfx_agent.agent.config import Config
from dfx_agent.catalogue.native import load as native_keys
from dfx_agent.exporters.history import folder
from dfx_agent.exporters.history.schema import HistoryFileError
from dfx_agent.snapshot import (
    Alerts,
    ScalarHistory,
    SignalHistory,
    Snapshot,
    Source,
    StepRow,
    TimelineRow,
)
from dfx_agent.snapshot.document import Document

if TYPE_CHECKING:
    from dfx_agent.commands.compare.comparison import Comparison
    from dfx_agent.exporters.history.recording import HistoryThread
    from dfx_agent.exporters.history.stored_run import StoredRun

PATH, PAGE, COMPARE = "/api/v1/history", "/history", "/api/v1/compare"
_HEADERS = {"Cache-Control": "no-store"}
_IS_OFF = "History is off: see the setting history_directory."
_BYTES_PER_MIB = 1 << 20
# steps that an opened page gets: as many as its heatmap shows, fewer of a large job
_MOST_STEPS, _MOST_CELLS = 500, 50_000


class RecordedSource(Source, Protocol):
    """An agent or a hub: what renderers read, and the closed steps."""

    def closed_steps(self, run: str, after_step: int | None) -> Sequence[StepRow]:
        """Stored closed steps of every role, sorted by begin. KeyError on an unknown run."""

    def step_scalars(
        self, run: str, after_step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, Mapping[str, float]]:
        """Step -> native key -> mean over ranks. KeyError on an unknown run."""

    def first_scalar_step(self, run: str) -> int:
        """The earliest step that any of its scalars begins with; 0 without one."""


class StoredHistory:
    """Writes the history of all runs of an agent or a hub, unless the settings disable it."""

    def __init__(
        self,
        config: Config,
        agent: RecordedSource,
        alerts: Callable[[], Alerts],
        report: Callable[[str], None],
        only_node: str | None = None,
    ) -> None:
        """``only_node``: the only node whose processes a hub can read, "" for none.

        ConfigError for a folder that must not be used.
        """
        self._directory = folder.directory_of(config.history_directory)
        self._limits = config.history_days, config.history_mib * _BYTES_PER_MIB
        self._agent, self._alerts, self._report = agent, alerts, report
        self._only_node = only_node
        self._thread: HistoryThread | None = None
        self.source = SourceWithHistory(agent, self._path_of)

    def start(self) -> None:
        if self._directory is None:
            return
        from dfx_agent.exporters.history.job_facts import describe
        from dfx_agent.exporters.history.recording import HistoryThread

        describe_run = partial(describe, only_node=self._only_node)
        self._thread = HistoryThread(
            self._agent, self._alerts, describe_run, self._report, self._directory, self._limits
        )
        self._thread.start()

    def stop(self) -> bool:
        """Write a last time. Returns whether that was done in time."""
        return self._thread is None or self._thread.stop()

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._list),
            Route(PATH + "/{run:path}", self._one),
            Route(COMPARE, self._compare),
            Route(PAGE, self._list_page),
            Route(PAGE + "/{run:path}", self._run_page),
        ]

    def _path_of(self, run: str) -> str | None:
        return None if self._thread is None else self._thread.path_of(run)

    def _list(self, _request: Request) -> Response:
        from dfx_agent.exporters.history.stored_run import StoredRun, runs_in

        rows, problems = ([], []) if self._directory is None else runs_in(self._directory)
        document = Document[tuple[StoredRun, ...]](tuple[StoredRun, ...])
        headers = _HEADERS | {"Dfx-Unreadable-Files": str(len(problems))}
        body = document.dumped(tuple(map(_without_details, rows)))
        return Response(body, headers=headers, media_type="application/json")

    def _one(self, request: Request) -> Response:
        from dfx_agent.exporters.history.stored_run import StoredRun, load, path_of

        name, directory = request.path_params["run"], self._directory
        path = None if directory is None else path_of(name, directory)
        if path is None:
            detail = f"no stored run {name!r}; {PATH} lists the runs"
            return JSONResponse({"detail": detail}, 404)
        try:
            body = Document[StoredRun](StoredRun).dumped(load(path))
        except HistoryFileError as error:
            return JSONResponse({"detail": str(error)}, 500)
        return Response(body, headers=_HEADERS, media_type="application/json")

    def _compare(self, request: Request) -> Response:
        from dfx_agent.commands.compare.comparison import Comparison

        try:
            body = Document[Comparison](Comparison).dumped(self._compared(*_asked(request)))
        except HistoryFileError as error:
            return JSONResponse({"detail": str(error)}, 404)
        return Response(body, headers=_HEADERS, media_type="application/json")

    def _compared(self, a: str, b: str) -> Comparison:
        """HistoryFileError for a run that is not stored or cannot be read."""
        from dfx_agent.commands.compare import compare_files
        from dfx_agent.exporters.history.stored_run import path_of

        paths = [path_of(name, self._directory) if self._directory else None for name in (a, b)]
        if None in paths:
            unknown = (a, b)[paths.index(None)]
            raise HistoryFileError(f"no stored run {unknown!r}; {PATH} lists the runs")
        return compare_files(*filter(None, paths))

    def _compared_lines(self, a: str, b: str) -> list[str]:
        """What `dfx-agent compare` prints; nothing if two runs were not asked for."""
        from dfx_agent.commands.compare.comparison_text import text_lines

        if not a or not b:
            return []
        try:
            return text_lines(self._compared(a, b), sys.maxsize)
        except HistoryFileError as error:
            return [str(error)]

    def _list_page(self, request: Request) -> Response:
        from dfx_agent.commands.history.history_page import list_page
        from dfx_agent.exporters.history.stored_run import runs_in

        if self._directory is None:
            return HTMLResponse(list_page((), [_IS_OFF], time.time()), headers=_HEADERS)
        runs, problems = runs_in(self._directory)
        asked = _asked(request)
        lines = self._compared_lines(*asked)
        latest = (runs[1].id, runs[0].id) if len(runs) > 1 else ("", "")
        page = list_page(runs, problems, time.time(), lines, asked if lines else latest)
        return HTMLResponse(page, headers=_HEADERS)

    def _run_page(self, request: Request) -> Response:
        from dfx_agent.commands.history.history_page import run_page
        from dfx_agent.exporters.history.stored_run import load, path_of

        name, directory = request.path_params["run"], self._directory
        path = None if directory is None else path_of(name, directory)
        if path is None:
            return RedirectResponse(PAGE)
        try:
            return HTMLResponse(run_page(load(path), time.time()), headers=_HEADERS)
        except HistoryFileError as error:
            return PlainTextResponse(str(error), 500)


def _asked(request: Request) -> tuple[str, str]:
    """The two runs to compare; "" for one that is not named."""
    return request.query_params.get("a", ""), request.query_params.get("b", "")


def _without_details(run: StoredRun) -> StoredRun:
    """For a list: evidence and alerts of each run are asked for separately."""
    return replace(run, alerts=())


class SourceWithHistory:
    """What renderers read of the agent, with what an earlier agent stored."""

    def __init__(self, agent: RecordedSource, path_of: Callable[[str], str | None]) -> None:
        self._agent, self._path_of = agent, path_of

    def snapshot(self) -> Snapshot:
        return self._agent.snapshot()

    def timeline(
        self, run: str, num_steps: int, ranks: Collection[tuple[str, str]] = ()
    ) -> tuple[TimelineRow, ...]:
        return self._agent.timeline(run, num_steps, ranks)

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        return self._agent.signal_history(run, num_steps)

    def reset_signals(self, run: str) -> None:
        self._agent.reset_signals(run)

    def earlier_steps(self, run: str, after: int) -> Sequence[StepRow]:
        """Steps after ``after`` that are not in the snapshot. KeyError on an unknown run."""
        from dfx_agent.exporters.history.stored_run import steps_of

        shown = {r.run: r for r in self._agent.snapshot().runs}[run].steps
        first = min((row.begin_seconds for row in shown), default=math.inf)
        held = [row for row in self._agent.closed_steps(run, after) if row.begin_seconds < first]
        path = self._path_of(run)
        if path is None or after >= 0:  # the page has the earlier steps
            return held
        first = min((row.begin_seconds for row in held), default=first)
        num_cells = max((len(row.cells) for row in shown), default=1)
        num_steps = min(_MOST_STEPS, max(1, _MOST_CELLS // max(1, num_cells)))
        try:
            return [*steps_of(path, first, num_steps), *held]
        except HistoryFileError:
            return held

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        """Histories with all stored steps. KeyError on an unknown run."""
        live = self._agent.scalar_history(run, keys)
        path = self._path_of(run)
        return live if path is None else self._joined(run, path, live)

    def _joined(
        self, run: str, path: str, live: Iterable[ScalarHistory]
    ) -> Iterator[ScalarHistory]:
        from dfx_agent.exporters.history.stored_run import scalars_of

        first = self._agent.first_scalar_step(run)
        try:
            stored = scalars_of(path, first) if first > 0 else {}
        except HistoryFileError:
            stored = {}
        framework = next((r.framework for r in self._agent.snapshot().runs if r.run == run), "")
        for row in live:  # one at a time: all of a long run are 30 MiB
            steps, values = stored.pop(row.key, ((), ()))
            native = native_keys(framework).find(row.key) if steps else None
            scale = 1.0 if native is None else native.scale
            before = tuple(value * scale for value in values)
            yield replace(row, steps=(*steps, *row.steps), values=(*before, *row.values))
