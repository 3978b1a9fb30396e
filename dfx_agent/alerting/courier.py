"""A thread that brings what waits in an outbox to one receiver, and tries again when that fails."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from dfx_agent.alerting.notification import Notification
from dfx_agent.alerting.transport import DeliveryError, Endpoint, Retry
from dfx_agent.snapshot import DeliveryRow

_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Batch:
    """One post: ``body`` is JSON, ``items`` are the outbox's own names of what is in it."""

    body: Any
    items: tuple[Any, ...]


class Outbox(Protocol):
    """What one receiver has to be told; no input or output, one caller at a time.

    Times are Unix seconds. ``num_dropped`` counts what will never be delivered.
    """

    num_dropped: int

    @property
    def num_waiting(self) -> int: ...

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None: ...

    def resume(self, told: Mapping[str, Notification]) -> None: ...

    def let_go(self, named: Collection[tuple[str, str]]) -> None: ...

    def told(self) -> dict[str, Notification]: ...

    def next_batch(self, now_seconds: float) -> Batch | None: ...

    def taken(self, batch: Batch, now_seconds: float) -> None:
        """The receiver has it, or will never take it: do not post it again soon."""


class Courier:
    """A ``Receiver``: one endpoint, one outbox, one thread."""

    def __init__(
        self, kind: Literal["alertmanager", "webhook"], endpoint: Endpoint, outbox: Outbox
    ) -> None:
        self.endpoint = endpoint
        self._kind = kind
        self._outbox = outbox
        self._retry = Retry()
        self._retry_at = 0.0
        self._is_stopping = False
        self._is_reached: bool | None = None
        self._num_sent = self._num_failed = 0
        self._last_error = ""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name=f"dfx-{kind}", daemon=True)

    @property
    def key(self) -> str:
        digest = hashlib.sha256(self.endpoint.url.encode()).hexdigest()  # it may hold a secret
        return f"{self._kind}:{digest[:16]}"

    def start(self) -> None:
        self._thread.start()

    def resume(self, told: Mapping[str, Notification]) -> None:
        with self._changed:
            self._outbox.resume(told)

    def told(self) -> dict[str, Notification]:
        with self._changed:
            return self._outbox.told()

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None:
        with self._changed:
            self._outbox.update(firing, now_seconds)
            self._changed.notify()

    def let_go(self, named: Collection[tuple[str, str]]) -> None:
        with self._changed:
            self._outbox.let_go(named)

    def row(self) -> DeliveryRow:
        with self._changed:
            return DeliveryRow(
                kind=self._kind,
                target=self.endpoint.target,
                is_reached=self._is_reached,
                num_sent=self._num_sent,
                num_failed=self._num_failed,
                num_dropped=self._outbox.num_dropped,
                num_waiting=self._outbox.num_waiting,
                last_error=self._last_error,
            )

    def finish(self) -> None:
        """One last attempt at what waits, whatever the back-off says."""
        with self._changed:
            self._is_stopping = True
            self._retry_at = 0.0
            self._changed.notify()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            with self._changed:
                batch = self._due()
                if batch is None:
                    if self._is_stopping:
                        return
                    self._changed.wait(_LOOK_SECONDS)
                    continue
            self._deliver(batch)

    def _due(self) -> Batch | None:
        if time.monotonic() < self._retry_at:
            return None
        return self._outbox.next_batch(time.time())

    def _deliver(self, batch: Batch) -> None:
        try:
            self.endpoint.post(batch.body)
        except DeliveryError as error:
            self._failed(batch, error)
            return
        with self._changed:
            self._is_reached, self._last_error = True, ""
            self._num_sent += len(batch.items)
            self._retry.succeeded()
            self._outbox.taken(batch, time.time())

    def _failed(self, batch: Batch, error: DeliveryError) -> None:
        with self._changed:
            self._is_reached, self._last_error = False, str(error)
            self._num_failed += 1
            if error.is_final:
                self._outbox.num_dropped += len(batch.items)
                self._outbox.taken(batch, time.time())
            else:
                self._retry_at = time.monotonic() + self._retry.failed()
