"""Processor time of pushing a node of 16 ranks to an OpenTelemetry receiver, and its steps.

The baseline is rendering the same snapshot as Prometheus text. The receiver, which throws
everything away, is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from bench.measurement import Result, median_of, of_samples, report
from bench.served_agent import running
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.exporters.otel import metrics as otel_metrics
from dfx_agent.exporters.otel import spans as otel_spans
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter, SnapshotCollector

NUM_RANKS = 16
FOLLOW_SECONDS = 10.0
TEXT = "Prometheus text"


def measure(*, quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as folder:
        node = [sys.executable, "-m", "bench.node", folder, "--ranks", str(NUM_RANKS)]
        sink = [sys.executable, "-m", "bench.otlp_push", "--sink"]
        with (
            running(node, stdout=subprocess.PIPE, text=True) as ranks,
            running(sink, stdout=subprocess.PIPE, text=True) as receiver,
        ):
            assert ranks.stdout is not None
            assert receiver.stdout is not None
            url = f"http://127.0.0.1:{int(receiver.stdout.readline())}"
            ranks.stdout.readline()
            agent = Agent(Config(folder))
            _follow(agent, 2.0 if quick else FOLLOW_SECONDS)
            return [*_metrics(agent, url, 5 if quick else 60), *_steps(agent, url)]


def _follow(agent: Agent, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        agent.poll()
        time.sleep(0.2)


def _metrics(agent: Agent, url: str, num_rounds: int) -> list[Result]:
    part = otel_metrics.open_part(f"{url}/v1/metrics", "here:1", "0")
    collect, exporter = SnapshotCollector(agent).collect, PrometheusExporter(agent)
    num_points = 0

    def push() -> None:
        nonlocal num_points
        num_points, export = part.prepare(collect())
        if export().name != "SUCCESS":
            raise RuntimeError("the receiver did not take the metrics")

    ours, text = [], []
    for _ in range(num_rounds):
        ours.append(_thread_ms(push))
        text.append(_thread_ms(lambda: exporter.render(None)))
    part.shutdown()
    baseline = median_of(TEXT, text)
    name = f"OTLP push of {NUM_RANKS} ranks, processor time"
    return [of_samples(name, ours, "ms", baseline=baseline, note=f"{num_points:,} points")]


def _steps(agent: Agent, url: str) -> list[Result]:
    part = otel_spans.open_part(f"{url}/v1/traces", "here:1", "0")
    collected = _thread_ms(lambda: part.collect(agent, agent.snapshot().runs, is_last=True))
    num_spans, pushed = part.num_waiting, 0.0
    while part.num_waiting:
        num_taken, export = part.prepare()
        pushed += _thread_ms(export)
        part.forget(num_taken)
    part.shutdown()
    per_span = 1e3 * (collected + pushed) / num_spans
    return [of_samples("OTLP span, processor time", [per_span], "us", note=f"{num_spans:,} spans")]


def _thread_ms(act: Callable[[], object]) -> float:
    begin = time.thread_time()
    act()
    return (time.thread_time() - begin) * 1e3


class _Sink(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing onto stderr."""


def _receive() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Sink)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    if "--sink" in sys.argv:
        _receive()
    else:
        report(measure)
