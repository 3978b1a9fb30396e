"""Interface of a device backend, and what all backends use to read devices."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

from dfx_agent.snapshot import DeviceRow

T = TypeVar("T")


class DeviceBackend(Protocol):
    """All devices of one kind on this machine.

    Each backend is created, read and closed in its own thread, because a driver call may take any
    time. An exception affects this kind of device only. Libraries are imported in ``__init__``.
    """

    def probe(self) -> bool:
        """Whether this machine has such devices; called once, before all other methods."""

    def read(self) -> tuple[DeviceRow, ...]:
        """Current values of each device; None for a value that the device does not report.

        Failed queries of a single device are listed in its ``problems``.
        """

    def close(self) -> None:
        """Release the driver; no method is called afterwards."""


class DeviceError(Exception):
    """Devices exist but cannot be read. The text says why, and what to do."""

    is_one_line = True  # logged as one line, without a traceback


class CounterTotals:
    """Continues the counters of a driver when they restart.

    A counter decreases when the driver is reloaded or the counter wraps. Its new value is then
    added to what was counted before.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}

    def total(self, key: Hashable, value: float) -> float:
        """Total of a counter whose current value is ``value``; never decreases."""
        seen = self._seen.get(key)
        if seen is not None and value < seen:
            self._before[key] = self._before.get(key, 0.0) + seen
        self._seen[key] = value
        return self._before.get(key, 0.0) + value

    def totals(self, device: str, values: Mapping[str, float | None]) -> dict[str, float]:
        """Totals of several counters of one device, without those that are not reported."""
        return {
            name: self.total((device, name), value)
            for name, value in values.items()
            if value is not None
        }


class DeviceQueries:
    """Queries of one device in one read: a missing answer is None, a refusal becomes a problem.

    ``describe`` returns the text for an error of the library, "" if the device just lacks the
    feature. It raises the error if the whole device is unavailable.
    """

    def __init__(self, error: type[Exception], describe: Callable[[Exception], str]) -> None:
        self._error = error
        self._describe = describe
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def __call__(self, what: str, question: Callable[..., T], *arguments: Any) -> T | None:
        """Answer of one query; None if there is none. ``what`` names the query for people."""
        try:
            return question(*arguments)
        except self._error as error:
            line = self._describe(error)
        except AttributeError:  # the library is older than this function
            line = ""
        except Exception as error:  # noqa: BLE001 (only this value is missing then)
            line = f"cannot be read ({type(error).__name__}: {error})"
        if line:
            self._problems[f"{what}: {line}"] = None
        return None
