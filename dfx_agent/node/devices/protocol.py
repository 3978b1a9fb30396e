"""What a kind of device has to have, to be read and shown, and what all kinds read with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

from dfx_agent.snapshot import DeviceRow

T = TypeVar("T")


class Backend(Protocol):
    """All devices of one kind on this machine.

    It is made, asked and closed in a thread of its own: a driver may take as long as it likes, and
    whatever is raised costs this kind of device alone. Libraries are imported in ``__init__``.
    """

    def probe(self) -> bool:
        """Whether there are such devices here; asked once, before anything else."""

    def read(self) -> tuple[DeviceRow, ...]:
        """Each of them as it is now; None in a field is what it does not tell.

        What one device cannot be asked is in its ``problems``.
        """

    def close(self) -> None:
        """It is not asked any more."""


class DeviceError(Exception):
    """A kind of device that is here and cannot be read: what is so, and what to do."""

    is_told = True  # one line for people: its traceback says nothing more


class Growing:
    """Counters of drivers that only go up: what was counted since the first look.

    A driver may be reloaded and a counter may wrap: a value that is smaller than the one before
    begins anew, and what it has counted since is added.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, float] = {}
        self._before: dict[Hashable, float] = {}

    def total(self, key: Hashable, value: float) -> float:
        """Of the counter that says ``value`` now: never less than was told."""
        seen = self._seen.get(key)
        if seen is not None and value < seen:
            self._before[key] = self._before.get(key, 0.0) + seen
        self._seen[key] = value
        return self._before.get(key, 0.0) + value

    def totals(self, device: str, values: Mapping[str, float | None]) -> dict[str, float]:
        """Of several counters of one device, without those that it does not tell."""
        return {
            name: self.total((device, name), value)
            for name, value in values.items()
            if value is not None
        }


class Asking:
    """One look at one device: what it does not tell is None, what it refuses is told once.

    ``told`` gives the line for people of an error of its library, "" where the device just has no
    such thing, and raises it where the device as a whole cannot be asked any more.
    """

    def __init__(self, error: type[Exception], told: Callable[[Exception], str]) -> None:
        self._error = error
        self._told = told
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def __call__(self, what: str, question: Callable[..., T], *arguments: Any) -> T | None:
        """The answer; None where there is none. ``what`` is asked for, in words."""
        try:
            return question(*arguments)
        except self._error as error:
            line = self._told(error)
        except AttributeError:  # a library that is older than the question
            line = ""
        except Exception as error:  # noqa: BLE001 (an answer that nobody can read costs itself)
            line = f"cannot be read ({type(error).__name__}: {error})"
        if line:
            self._problems[f"{what}: {line}"] = None
        return None
