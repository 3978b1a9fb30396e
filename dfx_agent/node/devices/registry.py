"""Every backend that lies in ``backends``, each read in a thread of its own.

A driver that fails, or that never answers, costs its own devices and nothing else: the agent's
reading takes what was read last.
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
from dfx_agent.node.devices.protocol import Backend
from dfx_agent.snapshot import DeviceRow

READ_EVERY_SECONDS = 1.0
LATE_SECONDS = 15.0
# a library that cannot be used now may be later: a driver is loaded, a container is given devices
RETRY_SECONDS = 60.0


class LateDeviceError(Exception):
    """It was asked, and has not answered since."""

    is_told = True  # one line for people: its traceback says nothing more


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows of one look; shares in them are over ``begin_ns`` to ``end_ns``, monotonic."""

    rows: tuple[DeviceRow, ...] = ()
    begin_ns: int = 0
    end_ns: int = 0


class DeviceReader:
    """One backend, by the name of its module."""

    def __init__(self, name: str, make: Callable[[], Backend]) -> None:
        self.name = name
        self._make = make
        self._stop = threading.Event()
        self._reading = Reading()
        self.num_told = 0  # readings and failures
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self._asked_at: float | None = None  # while an answer is awaited
        self._thread = threading.Thread(target=self._loop, name=f"dfx-{name}", daemon=True)

    def start(self) -> None:
        self._asked_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Waits for nobody: a driver may hang."""
        self._stop.set()

    @property
    def is_over(self) -> bool:
        """It has found that there are no such devices."""
        return self._asked_at is None and not self.num_told

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def newest(self) -> tuple[DeviceRow, ...]:
        """What was read last; raises what was raised then, or LateDeviceError."""
        return self.newest_reading().rows

    def newest_reading(self) -> Reading:
        """The same, and when that was."""
        asked_at = self._asked_at
        if asked_at is not None and time.monotonic() - asked_at > LATE_SECONDS:
            raise LateDeviceError(
                f"no answer for more than {LATE_SECONDS:.0f} s: its driver hangs; look into dmesg"
            )
        if self._error is not None:
            raise self._error.with_traceback(self._traceback)  # else each raise would add to it
        return self._reading

    def _loop(self) -> None:
        """Until it is stopped, or finds that it has no devices."""
        while not self._stop.is_set():
            try:
                if not self._use():
                    return
            except Exception as error:  # noqa: BLE001 (it costs this kind of device alone)
                self._tell((), error)
                self._stop.wait(RETRY_SECONDS)

    def _use(self) -> bool:
        """Read until it is stopped, False where there is nothing to read.

        One that has failed for as long as a retry takes is made anew.
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

    def _read(self, backend: Backend) -> bool:
        self._asked_at = time.monotonic()
        try:
            self._tell(backend.read(), None)
        except Exception as error:  # noqa: BLE001 (asked again a second later)
            self._tell((), error)
        return self._error is None

    def _tell(self, rows: tuple[DeviceRow, ...], error: Exception | None) -> None:
        self._traceback = error.__traceback__ if error else None
        now_ns = time.monotonic_ns()
        self._reading = Reading(rows, self._reading.end_ns or now_ns, now_ns)
        self._error, self._asked_at = error, None
        self.num_told += 1


def found() -> tuple[DeviceReader, ...]:
    """One for each module of ``backends``, by name; not started."""
    names = sorted(module.name for module in pkgutil.iter_modules(backends.__path__))
    return tuple(DeviceReader(name, _maker(name)) for name in names)


def _maker(name: str) -> Callable[[], Backend]:
    def make() -> Backend:
        backend: Backend = import_module(f"{backends.__name__}.{name}").Backend()
        return backend

    return make
