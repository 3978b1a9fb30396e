"""A real ``dfx-agent serve`` in a process of its own, and the clients that look at it."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from dfx_agent.web.stream import patched

STOP_SECONDS = 10.0
REQUEST_SECONDS = 30.0

# what Prometheus 2.53 sends
SCRAPE_HEADERS = {
    "Accept": (
        "application/openmetrics-text;version=1.0.0;q=0.5,"
        "application/openmetrics-text;version=0.0.1;q=0.4,"
        "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
    ),
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True)
class ServedAgent:
    """Where it answers, what process it is, which folder it follows."""

    port: int
    process: psutil.Process
    directory: str

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def resident_mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20


@contextmanager
def serving(env: dict[str, str] | None = None) -> Iterator[ServedAgent]:
    """An agent over a new folder in shared memory; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="dfx-bench-", dir="/dev/shm") as directory:
        command = [sys.executable, "-m", "dfx_agent", "serve", "--listen", "127.0.0.1:0"]
        options = {"stdout": subprocess.PIPE, "text": True, "env": env}
        with running([*command, "--dir", directory], **options) as agent:
            assert agent.stdout is not None
            found = re.search(r":(\d+)/", agent.stdout.readline())
            if found is None:
                raise RuntimeError("dfx-agent serve did not say where it listens")
            yield ServedAgent(int(found[1]), psutil.Process(agent.pid), directory)


@contextmanager
def running(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that is ended, and waited for, when the block is left."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def get(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[bytes, str]:
    """(body as it travelled, content encoding) over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        body = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"GET {path}: {response.status} {body[:200]!r}")
        return body, response.getheader("Content-Encoding", "")
    finally:
        connection.close()


@contextmanager
def listening(port: int, take: Callable[[float, dict[str, Any]], None]) -> Iterator[None]:
    """``take(monotonic time of arrival, view)`` for every server-sent view meanwhile."""
    stop = threading.Event()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)
    connection.request("GET", "/api/v1/stream")
    response = connection.getresponse()

    def follow() -> None:
        view = None
        while not stop.is_set():
            line = response.readline()
            if line.startswith(b"data: "):
                arrival, reported = time.monotonic(), json.loads(line[6:])
                view = patched(view, reported["patch"]) if "patch" in reported else reported["view"]
                take(arrival, view)

    thread = threading.Thread(target=follow, name="bench-listener", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # the agent sends at least four events a second, so this ends at once
        stop.set()
        thread.join(STOP_SECONDS)
        connection.close()


@contextmanager
def repeating(every_seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """``act`` now and every so often, in a thread."""
    stop = threading.Event()

    def loop() -> None:
        act()
        while not stop.wait(every_seconds):
            act()

    thread = threading.Thread(target=loop, name="bench-repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(STOP_SECONDS)
