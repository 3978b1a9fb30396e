"""Every route over a real socket: bodies, headers, errors, token."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from scripted_source import NAN_STEP, RUN, SCALARS, ScriptedSource

from dfx_agent.agent.config import Config
from dfx_agent.commands.serve.stored_history import StoredHistory
from dfx_agent.hub.access import Access, Guard
from dfx_agent.snapshot.document import Document
from dfx_agent.web import app as app_module
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server

METRICS_BODY = b"# TYPE dfx_demo gauge\n" + b"dfx_demo 1\n" * 400 + b"# EOF\n"
TOKEN = "s3cret-tökén"


class Metrics:
    """Remembers what it was asked and where it ran."""

    def __init__(self) -> None:
        self.accept: str | None = None
        self.thread = ""

    def __call__(self, accept: str | None) -> tuple[bytes, str]:
        self.accept = accept
        self.thread = threading.current_thread().name
        return METRICS_BODY, "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture(scope="module")
def source() -> ScriptedSource:
    return ScriptedSource()


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture(scope="module")
def client(source, metrics) -> Iterator[httpx.Client]:
    with serve(source, metrics) as client:
        yield client


@pytest.fixture(scope="module")
def guarded_client(source, metrics) -> Iterator[httpx.Client]:
    with serve(source, metrics, TOKEN) as client:
        yield client


@pytest.fixture
def guarded(guarded_client) -> httpx.Client:
    guarded_client.cookies.clear()
    return guarded_client


@contextmanager
def serve(source, metrics, token=None) -> Iterator[httpx.Client]:
    history = StoredHistory(Config("/unused", history_directory="off"), source, list, print)
    access = Access(token) if token else None
    server = Server(
        create_app(source, metrics, access, routes=history.routes()), Listener("127.0.0.1", 0)
    )
    server.start()
    try:
        with httpx.Client(base_url=server.url, timeout=10) as client:
            yield client
    finally:
        server.stop()


class Page(HTMLParser):
    """Collects what a strict content security policy would refuse, and all links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        names = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in names):
            self.inline.append(tag)
        self.inline += [name for name in names if name.startswith("on") or name == "style"]
        self.links += [names[name] for name in ("src", "href") if name in names]


def test_page_has_no_inline_code_and_links_only_what_exists(client):
    answer = client.get("/")
    assert answer.status_code == 200
    page = Page(answer.text)
    assert page.inline == []
    assert "static/app.js" in page.links
    for link in page.links:
        assert not re.match(r"^(https?:)?//", link), link
        assert client.get(f"/{link}").status_code == 200, link


def test_modules_import_only_files_that_are_served(client):
    seen, todo = set(), ["app.js"]
    while todo:
        name = todo.pop()
        answer = client.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert "javascript" in answer.headers["content-type"]
        seen.add(name)
        todo += set(re.findall(r'from "\./([\w.]+)"', answer.text)) - seen
    assert seen == {path.name for path in app_module.STATIC.glob("*.js")}


def test_own_files_are_revalidated_and_plotly_is_cached(client):
    own = client.get("/static/app.js")
    assert own.headers["cache-control"] == "no-cache"
    again = client.get("/static/app.js", headers={"If-None-Match": own.headers["etag"]})
    assert again.status_code == 304

    plotly = client.get("/static/plotly.min.js")
    assert b"plotly.js v" in plotly.content[:200]
    assert "max-age=604800" in plotly.headers["cache-control"]
    cached = client.get("/static/plotly.min.js", headers={"If-None-Match": plotly.headers["etag"]})
    assert cached.status_code == 304


def test_page_is_served_without_plotly(source, metrics, monkeypatch):
    monkeypatch.setattr(app_module, "_plotly_files", lambda: None)
    with serve(source, metrics) as client:
        assert client.get("/").status_code == 200
        answer = client.get("/static/plotly.min.js")
        assert answer.status_code == 404
        assert "pip install plotly" in answer.json()["detail"]


def test_heavy_packages_stay_out_of_the_process():
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from scripted_source import ScriptedSource\n"
        "from dfx_agent.web.app import create_app\n"
        "create_app(ScriptedSource(), lambda accept: (b'', ''))\n"
        "print([m for m in ('plotly', 'numpy', 'jinja2', 'opentelemetry.sdk') if m in sys.modules])"
    )
    paths = [str(Path(__file__).parents[1] / "scenes"), str(Path(__file__).parents[3])]
    environment = {
        **os.environ,
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", ["/static/nothing.js", "/static/../app.py", "/docs", "/redoc"])
def test_what_is_not_there_is_404(client, path):
    assert client.get(path).status_code == 404


def test_file_outside_static_cannot_be_read(client):
    request = client.build_request("GET", "/static/x")
    request.url = request.url.copy_with(raw_path=b"/static/..%2fapp.py")
    assert client.send(request).status_code == 404


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_a_snapshot_has_at_most_the_steps_that_are_asked_for(client, num_steps):
    whole = client.get("/api/v1/snapshot").json()["runs"][0]["steps"]
    answer = client.get(f"/api/v1/snapshot?steps={num_steps}").json()["runs"][0]["steps"]
    assert answer == whole[len(whole) - num_steps :]
    assert len(whole) > num_steps


def test_snapshot_is_the_contract_as_json(client, source):
    answer = client.get("/api/v1/snapshot")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    run = body["runs"][0]
    assert [rank["rank"] for rank in run["ranks"]] == ["0", "1", "2", "3"]
    assert set(run["ranks"][0]) == set(source.snapshot().runs[0].ranks[0].__dataclass_fields__)
    assert body["agent"]["other_agent_pid"] is None
    split = run["ranks"][0]["last"]
    waits = sum(sum(by_stage.values()) for by_stage in split["wait_seconds"].values())
    total = split["active_seconds"] + waits + split["idle_seconds"]
    assert total == pytest.approx(split["wall_seconds"])


def test_verdicts_are_shown_without_ranks(client, source):
    (run,) = client.get("/api/v1/verdicts").json()
    shown = source.snapshot().runs[0]
    assert run["run"] == shown.run
    assert run["standing"]["state"] == shown.standing.state
    assert [v["kind"] for v in run["verdicts"]] == [v.kind for v in shown.verdicts]
    assert "ranks" not in run


def test_scalars_by_key_all_keys_and_nan(client):
    url = f"/api/v1/runs/{RUN}/scalars"
    keys = ["actor/grad_norm", "actor/entropy"]
    rows = client.get(url, params={"key": keys}).json()
    assert [row["key"] for row in rows] == keys
    assert rows[0]["values"][NAN_STEP] == "NaN"
    assert all(isinstance(value, float) for value in rows[1]["values"])
    assert rows[1]["unit"] == "nats"
    assert {row["key"] for row in client.get(url).json()} == set(SCALARS)
    assert client.get(url, params={"key": "no/such"}).json() == []


def test_scalars_travel_key_by_key_compressed_for_those_who_ask(client):
    url = f"/api/v1/runs/{RUN}/scalars"
    plain = client.get(url, headers={"Accept-Encoding": "identity"})
    packed = client.get(url, headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept, Accept-Encoding"
    assert plain.json() == packed.json()
    with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
        assert len(list(response.iter_raw())) > 0
    pieces = list(app_module._joined(iter([b"1", b"2", b"3"])))
    assert pieces == [b"[1", b",2", b",3", b"]"]


def test_infinities_have_signs():
    encode = Document(tuple[float, ...]).dumped
    assert json.loads(encode((math.inf, -math.inf, math.nan, 0.0))) == [
        "Infinity", "-Infinity", "NaN", 0.0,
    ]  # fmt: skip


def test_timeline_has_the_last_steps_of_each_rank(metrics):
    now = time.time()  # the script goes by the clock, and this machine may be slow
    url = f"/api/v1/runs/{RUN}/timeline"
    with serve(ScriptedSource(clock=lambda: now), metrics) as client:
        rows = client.get(url, params={"steps": 3}).json()
        all_rows = client.get(url).json()
    assert [row["step"] for row in rows if row["rank"] == "2"] == [43, 44, 45]
    assert rows[2]["end_seconds"] is None
    assert {piece["kind"] for piece in rows[0]["pieces"]} == {"stage", "wait", "idle"}
    assert len(all_rows) == 4 * 12


@pytest.mark.parametrize("steps", ["0", "201", "-1", "many", ""])
def test_wrong_number_of_steps_is_one_line(client, steps):
    answer = client.get(f"/api/v1/runs/{RUN}/timeline", params={"steps": steps})
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert detail.startswith("steps: ")
    assert "\n" not in detail


@pytest.mark.parametrize("what", ["scalars", "timeline", "signals"])
def test_unknown_run_is_404_with_a_remedy(client, what):
    answer = client.get(f"/api/v1/runs/nope/{what}")
    assert answer.status_code == 404
    assert answer.json() == {"detail": "no run named 'nope'; /api/v1/snapshot lists the runs"}


def test_run_names_may_hold_anything(client, source, monkeypatch):
    monkeypatch.setattr(source, "run_names", ("team a/exp 7%", RUN))
    for what in ("scalars", "timeline", "signals"):
        answer = client.get(f"/api/v1/runs/team%20a%2Fexp%207%25/{what}")
        assert answer.status_code == 200
        assert answer.json()


def test_signals_over_steps(client):
    answer = client.get(f"/api/v1/runs/{RUN}/signals", params={"steps": 3})
    assert answer.json()["steps"] == [0, 1, 2]
    assert client.get(f"/api/v1/runs/{RUN}/signals", params={"steps": 257}).status_code == 422


def test_baselines_are_reset_by_clients_and_by_our_page_and_by_no_other_site(client, source):
    url = f"/api/v1/runs/{RUN}/signals/reset"
    before = source.num_resets
    own = {"Origin": str(client.base_url).rstrip("/")}
    for headers in ({}, own):
        answer = client.post(url, headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        answer = client.post(url, headers={"Origin": origin})
        assert answer.status_code == 403
        assert "\n" not in answer.json()["detail"]
    assert client.get(url).status_code in {404, 405}
    assert source.num_resets == before + 2
    assert client.post("/api/v1/runs/nope/signals/reset").status_code == 404


def test_a_reset_needs_the_token(guarded):
    assert guarded.post(f"/api/v1/runs/{RUN}/signals/reset").status_code == 401


def test_metrics_pass_through_in_a_worker_thread(client, metrics):
    headers = {"Accept": "application/openmetrics-text", "Accept-Encoding": "identity"}
    answer = client.get("/metrics", headers=headers)
    assert answer.content == METRICS_BODY
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert "content-encoding" not in answer.headers
    assert metrics.accept == "application/openmetrics-text"
    assert metrics.thread != "dfx-web"


@pytest.mark.parametrize(
    ("accept", "is_gzip"),
    [
        ("gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("GZIP; q=0.3", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0, identity", False),
        ("br", False),
        ("", False),
    ],
)
def test_gzip_only_where_it_is_accepted(client, accept, is_gzip):
    with client.stream("GET", "/metrics", headers={"Accept-Encoding": accept}) as answer:
        raw = b"".join(answer.iter_raw())
    assert (answer.headers.get("content-encoding") == "gzip") is is_gzip
    assert "Accept-Encoding" in answer.headers["vary"]
    if is_gzip:
        assert gzip.decompress(raw) == METRICS_BODY
        assert raw[8] == 4  # the flag of zlib's fastest level
    else:
        assert raw == METRICS_BODY


def test_probes(metrics):
    source = ScriptedSource(num_polls=0)
    with serve(source, metrics) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        not_yet = client.get("/readyz")
        assert not_yet.status_code == 503
        assert not_yet.json()["detail"] == "the agent has not made its first poll yet"
        source._num_polls = 1
        source._snapshot = None
        assert client.get("/readyz").status_code == 200


def test_openapi_describes_the_answers(client):
    schema = client.get("/api/v1/openapi.json").json()
    assert {
        "/api/v1/snapshot",
        "/api/v1/stream",
        "/api/v1/runs/{run}/scalars",
        "/api/v1/runs/{run}/ranks",
        "/api/v1/runs/{run}/timeline",
        "/api/v1/runs/{run}/heatmap",
        "/api/v1/runs/{run}/memory",
        "/api/v1/runs/{run}/signals",
        "/api/v1/runs/{run}/steps",
        "/api/v1/alerts",
        "/api/v1/verdicts",
        "/api/v1/engines/targets",
        "/api/v1/runs/{run}/signals/reset",
        "/metrics",
        "/healthz",
        "/readyz",
    } == set(schema["paths"])
    assert {"Snapshot", "RankRow", "ScalarHistory", "TimelineRow"} <= set(
        schema["components"]["schemas"]
    )


def test_ranks_that_are_asked_for(client):
    (row,) = client.get(f"/api/v1/runs/{RUN}/ranks?rank=actor/1").json()
    assert (row["role"], row["rank"]) == ("actor", "1")
    assert client.get(f"/api/v1/runs/{RUN}/ranks?rank=actor/99").json() == []
    assert client.get(f"/api/v1/runs/{RUN}/ranks").status_code == 422
    assert client.get("/api/v1/runs/other/ranks?rank=actor/1").status_code == 404


def test_internal_error_shows_no_trace(metrics, monkeypatch):
    def explode(*_):
        raise RuntimeError("inside story")

    source = ScriptedSource()
    monkeypatch.setattr(source, "timeline", explode)
    with serve(source, metrics) as client:
        answer = client.get(f"/api/v1/runs/{RUN}/timeline")
    assert answer.status_code == 500
    assert answer.json() == {"detail": "internal error; the agent's own output has the reason"}
    assert "nosniff" in answer.headers["x-content-type-options"]


@pytest.mark.parametrize(
    "path", ["/", "/static/app.js", "/api/v1/snapshot", "/nothing", "/metrics", "/healthz"]
)
def test_security_headers_are_everywhere(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "script-src" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


PROTECTED = ["/", "/metrics", "/static/app.js", "/static/plotly.min.js",
             "/api/v1/snapshot", "/api/v1/stream", "/api/v1/openapi.json", "/nothing",
             f"/api/v1/runs/{RUN}/timeline", f"/api/v1/runs/{RUN}/scalars",
             f"/api/v1/runs/{RUN}/signals"]  # fmt: skip


@pytest.mark.parametrize("path", PROTECTED)
def test_without_token_nothing_is_returned(guarded, path):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
        answer = guarded.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["detail"].startswith("token required")
    assert guarded.get(path, params={"token": "wrong"}).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(guarded, path):
    assert guarded.get(path).status_code == 200


def status_behind_guard(path, host):
    """What the guard alone answers: on other addresses than loopback any Host reaches it."""

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent = []

    async def keep(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "query_string": b"",
        "headers": [(b"host", host)],
    }  # fmt: skip
    asyncio.run(Guard(app, Access(TOKEN))(scope, None, keep))
    return sent[0]["status"]


@pytest.mark.parametrize("host", [b"a/healthz?", b"a/readyz#", b"a/healthz"])
def test_a_host_header_is_no_way_round_the_token(host):
    assert status_behind_guard("/metrics", host) == 401
    assert status_behind_guard("/healthz", host) == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_bearer_token_opens_and_sets_no_cookie(guarded, scheme):
    headers = {"Authorization": f"{scheme} {TOKEN}".encode()}
    answer = guarded.get("/metrics", headers=headers)
    assert answer.status_code == 200
    assert "set-cookie" not in answer.headers


def test_token_in_the_address_becomes_a_cookie(guarded):
    first = guarded.get("/", params={"token": TOKEN})
    assert first.status_code == 200
    cookie = first.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert guarded.get("/api/v1/snapshot").status_code == 200
    name, value = cookie.split(";")[0].split("=")
    guarded.cookies.clear()
    stolen = {"Cookie": f"{name}={value[:-1]}x"}
    assert guarded.get("/api/v1/snapshot", headers=stolen).status_code == 401
