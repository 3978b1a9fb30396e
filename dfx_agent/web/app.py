"""Snapshot in, HTTP out: the page, ``/api/v1``, ``/metrics`` and the probes.

``create_app`` lays out the routes.
JSON has no NaN: a float that is not finite travels as the string "NaN", "Infinity" or "-Infinity";
``null`` means absent.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.routing import BaseRoute

from dfx_agent import __version__
from dfx_agent.base.errors import BlindError
from dfx_agent.hub.access import SECURITY_HEADERS, Access, Guard
from dfx_agent.snapshot import (
    Alerts,
    AlertSource,
    MemoryHistory,
    RankRow,
    RunRow,
    RunVerdicts,
    ScalarHistory,
    SignalHistory,
    Snapshot,
    Source,
    StepRow,
    TimelineRow,
)
from dfx_agent.snapshot.document import Document
from dfx_agent.web import runbook
from dfx_agent.web.compression import Compression
from dfx_agent.web.heatmap import Heatmap, Measure, heatmap
from dfx_agent.web.stream import ViewStream
from dfx_agent.web.targets import TargetGroup, target_groups
from dfx_agent.web.timeline import MAX_RANKS, TimelineQuery, ranks_named, timeline_page
from dfx_agent.web.view import FullRows, Look, as_they_are
from dfx_agent.web.visible_ranks import key_of

RenderMetrics = Callable[[str | None], tuple[bytes, str]]
# (run, step) -> steps after it that are older than those of the snapshot; KeyError: unknown run
EarlierSteps = Callable[[str, int], Sequence[StepRow]]
# run -> host memory of its ranks over their steps; KeyError: unknown run
MemoryOf = Callable[[str], tuple[MemoryHistory, ...]]

STATIC = Path(__file__).parent / "static"
MAX_OPENED_RANKS = 16
NUM_WORKER_THREADS = 4
PLOTLY_MAX_AGE_SECONDS = 7 * 24 * 3600
_HEADERS = {"Cache-Control": "no-store", "Vary": "Accept"}  # for generated content

# A job's OTEL_* environment is meant for the job: fastapi must not start exporting because of it.
_NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}


def create_app(
    source: Source,
    render_metrics: RenderMetrics,
    access: Access | None = None,
    alerts: AlertSource | None = None,
    routes: Iterable[BaseRoute] = (),
    full_rows: FullRows = as_they_are,
    earlier_steps: EarlierSteps = lambda _run, _after: (),
    memory_of: MemoryOf = lambda _run: (),
) -> FastAPI:
    """The whole web face of one agent; without ``access`` everybody may do everything.

    ``render_metrics`` takes the Accept header and returns (body, content type), in a worker thread.
    ``routes`` go before ours. ``full_rows`` completes the rows of ranks that are shown, and
    ``earlier_steps`` what a snapshot does not hold any more; a hub has no ``memory_of`` ranks.
    ``app.state.stream`` is the ``ViewStream``, to be closed before the server stops.
    """
    app = _guarded_app(access)
    encode = Document[Snapshot](Snapshot).dumped
    app.state.stream = ViewStream(source, full_rows)
    app.router.routes.extend(routes)
    app.include_router(_api(source, encode, app.state.stream), prefix="/api/v1", tags=["runs"])
    for api in (_verdicts_api, _timeline_api, _signals_api):
        app.include_router(api(source), prefix="/api/v1", tags=["runs"])
    app.include_router(_steps_api(source, earlier_steps), prefix="/api/v1", tags=["runs"])
    app.include_router(_memory_api(memory_of), prefix="/api/v1", tags=["runs"])
    app.include_router(_ranks_api(source, full_rows), prefix="/api/v1", tags=["runs"])
    app.include_router(_engines_api(source), prefix="/api/v1", tags=["engines"])
    app.include_router(_alerts_api(alerts), prefix="/api/v1", tags=["alerts"])
    app.include_router(_probes(source, render_metrics))
    _add_page(app)
    return app


def _guarded_app(access: Access | None) -> FastAPI:
    """An app without routes, with what every request passes."""
    app = FastAPI(
        title="dfx-agent",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=_few_threads,
        telemetry=_NO_TELEMETRY,
    )
    app.add_middleware(Compression)
    app.add_middleware(Guard, access=access)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(BlindError, _blind)
    app.add_exception_handler(Exception, _internal_error)
    return app


@asynccontextmanager
async def _few_threads(_app: FastAPI) -> AsyncIterator[None]:
    # 40 worker threads, the default, would each bring a malloc arena to a small agent.
    current_default_thread_limiter().total_tokens = NUM_WORKER_THREADS
    yield


_Opened = Annotated[list[str] | None, Query(max_length=MAX_OPENED_RANKS)]
_UNKNOWN_RUN: Any = {404: {"description": "No such run"}}
_FOREIGN: Any = {403: {"description": "Asked for by a page of another site"}}


def _api(source: Source, encode: Callable[[Snapshot], bytes], stream: ViewStream) -> APIRouter:
    router = APIRouter()
    encode_history = Document[ScalarHistory](ScalarHistory).dumped

    @router.get("/snapshot", response_model=Snapshot)
    def snapshot(steps: Annotated[int | None, Query(ge=0)] = None) -> Response:
        """The state of the agent now; with `steps` at most that many closed steps of each run."""
        return _answer(encode(_with_steps(source.snapshot(), steps)))

    @router.get("/stream", response_class=StreamingResponse)
    async def stream_views(run: str = "", rank: _Opened = None) -> Response:
        """Server-sent events of one run: a `whole` view first and after a gap, then a `patch` each.

        Without `run` the latest live run is sent. For a large job only some ranks are sent in full;
        those of `rank` (`ROLE/RANK`) always are.
        """
        look = Look(run, ranks_named(rank or ()))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream.events(look), 200, headers, media_type="text/event-stream")

    @router.get(
        "/runs/{run:path}/scalars", response_model=tuple[ScalarHistory, ...], responses=_UNKNOWN_RUN
    )
    def scalars(run: str, key: Annotated[list[str] | None, Query()] = None) -> Response:
        """History of the requested native keys; of all keys if none is named."""
        with _known_run(run):
            rows = source.scalar_history(run, key or ())
        # one key at a time: all points of a long run take 20 MiB
        return StreamingResponse(
            _joined(map(encode_history, rows)), headers=_HEADERS, media_type="application/json"
        )

    return router


def _with_steps(snapshot: Snapshot, num_steps: int | None) -> Snapshot:
    if num_steps is None:
        return snapshot
    runs = (
        replace(run, steps=run.steps[len(run.steps) - num_steps :])
        if len(run.steps) > num_steps
        else run
        for run in snapshot.runs
    )
    return replace(snapshot, runs=tuple(runs))


def _verdicts_api(source: Source) -> APIRouter:
    router = APIRouter()
    encode = Document[tuple[RunVerdicts, ...]](tuple[RunVerdicts, ...]).dumped

    @router.get("/verdicts", response_model=tuple[RunVerdicts, ...])
    def verdicts() -> Response:
        """Conclusions about each run, without the rows of its ranks, so it is short for any job."""
        snapshot = source.snapshot()
        return _answer(encode((*map(RunVerdicts.from_row, snapshot.runs), *snapshot.finished)))

    return router


def _ranks_api(source: Source, full_rows: FullRows) -> APIRouter:
    router = APIRouter()
    encode = Document[tuple[RankRow, ...]](tuple[RankRow, ...]).dumped

    @router.get(
        "/runs/{run:path}/ranks", response_model=tuple[RankRow, ...], responses=_UNKNOWN_RUN
    )
    def ranks(run: str, rank: Annotated[list[str], Query(max_length=MAX_RANKS)]) -> Response:
        """All that is known of the ranks `ROLE/RANK` that are asked for.

        A hub requests it from their nodes; of one that does not answer it has less.
        """
        found = next((row for row in source.snapshot().runs if row.run == run), None)
        if found is None:
            raise HTTPException(404, f"no run {run}")
        asked = set(ranks_named(rank))
        rows = full_rows(run, [row for row in found.ranks if key_of(row) in asked])
        return _answer(encode(tuple(rows)))

    return router


def _timeline_api(source: Source) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/runs/{run:path}/timeline", response_model=tuple[TimelineRow, ...], responses=_UNKNOWN_RUN
    )
    def timeline(request: Request, run: str, window: Annotated[TimelineQuery, Query()]) -> Response:
        """Latest steps of each rank, or of `rank`, as slices of stage, wait and idle time.

        An answer ends at about 1 MiB: a `Link` header with `rel="next"` then leads to the rest.
        """
        with _known_run(run):
            body, last = timeline_page(source, run, window.window())
        answer = _answer(body)
        if last is not None:
            following = request.url.include_query_params(after="/".join(last)).query
            answer.headers["Link"] = f'<?{following}>; rel="next"'
        return answer

    return router


def _signals_api(source: Source) -> APIRouter:
    router = APIRouter()
    encode_signals = Document[SignalHistory](SignalHistory).dumped

    @router.get("/runs/{run:path}/signals", response_model=SignalHistory, responses=_UNKNOWN_RUN)
    def signals(run: str, steps: Annotated[int, Query(ge=1, le=256)] = 120) -> Response:
        """Training health over the latest steps: signals with their baselines, and symptoms."""
        with _known_run(run):
            history = source.signal_history(run, steps)
        return _answer(encode_signals(history))

    @router.post(
        "/runs/{run:path}/signals/reset", status_code=204, responses=_UNKNOWN_RUN | _FOREIGN
    )
    def reset_signals(request: Request, run: str) -> None:
        """Treat the current state as normal: baselines are learned again, symptoms end."""
        if not _is_own(request):
            raise HTTPException(403, "only the agent's own page, or a client without one, may ask")
        with _known_run(run):
            source.reset_signals(run)

    return router


def _steps_api(source: Source, earlier_steps: EarlierSteps) -> APIRouter:
    router = APIRouter()
    encode = Document[Heatmap](Heatmap).dumped
    encode_steps = Document[tuple[StepRow, ...]](tuple[StepRow, ...]).dumped

    def run_with_steps(run: str, after: int) -> RunRow:
        with _known_run(run):
            row = {row.run: row for row in source.snapshot().runs}[run]
            return replace(row, steps=(*earlier_steps(run, after), *row.steps))

    @router.get("/runs/{run:path}/heatmap", response_model=Heatmap, responses=_UNKNOWN_RUN)
    def ranks_by_steps(
        run: str, measure: Measure = "active", role: str = "", after: int = -1
    ) -> Response:
        """One number for each rank in each closed step; steps up to `after` are left out."""
        return _answer(encode(heatmap(run_with_steps(run, after), role, measure, after)))

    @router.get(
        "/runs/{run:path}/steps", response_model=tuple[StepRow, ...], responses=_UNKNOWN_RUN
    )
    def closed_steps(run: str, step: int | None = None) -> Response:
        """Closed steps without their ranks; with `step` this step of each role, with its ranks."""
        steps = run_with_steps(run, -1).steps
        found = (replace(row, cells=()) if step is None else row for row in steps)
        return _answer(encode_steps(tuple(r for r in found if step in {None, r.step})))

    return router


def _memory_api(memory_of: MemoryOf) -> APIRouter:
    router = APIRouter()
    encode = Document[tuple[MemoryHistory, ...]](tuple[MemoryHistory, ...]).dumped

    @router.get(
        "/runs/{run:path}/memory", response_model=tuple[MemoryHistory, ...], responses=_UNKNOWN_RUN
    )
    def memory(run: str) -> Response:
        """Host memory of each rank over its steps. A hub has none: ask the agent of a node."""
        with _known_run(run):
            histories = memory_of(run)
        return _answer(encode(histories))

    return router


def _is_own(request: Request) -> bool:
    """Browsers name the requesting site, and let any site post; other clients name none."""
    origin = request.headers.get("origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("host")


def _engines_api(source: Source) -> APIRouter:
    router = APIRouter()

    @router.get("/engines/targets", response_model=tuple[TargetGroup, ...])
    def targets() -> tuple[TargetGroup, ...]:
        """The rollout engines of all runs as targets, for `http_sd_configs` of Prometheus."""
        return target_groups(source.snapshot())

    return router


def _alerts_api(source: AlertSource | None) -> APIRouter:
    router = APIRouter()
    encode = Document[Alerts](Alerts).dumped

    @router.get("/alerts", response_model=Alerts)
    def alerts() -> Response:
        """Alerts that fire now, worst first, and the state of their delivery."""
        alerts_now = source.alerts() if source else Alerts(time.time(), (), (), 0, 0)
        return _answer(encode(alerts_now))

    return router


@contextmanager
def _known_run(run: str) -> Iterator[None]:
    """Turns the source's KeyError into a 404 that says what to do."""
    try:
        yield
    except KeyError as error:
        detail = f"no run named {run!r}; /api/v1/snapshot lists the runs"
        raise HTTPException(404, detail) from error


def _probes(source: Source, render_metrics: RenderMetrics) -> APIRouter:
    router = APIRouter()

    @router.get("/metrics", response_class=Response)
    def metrics(request: Request) -> Response:
        """For Prometheus: text or OpenMetrics, whichever the Accept header asks for."""
        body, content_type = render_metrics(request.headers.get("accept"))
        return _answer(body, content_type)

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """The process is alive. Needs no token."""
        return {"status": "ok"}

    @router.get("/readyz", responses={503: {"description": "No poll yet, or blind"}})
    def readyz() -> dict[str, str]:  # in a thread: a snapshot of many ranks takes its time
        """The agent has read and judged everything within three periods. Needs no token."""
        agent = source.snapshot().agent
        if agent.num_polls == 0:
            raise HTTPException(503, "the agent has not made its first poll yet")
        if agent.blind is not None:
            since = time.strftime("%H:%M:%S", time.localtime(agent.blind.since_seconds))
            raise HTTPException(503, f"blind since {since}: {agent.blind.reason}")
        return {"status": "ready"}

    return router


def _add_page(app: FastAPI) -> None:
    plotly = _plotly_files()

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html")

    @app.get("/runbook", include_in_schema=False)
    def runbook_page() -> Response:
        return HTMLResponse(runbook.page())

    @app.get("/static/plotly.min.js", include_in_schema=False)
    async def plotly_js(request: Request) -> Response:
        if plotly is None:
            raise HTTPException(404, "the charts need plotly: pip install plotly")
        response = await plotly.get_response("plotly.min.js", request.scope)
        response.headers["Cache-Control"] = f"private, max-age={PLOTLY_MAX_AGE_SECONDS}"
        return response

    app.mount("/static", StaticFiles(directory=STATIC))


def _plotly_files() -> StaticFiles | None:
    """The folder in plotly's wheel with plotly.min.js; importing plotly would cost memory."""
    spec = importlib.util.find_spec("plotly")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "package_data"
    return StaticFiles(directory=folder) if (folder / "plotly.min.js").is_file() else None


def _joined(items: Iterable[bytes]) -> Iterator[bytes]:
    """A JSON array, piece by piece."""
    separator = b"["
    for item in items:
        yield separator + item
        separator = b","
    yield b"]" if separator == b"," else b"[]"


def _answer(body: bytes, content_type: str = "application/json") -> Response:
    return Response(body, headers=_HEADERS | {"Content-Type": content_type})


async def _blind(_request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 503)


async def _bad_request(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return JSONResponse({"detail": f"{first['loc'][-1]}: {first['msg']}"}, 422)


async def _internal_error(_request: Request, _error: Exception) -> Response:
    detail = "internal error; the agent's own output has the reason"
    return JSONResponse({"detail": detail}, 500, SECURITY_HEADERS)
