"""Delivers the alerts of an outbox to one receiver in a thread, with retries."""

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

_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class AlertPost:
    """One HTTP post."""

    body: Any
    """JSON document."""
    items: tuple[Any, ...]
    """The alerts in it, in the outbox's own form."""


class Outbox(Protocol):
    """The alerts that one receiver must get. No input or output; one caller at a time.

    Times are Unix seconds.
    """

    num_dropped: int
    """Alerts that will never be delivered."""

    @property
    def num_waiting(self) -> int: ...

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None: ...

    def resume(self, delivered: Mapping[str, Notification]) -> None: ...

    def drop(self, named: Collection[tuple[str, str]]) -> None: ...

    def delivered(self) -> dict[str, Notification]: ...

    def next_batch(self, now_seconds: float) -> AlertPost | None: ...

    def confirm(self, batch: AlertPost, now_seconds: float) -> None:
        """The receiver has accepted or finally refused the batch: do not post it again soon."""


class Courier:
    """Delivers to one receiver in its own thread. No call except ``join`` waits for the network."""

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
        """Stable identity of the receiver without secrets."""
        digest = hashlib.sha256(
            self.endpoint.url.encode()
        ).hexdigest()  # the URL may contain a secret
        return f"{self._kind}:{digest[:16]}"

    def start(self) -> None:
        self._thread.start()

    def resume(self, delivered: Mapping[str, Notification]) -> None:
        """Set what the previous agent delivered as firing, by fingerprint; before ``start``."""
        with self._changed:
            self._outbox.resume(delivered)

    def delivered(self) -> dict[str, Notification]:
        """Alerts that the receiver has accepted as firing, and whose end it has not accepted."""
        with self._changed:
            return self._outbox.delivered()

    def update(self, firing: Mapping[str, Notification], now_seconds: float) -> None:
        """Set all firing alerts by fingerprint. Alerts that are missing have ended."""
        with self._changed:
            self._outbox.update(firing, now_seconds)
            self._changed.notify()

    def drop(self, named: Collection[tuple[str, str]]) -> None:
        """Drop alerts with these (name, severity) without an end: the hub delivers them now."""
        with self._changed:
            self._outbox.drop(named)

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
        """Make one last attempt to deliver waiting alerts, ignoring the back-off."""
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
                    self._changed.wait(_POLL_SECONDS)
                    continue
            self._deliver(batch)

    def _due(self) -> AlertPost | None:
        if time.monotonic() < self._retry_at:
            return None
        return self._outbox.next_batch(time.time())

    def _deliver(self, batch: AlertPost) -> None:
        try:
            self.endpoint.post(batch.body)
        except DeliveryError as error:
            self._failed(batch, error)
            return
        with self._changed:
            self._is_reached, self._last_error = True, ""
            self._num_sent += len(batch.items)
            self._retry.succeeded()
            self._outbox.confirm(batch, time.time())

    def _failed(self, batch: AlertPost, error: DeliveryError) -> None:
        with self._changed:
            self._is_reached, self._last_error = False, str(error)
            self._num_failed += 1
            if error.is_final:
                self._outbox.num_dropped += len(batch.items)
                self._outbox.confirm(batch, time.time())
            else:
                self._retry_at = time.monotonic() + self._retry.failed()
