"""Views as server-sent events: a whole one first and after a gap, then what changed.

``whole`` is ``{"version": n, "view": {...}}``, ``patch`` is ``{"version": n, "patch": {...}}`` of
version n - 1 (``delta`` says how it looks). Who holds another version opens the stream anew. The
id of an event is the agent's clock (Unix seconds) when it was sent, so that a browser with another
clock can still tell how old a view is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from anyio import to_thread
from pydantic_core import from_json, to_json

from dfx_agent.snapshot import Snapshot, Source
from dfx_agent.snapshot.document import Document
from dfx_agent.web.delta import Json, diff
from dfx_agent.web.view import Look, View, Viewer

REFRESH_SECONDS = 0.25
LOOK_SECONDS = 0.05
HEARTBEAT_SECONDS = 10.0
# of a core, for all pages: a large job is shown less often, not at the price of its machine
MAX_SHARE = 0.15

_ENCODE = Document[View](View).dumped


class Told(NamedTuple):
    """What listeners get who have the version before; ``patch`` is empty where there was none."""

    version: int
    whole: bytes
    patch: bytes

    def after(self, version: int) -> bytes:
        """The event for who has ``version``, without its id."""
        if version == self.version - 1 and self.patch:
            return b"event: patch\ndata: " + self.patch
        return b"event: whole\ndata: " + self.whole


class Channel:
    """What the listeners of one look are told, made once for all of them."""

    def __init__(self, source: Source, look: Look) -> None:
        self._source = source
        self._viewer = Viewer(look)
        self._snapshot: Snapshot | None = None
        self._view: Json = None
        self._refresh_at = 0.0
        self._is_refreshing = False
        self.told = Told(0, b"", b"")
        self.num_listeners = 0

    async def refresh(self, num_looks: int) -> None:
        """Look, if it is time to: in a thread, as a snapshot of many ranks takes its time."""
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
        """Processor seconds that a new view took; 0 when there is nothing new."""
        begin = time.thread_time()
        snapshot = self._source.snapshot()
        if snapshot is self._snapshot:
            return 0.0
        encoded = _ENCODE(self._viewer.view(snapshot))
        view, version = from_json(encoded), self.told.version + 1
        patch = diff(self._view, view) if version > 1 else None
        whole = b'{"version":%d,"view":%b}' % (version, encoded)
        told = b'{"version":%d,"patch":%b}' % (version, to_json(patch)) if patch else b""
        self._snapshot, self._view = snapshot, view
        self.told = Told(version, whole, told)
        return time.thread_time() - begin


class ViewStream:
    """The streams of all pages."""

    def __init__(self, source: Source) -> None:
        self._source = source
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
                now, told = time.monotonic(), channel.told
                if told.version != version:
                    yield b"id: %.3f\n%b\n\n" % (time.time(), told.after(version))
                    version, beat_at = told.version, now + HEARTBEAT_SECONDS
                elif now >= beat_at:
                    yield b": nothing new\n\n"
                    beat_at = now + HEARTBEAT_SECONDS
                await asyncio.sleep(LOOK_SECONDS)

    @contextmanager
    def _channel(self, look: Look) -> Iterator[Channel]:
        """One for all who look alike, gone with the last of them."""
        channel = self._channels.setdefault(look, Channel(self._source, look))
        channel.num_listeners += 1
        try:
            yield channel
        finally:
            channel.num_listeners -= 1
            if not channel.num_listeners:
                del self._channels[look]
