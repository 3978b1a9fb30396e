"""Views as server-sent events: a complete view first and after a gap, then changes.

``whole`` is ``{"version": n, "view": {...}}``, ``patch`` is ``{"version": n, "patch": {...}}`` for
version n - 1. A client with any other version opens the stream again. The id of an event is the
agent's clock (Unix seconds) when it was sent. So a browser with a different clock can still compute
how old a view is.

A patch is what changed between two JSON documents: ``patched(a, diff(a, b))`` is ``b``. It is JSON
itself, and one of three:

- ``{"v": value}``: take this value.
- ``{"s": {key: value}, "d": [key], "p": {key: patch}}`` of an object: set, drop, patch inside.
- ``{"o": [...], "p": {index: patch}}`` of a list of objects: its new order, each part either
  ``[begin, end]`` of the old list or ``{"v": rows}``, then patches by place in the new list.

Empty parts are left out. Rows are equal if their names (``ROW_KEYS``) are: that makes patches
shorter, but their correctness does not depend on it. The page has the same code in delta.js.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from anyio import to_thread
from pydantic_core import from_json, to_json

from dfx_agent.snapshot import Snapshot, Source
from dfx_agent.snapshot.document import Document
from dfx_agent.web.view import FullRows, Look, PageView, Viewer, as_they_are

Json = Any
Patch = dict[str, Any]

# what names a row of contract 2 among its neighbours
ROW_KEYS = (
    "run", "role", "rank", "pid", "id", "key", "kind", "name", "group", "stage", "method",
    "device", "signal", "symptom", "direction", "engine", "replica", "title",
)  # fmt: skip
REFRESH_SECONDS = 0.25
LOOK_SECONDS = 0.05
HEARTBEAT_SECONDS = 10.0
# of a core, for all pages: a large job is shown less often, not at the price of its machine
MAX_SHARE = 0.15

_ENCODE = Document[PageView](PageView).dumped


class StreamedView(NamedTuple):
    """One version of a view. ``patch``: for clients with the previous version, may be empty."""

    version: int
    whole: bytes
    patch: bytes

    def after(self, version: int) -> bytes:
        """The event for a client with ``version``, without its id."""
        if version == self.version - 1 and self.patch:
            return b"event: patch\ndata: " + self.patch
        return b"event: whole\ndata: " + self.whole


class Channel:
    """Events for the listeners of one look, built once for all of them."""

    def __init__(self, source: Source, look: Look, full_rows: FullRows = as_they_are) -> None:
        self._source = source
        self._viewer = Viewer(look, full_rows)
        self._snapshot: Snapshot | None = None
        self._view: Json = None
        self._refresh_at = 0.0
        self._is_refreshing = False
        self.latest = StreamedView(0, b"", b"")
        self.num_listeners = 0

    async def refresh(self, num_looks: int) -> None:
        """Build a new view if it is time to; in a thread, because many ranks take a while."""
        if self._is_refreshing or time.monotonic() < self._refresh_at:
            return
        self._is_refreshing = True
        try:
            busy_seconds = await to_thread.run_sync(self.look)
            if busy_seconds:
                pause = max(REFRESH_SECONDS, num_looks * busy_seconds / MAX_SHARE)
                self._refresh_at = time.monotonic() + pause
        finally:
            self._is_refreshing = False

    def look(self) -> float:
        """Build a new view. Returns the CPU seconds that it took, 0 if nothing is new."""
        begin = time.thread_time()
        snapshot = self._source.snapshot()
        if snapshot is self._snapshot:
            return 0.0
        encoded = _ENCODE(self._viewer.view(snapshot))
        view, version = from_json(encoded), self.latest.version + 1
        patch = diff(self._view, view) if version > 1 else None
        whole = b'{"version":%d,"view":%b}' % (version, encoded)
        change = b'{"version":%d,"patch":%b}' % (version, to_json(patch)) if patch else b""
        self._snapshot, self._view = snapshot, view
        self.latest = StreamedView(version, whole, change)
        return time.thread_time() - begin


class ViewStream:
    """The streams of all pages."""

    def __init__(self, source: Source, full_rows: FullRows = as_they_are) -> None:
        self._source, self._full_rows = source, full_rows
        self._channels: dict[Look, Channel] = {}
        self._closed = False

    def close(self) -> None:
        """End every open stream within ``LOOK_SECONDS``; may be called from any thread."""
        self._closed = True

    async def events(self, look: Look) -> AsyncIterator[bytes]:
        """One event now, one per change (at most 4 per second), a comment when nothing happens."""
        yield b"retry: 1000\n\n"
        with self._channel(look) as channel:
            version, beat_at = 0, time.monotonic() + HEARTBEAT_SECONDS
            while not self._closed:
                await channel.refresh(len(self._channels))
                now, latest = time.monotonic(), channel.latest
                if latest.version != version:
                    yield b"id: %.3f\n%b\n\n" % (time.time(), latest.after(version))
                    version, beat_at = latest.version, now + HEARTBEAT_SECONDS
                elif now >= beat_at:
                    yield b": nothing new\n\n"
                    beat_at = now + HEARTBEAT_SECONDS
                await asyncio.sleep(LOOK_SECONDS)

    @contextmanager
    def _channel(self, look: Look) -> Iterator[Channel]:
        """One channel per look; removed with its last listener."""
        channel = self._channels.setdefault(look, Channel(self._source, look, self._full_rows))
        channel.num_listeners += 1
        try:
            yield channel
        finally:
            channel.num_listeners -= 1
            if not channel.num_listeners:
                del self._channels[look]


def diff(old: Json, new: Json) -> Patch | None:
    """None if both are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new)
    if _are_rows(old) and _are_rows(new):
        return _of_rows(old, new)
    return None if _same(old, new) else {"v": new}


def patched(old: Json, patch: Patch | None) -> Json:
    """``old`` is not changed; unchanged parts are shared with it."""
    if patch is None:
        return old
    if "v" in patch:
        return patch["v"]
    if isinstance(old, list):
        return _patched_rows(old, patch)
    gone = set(patch.get("d", ()))
    rest = {key: value for key, value in old.items() if key not in gone}
    inner = {key: patched(old[key], part) for key, part in patch.get("p", {}).items()}
    return {**rest, **patch.get("s", {}), **inner}


def _same(old: Json, new: Json) -> bool:
    """Equality as in JSON: true is not 1."""
    if type(old) is not type(new):
        return False
    if isinstance(old, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return bool(old == new)


def _of_objects(old: dict[str, Json], new: dict[str, Json]) -> Patch | None:
    found: Patch = {"s": {}, "d": [key for key in old if key not in new], "p": {}}
    for key, value in new.items():
        before = old.get(key)
        if key not in old:
            found["s"][key] = value
        elif before is value:
            continue
        elif (inner := diff(before, value)) is not None:
            if "v" in inner:
                found["s"][key] = value
            else:
                found["p"][key] = inner
    return _whole(found)


def _of_rows(old: list[Json], new: list[Json]) -> Patch | None:
    places = {key: place for place, key in enumerate(_keys(old))}
    origins = [places.get(key) for key in _keys(new)]
    found: Patch = {"o": [], "p": {}}
    if origins != list(range(len(old))):
        found["o"] = list(_order(origins, new))
    for place, origin in enumerate(origins):
        if origin is not None and (inner := diff(old[origin], new[place])) is not None:
            found["p"][str(place)] = inner
    if not new and old:
        return {"v": []}
    return _whole(found)


def _order(origins: list[int | None], new: list[Json]) -> Iterable[Json]:
    """Ranges of neighbours that stay neighbours, and ranges of new rows."""
    begin = 0
    for end in range(1, len(origins) + 1):
        before, after = origins[end - 1], origins[end] if end < len(origins) else -2
        if (before is None and after is None) or (before is not None and after == before + 1):
            continue
        first = origins[begin]
        yield {"v": new[begin:end]} if first is None else [first, first + end - begin]
        begin = end


def _patched_rows(old: list[Json], patch: Patch) -> list[Json]:
    found: list[Json] = [] if "o" in patch else list(old)
    for part in patch.get("o", ()):
        found += part["v"] if isinstance(part, dict) else old[part[0] : part[1]]
    for place, inner in patch.get("p", {}).items():
        found[int(place)] = patched(found[int(place)], inner)
    return found


def _are_rows(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _keys(rows: list[Json]) -> Iterable[tuple[Json, ...]]:
    """A unique key for each row; rows with the same name are numbered."""
    times: Counter[tuple[Json, ...]] = Counter()
    for row in rows:
        name = tuple(v for key in ROW_KEYS if isinstance(v := row.get(key), str | int))
        times[name] += 1
        yield (*name, times[name])


def _whole(patch: Patch) -> Patch | None:
    parts = {part: value for part, value in patch.items() if value}
    return parts or None
