"""Server-sent events over a real socket: at once, on change, shared, ended with the server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from scripted_source import ScriptedSource

from dfx_agent.web import app as app_module
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server


class Clock:
    """Stands still unless told; a snapshot of the same instant is the same snapshot."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock) -> Iterator[Server]:
    source = ScriptedSource(clock=clock)
    server = Server(
        create_app(source, lambda accept: (b"", "text/plain")), Listener("127.0.0.1", 0)
    )
    server.start()
    yield server
    server.stop()


class StreamReader(threading.Thread):
    """Reads the stream until it ends; frames are (arrival, lines of one event)."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.frames: list[tuple[float, list[str]]] = []
        self.error: httpx.HTTPError | None = None
        self.start()

    def run(self) -> None:
        lines: list[str] = []
        try:
            with httpx.stream("GET", f"{self.url}/api/v1/stream", timeout=15) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                for line in answer.iter_lines():
                    if line:
                        lines.append(line)
                    elif lines:
                        self.frames.append((time.monotonic(), lines))
                        lines = []
        except httpx.HTTPError as error:
            self.error = error

    def snapshots(self) -> list[dict]:
        events = [lines for _, lines in list(self.frames) if lines[0] == "event: snapshot"]
        return [json.loads(lines[2].removeprefix("data: ")) for lines in events]

    def wait_for(self, num_snapshots: int, timeout_seconds: float = 3.0) -> float:
        """Seconds until that many snapshots had come."""
        began = time.monotonic()
        while len(self.snapshots()) < num_snapshots:
            assert time.monotonic() - began < timeout_seconds, self.frames
            time.sleep(0.005)
        return time.monotonic() - began


def test_first_event_comes_at_once_with_the_agents_clock(server):
    listener = StreamReader(server.url)
    assert listener.wait_for(1) < 1.0
    retry, event = (lines for _, lines in listener.frames)
    assert retry == ["retry: 1000"]
    assert abs(float(event[1].removeprefix("id: ")) - time.time()) < 5
    assert len(listener.snapshots()[0]["runs"][0]["ranks"]) == 4


def test_change_is_told_and_silence_is_not(server, clock):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    time.sleep(0.6)
    assert len(listener.snapshots()) == 1
    clock.seconds += 1
    assert listener.wait_for(2) < 0.5
    first, second = listener.snapshots()
    assert second["time_seconds"] - first["time_seconds"] == 1


def test_at_most_four_events_per_second(server, clock):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    begin = time.monotonic()
    while len(listener.snapshots()) < 8:
        clock.seconds += 0.5  # the scripted source makes a new snapshot each 0.25 s
        time.sleep(0.01)
    assert time.monotonic() - begin > 6 / 4  # the first one is there, the next comes at once


def test_listeners_share_one_serialisation(server, clock):
    stream = server._app.state.stream
    encoded = []
    encode = stream._encode
    stream._encode = lambda snapshot: encoded.append(snapshot) or encode(snapshot)
    listeners = [StreamReader(server.url) for _ in range(5)]
    for listener in listeners:
        listener.wait_for(1)
    clock.seconds += 1
    for listener in listeners:
        listener.wait_for(2)
    assert len(encoded) == 2
    assert all(listener.snapshots() == listeners[0].snapshots() for listener in listeners)


def test_heartbeat_keeps_a_silent_stream_open(server, monkeypatch):
    monkeypatch.setattr(app_module, "HEARTBEAT_SECONDS", 0.2)
    listener = StreamReader(server.url)
    listener.wait_for(1)
    time.sleep(1.0)
    beats = [lines for _, lines in listener.frames if lines[0].startswith(":")]
    assert 3 <= len(beats) <= 5


def test_stop_ends_open_streams_within_two_seconds(server, caplog):
    listeners = [StreamReader(server.url) for _ in range(2)]
    for listener in listeners:
        listener.wait_for(1)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 2.0
    for listener in listeners:
        listener.join(1.0)
        assert not listener.is_alive()
        assert listener.error is None, "the stream must end, not break"
    assert not server._thread.is_alive()
    assert caplog.messages == []


def test_listener_that_leaves_is_forgotten(server, clock):
    with httpx.stream("GET", f"{server.url}/api/v1/stream", timeout=5) as answer:
        next(answer.iter_bytes())
    clock.seconds += 1
    listener = StreamReader(server.url)
    assert listener.wait_for(1) < 1.0
