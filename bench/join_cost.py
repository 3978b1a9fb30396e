"""What joining a hub costs a node of 8 ranks with a step each second: processor time and bytes.

The baseline is an agent beside the same ranks that has joined none. What takes the facts throws
them away, in the process of the bench. The ratio of both is the agent's with and without a hub.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.measurement import Bar, Baseline, Result, median_of, of_samples, report
from bench.served_agent import ServedAgent, running, serving
from dfx_agent.facts import envelope

NUM_RANKS = 8
WINDOW_SECONDS = 5.0
YOUNG_SECONDS = 12.0  # processes are read more often before
_MAX_PERCENT, _MAX_BYTES = 0.5, 1024.0


def measure(*, quick: bool) -> list[Result]:
    with _sink() as sink, ExitStack() as stack:
        joined = stack.enter_context(serving({**os.environ, "DFX_HUB": sink.url}))
        alone = stack.enter_context(serving())
        for agent in (joined, alone):
            command = [sys.executable, "-m", "bench.node", agent.directory]
            ranks = running(
                [*command, "--ranks", str(NUM_RANKS)], stdout=subprocess.PIPE, text=True
            )
            node = stack.enter_context(ranks)
            assert node.stdout is not None
            node.stdout.readline()
        time.sleep(2.0 if quick else YOUNG_SECONDS)
        return _rows(joined, alone, sink, 1 if quick else 12)


def _rows(joined: ServedAgent, alone: ServedAgent, sink: _Sink, num_windows: int) -> list[Result]:
    with_hub, without, apart, per_step = [], [], [], []
    for _ in range(num_windows):
        before = joined.cpu_seconds(), alone.cpu_seconds(), sink.num_bytes, time.monotonic()
        time.sleep(WINDOW_SECONDS)
        seconds = time.monotonic() - before[3]
        with_hub.append(100 * (joined.cpu_seconds() - before[0]) / seconds)
        without.append(100 * (alone.cpu_seconds() - before[1]) / seconds)
        apart.append(with_hub[-1] - without[-1])
        per_step.append((sink.num_bytes - before[2]) / seconds / NUM_RANKS)
    what = f"{NUM_RANKS} ranks, a step each second, windows of {WINDOW_SECONDS:g} s"
    alone_row = median_of("agent that joined none", without)
    name, unit = "agent that joined a hub, processor time", "% of a core"
    return [
        of_samples(name, with_hub, unit, baseline=alone_row, note=what),
        of_samples("telling a hub, processor time", apart, unit, bar=Bar(_MAX_PERCENT), note=what),
        of_samples(
            "facts of a rank and step, compressed",
            per_step,
            "bytes",
            baseline=Baseline("best published", 2.7 * 1024),
            bar=Bar(_MAX_BYTES),
            note=what,
        ),
    ]


class _Sink:
    """``num_bytes`` of bodies by now."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.url = ""


@contextmanager
def _sink() -> Iterator[_Sink]:
    sink = _Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            self.rfile.read(size)
            sink.num_bytes += size
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.send_header(envelope.HUB_ID, "bench")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing onto stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sink.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink
        server.shutdown()


if __name__ == "__main__":
    report(measure)
