"""The thread over real servers: each state is told of its own replica, and costs no other."""

import asyncio
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from scripted_engine import ScriptedEngine, scripted_engine

from dfx_agent.node.engines.endpoint import FoundEngine
from dfx_agent.node.engines.watch import EngineWatch, metrics_url

JOBS = {"r": {}}


class Watched:
    """A watch whose rounds the test makes itself."""

    def __init__(self, *urls, answer_seconds=30.0, ranks=None):
        self.jobs = dict(JOBS)
        self.watch = EngineWatch(
            lambda: self.jobs, urls, finds=False, answer_seconds=answer_seconds,
            ranks=lambda _run: ranks or {},
        )  # fmt: skip
        self.loop = asyncio.new_event_loop()

    def read(self, rounds=1):
        for _ in range(rounds):
            self.loop.run_until_complete(self.watch.read_once())
        return {row.replica: row for row in self.watch.facts("r")}

    def close(self):
        if self.watch._client is not None:
            self.loop.run_until_complete(self.watch._client.aclose())
        self.loop.close()


@contextmanager
def watched(*urls, **known):
    watch = Watched(*urls, **known)
    try:
        yield watch
    finally:
        watch.close()


def test_a_healthy_engine_is_read():
    with scripted_engine() as engine, watched(engine.url) as watch:
        watch.read()
        engine.metrics.of("running").set(3)
        engine.metrics.of("tokens").inc(50)
        engine.metrics.of("ttft").observe(0.3)
        row = watch.read()["0"]
    assert (row.state, row.engine, row.model, row.url) == (
        "up", "vllm", "a-model", f"{engine.url}/metrics",
    )  # fmt: skip
    assert (row.num_running, row.dp_rank, row.reason) == (3.0, "", "")
    assert row.rates["generation_tokens"] > 0
    assert 0.25 < row.latencies["time_to_first_token_seconds"].p50 <= 0.5
    assert (row.num_readings, row.num_failed_readings, row.num_unknown_names) == (2, 0, 0)


def test_the_number_of_a_replica_is_the_rank_of_the_process_that_serves_it():
    with ExitStack() as stack:
        engines = [stack.enter_context(scripted_engine()) for _ in range(2)]
        urls = sorted((engine.url for engine in engines), key=lambda url: int(url.split(":")[2]))
        watch = stack.enter_context(watched(ranks={71: 1, 72: 0}))
        for url, pid in zip(urls, (71, 72), strict=True):
            watch.watch._join(FoundEngine(f"{url}/metrics", "r", "socket", pid))
        rows = watch.read(rounds=2)
    assert {row.pid: number for number, row in rows.items()} == {71: "1", 72: "0"}


def test_proxies_of_the_environment_are_not_asked(monkeypatch):
    with scripted_engine() as proxy, scripted_engine() as engine:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        with watched(engine.url) as watch:
            assert watch.read()["0"].state == "up"
        assert proxy.handler.num_asked == 0
        (headers,) = engine.handler.seen_headers
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("mode", "state", "reason"),
    [
        ("slow", "slow", "no whole answer within"),
        ("dripping", "slow", "no whole answer within"),
        ("garbage", "garbage", "UTF-8"),
        ("prose", "garbage", "no metric of vLLM or SGLang"),
        ("broken text", "garbage", "not Prometheus text"),
        ("error", "garbage", "HTTP status 500"),
        ("elsewhere", "garbage", "HTTP status 302"),
        ("endless", "garbage", "more than 4 MiB"),
        ("hang up", "garbage", "the answer was cut off"),
    ],
)
def test_a_bad_response_is_reported_and_earlier_values_stay(mode, state, reason):
    with ExitStack() as stack:
        engine, other = (stack.enter_context(scripted_engine()) for _ in range(2))
        watch = stack.enter_context(watched(engine.url, other.url))
        engine.metrics.of("running").set(5)
        of_port = {row.url: replica for replica, row in watch.read().items()}
        bad, good = of_port[f"{engine.url}/metrics"], of_port[f"{other.url}/metrics"]
        engine.answers(mode)
        watch.watch._answer_seconds = 1.0 if state == "slow" else 30.0
        rows = watch.read()
        assert rows[bad].state == state
        assert state == "slow" or rows[good].state == "up"
        assert reason in rows[bad].reason
        assert (rows[bad].num_running, rows[bad].num_failed_readings) == (5.0, 1)
        since = rows[bad].since_seconds
        assert watch.read()[bad].since_seconds == since
        engine.answers("healthy")
        watch.watch._answer_seconds = 30.0
        assert watch.read()[bad].state == "up"


def test_engines_are_asked_at_the_same_time():
    """Each answers when all have been asked: one after the other none would."""
    barrier = threading.Barrier(8)
    with ExitStack() as stack:
        engines = [stack.enter_context(scripted_engine()) for _ in range(8)]
        for engine in engines:
            engine.handler.barrier = barrier
            engine.answers("together")
        watch = stack.enter_context(watched(*(engine.url for engine in engines)))
        assert [row.state for row in watch.read().values()] == ["up"] * 8


def test_an_engine_that_returns_is_one_replica_with_continued_counters():
    engine = ScriptedEngine()
    with watched(engine.url) as watch:
        assert watch.read()["0"].state == "up"
        engine.metrics.of("tokens").inc(100)
        watch.read()
        engine.close()
        assert watch.read()["0"].state == "gone"
        with scripted_engine(port=engine.port) as again:
            again.metrics.of("tokens").inc(7)
            row = watch.read()["0"]
    assert (row.state, row.num_restarts) == ("up", 1)
    assert row.totals["generation_tokens"] == 107.0


def test_a_configured_engine_that_nobody_serves_yet_is_awaited(free_port):
    port = free_port()
    with watched(f"http://127.0.0.1:{port}") as watch:
        row = watch.read()["0"]
        assert (row.state, row.engine, row.read_seconds) == ("awaited", "", None)
        with scripted_engine(port=port):
            assert watch.read()["0"].state == "up"


def test_numbers_stay_with_their_engine_and_go_by_address(free_port):
    ports = sorted(free_port() for _ in range(3))
    with ExitStack() as stack:
        late, *early = ports[0], ports[2], ports[1]
        engines = {port: stack.enter_context(scripted_engine(port=port)) for port in ports}
        watch = stack.enter_context(watched(*(engines[p].url for p in early)))
        urls = [row.url for row in watch.read().values()]
        assert urls == [f"{engines[p].url}/metrics" for p in sorted(early)]
        watch.watch._configured += (metrics_url(engines[late].url),)
        rows = watch.read()
        assert [rows[i].url for i in ("0", "1", "2")] == [*urls, f"{engines[late].url}/metrics"]


def test_data_parallel_ranks_are_rows_of_one_replica():
    with scripted_engine(dp_ranks=("0", "1", "10", "2")) as engine, watched(engine.url) as watch:
        watch.read()
        rows = watch.watch.facts("r")
        assert [(row.replica, row.dp_rank) for row in rows] == [
            ("0", "0"), ("0", "1"), ("0", "2"), ("0", "10"),
        ]  # fmt: skip
        assert rows[3].name == "replica 0 dp 10"


def test_engines_go_with_their_run():
    with scripted_engine() as engine, watched(engine.url) as watch:
        watch.read()
        watch.jobs.clear()
        assert watch.read() == {}
        watch.jobs["r"] = {}
        assert set(watch.read()) == {"0"}


def test_the_thread_reads_by_itself_and_ends():
    with scripted_engine() as engine:
        watch = EngineWatch(lambda: JOBS, (engine.url,), finds=False)
        watch.start()
        until = time.monotonic() + 30
        while not any(row.state == "up" for row in watch.facts("r")):
            assert time.monotonic() < until
            time.sleep(0.01)
        watch.stop()
        assert not watch._thread.is_alive()


def test_while_our_own_reading_stands_no_engine_is_up(monkeypatch):
    with scripted_engine() as engine, watched(engine.url) as watch:
        assert watch.read()["0"].state == "up"
        later = time.monotonic() + 31.0
        monkeypatch.setattr(time, "monotonic", lambda: later)
        (row,) = watch.watch.facts("r")
    assert (row.state, row.num_readings) == ("slow", 1)
    assert "the agent has read no engine for 31 s" in row.reason


def test_a_watch_that_never_began_stops():
    EngineWatch(dict).stop()


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/metrics"),
        ("http://h:3000/engine_metrics", "http://h:3000/engine_metrics"),
    ],
)
def test_a_url_may_name_its_path(given, url):
    assert metrics_url(given) == url
