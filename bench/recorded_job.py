"""What the agent of a real job tells a hub, recorded: steps, times between them, and a hang.

The demo's training under torchrun, with ``dfx-agent run --join`` beside it as a user starts it. In
the end one rank is stopped (SIGSTOP), and what is told of that is recorded too.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bench.rounds import TORCHRUN
from bench.served_agent import running
from dfx_agent.facts import envelope
from dfx_agent.facts.document import loaded
from dfx_agent.facts.run import RunFacts
from dfx_agent.hub.otlp import requests

RUN = "job"
STOPPED = "1"  # the rank that is stopped in the end
MAX_SECONDS = 900.0
_MAX_PLAIN = 1 << 26
_NUM_STEPS_BEFORE = 4  # before the node is asked for all


@dataclass(frozen=True)
class Recording:
    """``request`` is one as the exporter sent it, unpacked. ``stopped_ns``: on the node's clock."""

    request: bytes
    documents: tuple[bytes, ...]
    stopped_ns: int
    num_ranks: int

    def facts(self) -> list[RunFacts]:
        return [loaded(document) for document in self.documents]

    def save(self, path: Path) -> None:
        known = {
            "request": b64encode(self.request).decode(),
            "documents": [document.decode() for document in self.documents],
            "stopped_ns": self.stopped_ns,
            "num_ranks": self.num_ranks,
        }
        path.write_text(json.dumps(known))

    @classmethod
    def load(cls, path: Path) -> Recording:
        known = json.loads(path.read_text())
        return cls(
            b64decode(known["request"]),
            tuple(document.encode() for document in known["documents"]),
            known["stopped_ns"],
            known["num_ranks"],
        )


def recorded(num_ranks: int, num_steps: int, hang_seconds: float) -> Recording:
    """``num_steps`` at least are told after all that is known; then one rank stands."""
    with _sink() as sink, tempfile.TemporaryDirectory(prefix="dfx-bench-") as folder:
        job = [
            "dfx_agent.commands.demo.tiny_grpo",
            "--steps",
            "100000",
            "--prompts-per-rank",
            "1",
            "--group-size",
            "4",
        ]
        job += ["--validate-every", "0", "--checkpoint-every", "0"]
        command = [sys.executable, "-m", "dfx_agent", "run", "--run", RUN, "--join", sink.url]
        command += ["--listen", "127.0.0.1:0", "--", *TORCHRUN, str(num_ranks), "-m", *job]
        env = {**os.environ, "DFX_DIR": folder, "OMP_NUM_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with running(command, env=env, **quiet) as process:
            _await(process, lambda: sink.num_steps() >= _NUM_STEPS_BEFORE)
            sink.wants_all = True
            _await(process, lambda: sink.has_all() and sink.num_steps() >= num_steps)
            stopped_ns = _stop(sink, process, hang_seconds)
        until_ns = stopped_ns + int(hang_seconds * 1e9)
        return Recording(sink.request, sink.since_all(until_ns), stopped_ns, num_ranks)


def _stop(sink: _Sink, process: subprocess.Popen[str], seconds: float) -> int:
    """One rank stands for so long; its instant."""
    pid = sink.pid_of(STOPPED)
    stopped_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + seconds
        _await(process, lambda: time.monotonic() > until)
    finally:
        os.kill(pid, signal.SIGCONT)
    return stopped_ns


def _await(process: subprocess.Popen[str], is_over: Callable[[], bool]) -> None:
    end = time.monotonic() + MAX_SECONDS
    while not is_over():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError("the training that is recorded made no steps, or has ended")
        time.sleep(0.1)


class _Sink:
    """``facts`` of the run by now."""

    def __init__(self) -> None:
        self.url = ""
        self.wants_all = False
        self.request = b""
        self._documents: list[bytes] = []
        self._facts: list[RunFacts] = []

    def take(self, body: bytes, encoding: str) -> dict[str, str]:
        for record in requests.read_records(body, encoding, _MAX_PLAIN).items:
            facts = loaded(record.document)
            if facts.run == RUN:
                self.request = gzip.decompress(body) if encoding == "gzip" else body
                self._facts.append(facts)
                self._documents.append(record.document)
        wants_all, self.wants_all = self.wants_all, False
        return {envelope.WANTS_ALL: "1"} if wants_all else {}

    def num_steps(self) -> int:
        """Told as news since the last document that holds all."""
        news = self._facts[self._first() + 1 :]
        return sum(len(role.steps) for facts in news for role in facts.steps)

    def has_all(self) -> bool:
        return self._first() > 0

    def since_all(self, until_ns: int) -> tuple[bytes, ...]:
        """From the one that holds all to that instant of the node's clock."""
        reported = list(zip(self._documents, self._facts, strict=True))[self._first() :]
        return tuple(document for document, facts in reported if facts.now_ns <= until_ns)

    def pid_of(self, label: str) -> int:
        seats = self._facts[self._first()].seats
        return next(seat.pid for seat in seats if seat.label == label)

    def _first(self) -> int:
        full = [at for at, facts in enumerate(self._facts) if facts.is_full]
        return full[-1] if full else 0


@contextmanager
def _sink() -> Iterator[_Sink]:
    sink = _Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            more = sink.take(body, self.headers.get("Content-Encoding", ""))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.send_header(envelope.HUB_ID, "bench")
            for name, value in more.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing onto stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sink.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink
        server.shutdown()
