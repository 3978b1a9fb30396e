"""Finds all backends in the folder ``backends``, and reads each in its own thread.

A driver that fails or hangs affects only its own devices: the agent uses the last values read.
"""

from __future__ import annotations

import pkgutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType

from dfx_agent.node.devices import backends
from dfx_agent.node.devices.protocol import DeviceBackend
from dfx_agent.snapshot import DeviceRow

READ_EVERY_SECONDS = 1.0
LATE_SECONDS = 15.0
# a library that fails now may work later: drivers are loaded, containers get devices
RETRY_SECONDS = 60.0


class LateDeviceError(Exception):
    """A driver call has not returned for a long time."""

    is_one_line = True  # logged as one line, without a traceback


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """Rows of one read; shares in them cover ``begin_ns`` to ``end_ns``, on the monotonic clock."""

    rows: tuple[DeviceRow, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0


class DeviceReader:
    """Reads one backend, which is named after its module."""

    def __init__(self, name: str, make: Callable[[], DeviceBackend]) -> None:
        self.name = name
        self._make = make
        self._stop = threading.Event()
        self._reading = DeviceReading()
        self.num_results = 0  # readings and failures
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self._asked_at: float | None = None  # begin of a driver call that has not returned
        self._thread = threading.Thread(target=self._loop, name=f"dfx-{name}", daemon=True)

    def start(self) -> None:
        self._asked_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for the thread, because a driver may hang."""
        self._stop.set()

    @property
    def is_over(self) -> bool:
        """Whether the backend has found no such devices."""
        return self._asked_at is None and not self.num_results

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def latest(self) -> tuple[DeviceRow, ...]:
        """Rows of the last reading; raises its error, or LateDeviceError."""
        return self.latest_reading().rows

    def latest_reading(self) -> DeviceReading:
        """The last reading; raises its error, or LateDeviceError."""
        asked_at = self._asked_at
        if asked_at is not None and time.monotonic() - asked_at > LATE_SECONDS:
            raise LateDeviceError(
                f"no answer for more than {LATE_SECONDS:.0f} s: the driver hangs; see dmesg"
            )
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)  # each raise would extend it
        return self._reading

    def _loop(self) -> None:
        """Run until stopped, or until the backend finds no devices."""
        while not self._stop.is_set():
            try:
                if not self._use():
                    return
            except Exception as error:  # noqa: BLE001 (affects this kind of device only)
                self._store_result((), error)
                self._stop.wait(RETRY_SECONDS)

    def _use(self) -> bool:
        """Read until stopped; False if there is nothing to read.

        A backend that has failed for RETRY_SECONDS is created again.
        """
        self._asked_at = time.monotonic()
        backend = self._make()
        if not backend.probe():
            self._asked_at = None
            return False
        well_at = time.monotonic()
        try:
            while not self._stop.is_set():
                if self._read(backend):
                    well_at = time.monotonic()
                elif time.monotonic() - well_at > RETRY_SECONDS:
                    return True
                self._stop.wait(READ_EVERY_SECONDS)
        finally:
            with suppress(Exception):
                backend.close()
        return True

    def _read(self, backend: DeviceBackend) -> bool:
        self._asked_at = time.monotonic()
        try:
            self._store_result(backend.read(), None)
        except Exception as error:  # noqa: BLE001 (the next read follows a second later)
            self._store_result((), error)
        return self._error is None

    def _store_result(self, rows: tuple[DeviceRow, ...], error: Exception | None) -> None:
        self._traceback = error.__traceback__ if error else None
        now_ns = time.monotonic_ns()
        self._reading = DeviceReading(rows, self._reading.end_ns or now_ns, now_ns)
        self._error, self._asked_at = error, None
        self.num_results += 1


def find_readers() -> tuple[DeviceReader, ...]:
    """One reader for each module of ``backends``, sorted by name and not started."""
    names = sorted(module.name for module in pkgutil.iter_modules(backends.__path__))
    return tuple(DeviceReader(name, _maker(name)) for name in names)


def _maker(name: str) -> Callable[[], DeviceBackend]:
    def make() -> DeviceBackend:
        backend: DeviceBackend = import_module(f"{backends.__name__}.{name}").Backend()
        return backend

    return make
