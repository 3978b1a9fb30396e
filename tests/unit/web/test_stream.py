"""Server-sent events over a real socket: at once, on change, shared, ended with the server."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_source import ScriptedSource

from dfx_agent.web import stream as stream_module
from dfx_agent.web.app import create_app
from dfx_agent.web.listener import Listener
from dfx_agent.web.server import Server
from dfx_agent.web.stream import ROW_KEYS, StreamedView, diff, patched

LEAVES = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text("ab")
KEYS = st.sampled_from(["a", "b", "__proto__", "v", "s", "o", "0", *ROW_KEYS[:3]])
ROWS = st.lists(st.dictionaries(KEYS, LEAVES, max_size=3), max_size=5)
DOCUMENTS = st.recursive(
    LEAVES | ROWS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
_ALLOWED_SECONDS = 60.0


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

    def __init__(self, url: str, query: str = "") -> None:
        super().__init__(daemon=True)
        self.url = f"{url}/api/v1/stream{query}"
        self.frames: list[tuple[float, list[str]]] = []
        self.error: httpx.HTTPError | None = None
        self.start()

    def run(self) -> None:
        lines: list[str] = []
        try:
            with httpx.stream("GET", self.url, timeout=_ALLOWED_SECONDS) as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                for line in answer.iter_lines():
                    if line:
                        lines.append(line)
                    elif lines:
                        self.frames.append((time.monotonic(), lines))
                        lines = []
        except httpx.HTTPError as error:
            self.error = error

    def events(self) -> list[tuple[str, dict]]:
        frames = [lines for _, lines in list(self.frames) if lines[0].startswith("id: ")]
        return [
            (event.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
            for _, event, data in frames
        ]

    def snapshots(self) -> list[dict]:
        """The views, put together as the page does."""
        found: list[dict] = []
        for event, data in self.events():
            view = data["view"] if event == "whole" else patched(found[-1], data["patch"])
            found.append(view)
        return found

    def wait_for(self, num_snapshots: int) -> None:
        """Until that many snapshots have come."""
        self.wait(lambda: len(self.snapshots()) >= num_snapshots)

    def wait(self, has_come: Callable[[], bool]) -> None:
        end = time.monotonic() + _ALLOWED_SECONDS
        while not has_come():
            assert time.monotonic() < end, self.frames
            time.sleep(0.005)


def test_first_event_comes_at_once_with_the_agents_clock(server):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    retry, event = (lines for _, lines in listener.frames)
    assert retry == ["retry: 1000"]
    assert abs(float(event[0].removeprefix("id: ")) - time.time()) < 5
    assert len(listener.snapshots()[0]["runs"][0]["ranks"]) == 4


def test_changes_are_sent_and_silence_is_not(server, clock):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    time.sleep(0.6)
    assert len(listener.snapshots()) == 1
    clock.seconds += 1
    listener.wait_for(2)
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


def test_listeners_share_one_serialisation(server, clock, monkeypatch):
    encoded = []
    encode = stream_module._ENCODE
    monkeypatch.setattr(stream_module, "_ENCODE", lambda v: encoded.append(v) or encode(v))
    listeners = [StreamReader(server.url) for _ in range(5)]
    for listener in listeners:
        listener.wait_for(1)
    clock.seconds += 1
    for listener in listeners:
        listener.wait_for(2)
    assert len(encoded) == 2
    assert all(listener.snapshots() == listeners[0].snapshots() for listener in listeners)


def test_heartbeat_holds_a_silent_stream_open(server, monkeypatch):
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.2)
    listener = StreamReader(server.url)
    listener.wait_for(1)
    listener.wait(lambda: sum(lines[0][0] == ":" for _, lines in list(listener.frames)) >= 3)


def test_stop_ends_open_streams(server, caplog):
    listeners = [StreamReader(server.url) for _ in range(2)]
    for listener in listeners:
        listener.wait_for(1)
    server.stop()
    for listener in listeners:
        listener.join(_ALLOWED_SECONDS)
        assert not listener.is_alive()
        assert listener.error is None, "the stream must end, not break"
    assert not server._thread.is_alive()
    assert caplog.messages == []


def test_listener_that_leaves_is_forgotten(server, clock):
    with httpx.stream("GET", f"{server.url}/api/v1/stream", timeout=5) as answer:
        next(answer.iter_bytes())
    clock.seconds += 1
    listener = StreamReader(server.url)
    listener.wait_for(1)


def test_a_whole_view_comes_first_and_then_what_changed(server, clock):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    clock.seconds += 1
    listener.wait_for(2)
    (first, whole), (second, patch) = listener.events()
    assert (first, second) == ("whole", "patch")
    assert patch["version"] == whole["version"] + 1
    other = StreamReader(server.url)
    other.wait_for(1)
    assert [event for event, _ in other.events()] == ["whole"]
    assert other.snapshots() == listener.snapshots()[1:]


def test_who_missed_one_gets_the_whole():
    reported = StreamedView(7, b"whole", b"patch")
    assert reported.after(6) == b"event: patch\ndata: patch"
    for version in (0, 5, 8):
        assert reported.after(version) == b"event: whole\ndata: whole"
    assert StreamedView(1, b"whole", b"").after(0) == b"event: whole\ndata: whole"


def test_opened_ranks_of_a_large_job_are_sent_in_full(clock):
    source = ScriptedSource(96, clock=clock, num_past_steps=2)
    app = create_app(source, lambda accept: (b"", "text/plain"))
    server = Server(app, Listener("127.0.0.1", 0))
    server.start()
    try:
        listener = StreamReader(server.url, "?rank=actor/90&rank=actor/none")
        listener.wait_for(1)
        (run,) = listener.snapshots()[0]["runs"]
        assert len(run["places"]) == 96
        assert [row["rank"] for row in run["ranks"]] == ["90", *map(str, range(16))]
    finally:
        server.stop()


def test_a_costly_look_comes_less_often(server, clock, monkeypatch):
    listener = StreamReader(server.url)
    listener.wait_for(1)
    monkeypatch.setattr(stream_module, "MAX_SHARE", 1e-9)
    clock.seconds += 1
    listener.wait_for(2)
    clock.seconds += 1
    (channel,) = server._app.state.stream._channels.values()
    assert channel._refresh_at > time.monotonic() + 1000


def text(document: object) -> str:
    """Tells true from 1, and 1 from 1.0."""
    return json.dumps(document, sort_keys=True)


@settings(deadline=None, max_examples=500)
@given(DOCUMENTS, DOCUMENTS)
def test_a_patch_gives_the_new_document(old, new):
    before = copy.deepcopy(old)
    patch = json.loads(json.dumps(diff(old, new)))
    assert text(patched(old, patch)) == text(new)
    assert text(old) == text(before)


@settings(deadline=None)
@given(DOCUMENTS)
def test_unchanged_rows_are_not_sent(document):
    assert diff(document, copy.deepcopy(document)) is None


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6))
def test_rows_that_move_are_not_sent_again(order, num_kept):
    old = [{"rank": str(rank), "gauges": {"x": "long" * 50}} for rank in range(6)]
    new = [old[place] for place in order[:num_kept]]
    patch = diff(old, new)
    assert text(patched(old, patch)) == text(new)
    assert "long" not in json.dumps(patch)


def test_a_change_in_a_row_is_sent_alone():
    old = {"ranks": [{"role": "actor", "rank": str(rank), "step": 4} for rank in range(1000)]}
    new = copy.deepcopy(old)
    new["ranks"][500]["step"] = 5
    assert diff(old, new) == {"p": {"ranks": {"p": {"500": {"s": {"step": 5}}}}}}


def test_the_oldest_step_leaves_and_one_comes():
    old = [{"key": f"actor/{step}", "mean": 1.0} for step in range(8)]
    new = [*old[1:], {"key": "actor/8", "mean": 1.0}]
    assert diff(old, new) == {"o": [[1, 8], {"v": [new[-1]]}]}
