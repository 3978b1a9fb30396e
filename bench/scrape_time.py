"""One scrape of a node of 16 ranks over loopback, gzip included, as Prometheus asks for it.

The baseline is the same number of plain gauges behind prometheus_client's own server.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from bench.measurement import Bar, Result, median_of, of_samples, report
from bench.served_agent import SCRAPE_HEADERS, get, running, serving

NUM_RANKS = 16
PAUSE_SECONDS = 0.05
SETTLE_SECONDS = 2.0
OURS, THEIRS = "GET /metrics", "prometheus_client server"


def measure(*, quick: bool) -> list[Result]:
    with serving() as agent:
        node = [sys.executable, "-m", "bench.node", agent.directory, "--ranks", str(NUM_RANKS)]
        with running(node, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(SETTLE_SECONDS)
            num_series = _num_series(agent.port)
            with _plain_gauges(num_series) as port:
                times = _scrape({OURS: agent.port, THEIRS: port}, 10 if quick else 150)
    return _rows(times, num_series)


def _rows(times: dict[str, list[float]], num_series: int) -> list[Result]:
    baseline = median_of(THEIRS, times[THEIRS])
    note = f"{num_series:,} series, {num_series / NUM_RANKS:.0f} a rank"
    name = f"scrape of {NUM_RANKS} ranks"
    ours = times[OURS]
    return [
        of_samples(f"{name}, p50", ours, "ms", baseline=baseline, bar=Bar(50.0), note=note),
        of_samples(f"{name}, p95", ours, "ms", q=0.95, baseline=baseline, note=note),
    ]


def _num_series(port: int) -> int:
    body, encoding = get(port, "/metrics", SCRAPE_HEADERS)
    if encoding != "gzip":
        raise RuntimeError(f"asked for gzip, got {encoding or 'plain text'}")
    lines = gzip.decompress(body).splitlines()
    return sum(1 for line in lines if not line.startswith(b"#"))


def _scrape(ports: dict[str, int], num_scrapes: int) -> dict[str, list[float]]:
    """Milliseconds from connecting to the last byte; the first round is warm-up."""
    times: dict[str, list[float]] = {name: [] for name in ports}
    for number in range(num_scrapes + 1):
        for name in random.sample(list(ports), len(ports)):
            begin = time.perf_counter()
            get(ports[name], "/metrics", SCRAPE_HEADERS)
            elapsed = time.perf_counter() - begin
            if number:
                times[name].append(elapsed * 1e3)
            time.sleep(PAUSE_SECONDS)
    return times


@contextmanager
def _plain_gauges(num_series: int) -> Iterator[int]:
    """prometheus_client serving, in a process of its own; the port."""
    command = [sys.executable, "-m", "bench.scrape_time", "--serve-gauges", str(num_series)]
    with running(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _serve_gauges(num_series: int) -> None:
    registry = CollectorRegistry()
    per_rank = num_series // NUM_RANKS
    for number in range(per_rank):
        gauge = Gauge(f"bench_{number}", "Help.", ["run", "role", "rank"], registry=registry)
        for rank in range(NUM_RANKS):
            gauge.labels("node", "trainer", str(rank)).set(number + rank / 7)
    rest = Gauge("bench_rest", "Help.", ["number"], registry=registry)
    for number in range(num_series - per_rank * NUM_RANKS):
        rest.labels(str(number)).set(number)
    server, _ = start_http_server(0, "127.0.0.1", registry)
    print(server.server_port, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    if "--serve-gauges" in sys.argv:
        _serve_gauges(int(sys.argv[-1]))
    else:
        report(measure)
