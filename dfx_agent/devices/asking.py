"""Questions to one device: what it does not tell is None, what it refuses is told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Asking:
    """One look at one device.

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
