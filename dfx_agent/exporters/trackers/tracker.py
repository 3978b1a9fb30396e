"""Interface of a tracker, which stores metrics by step, for example TensorBoard.

Each tracker is one file of this folder with ``open_tracker(options)``, which imports the library.
Opening a tracker checks everything that can be checked without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from dfx_agent.base.errors import ConfigError, TrackerError

Options = Mapping[str, Any]


class RunWriter(Protocol):
    """Writes one run to one tracker, each step once and in order; an exception ends the writing."""

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:
        """Values may be NaN or infinite."""

    def close(self) -> None:
        """Called when the run is over, or when writing has failed."""


# an open tracker: called with the name of each new run; raises the library's exception if the run
# cannot be started
Tracker = Callable[[str], RunWriter]


def checked_options(tracker: str, options: Options, accepted: frozenset[str]) -> dict[str, Any]:
    """Raises ConfigError that names the first unknown option."""
    for key in options:
        if key not in accepted:
            listed = ", ".join(sorted(accepted)) or "none"
            raise ConfigError(
                f"tracker_kwargs.{tracker}: unknown key {key!r}: accepted keys are {listed}"
            )
    return dict(options)


def checked_settings(tracker: str, build: Callable[[], Any]) -> Any:
    """The library's settings object; ConfigError if the library rejects the options."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001 (whatever the library raises is the reason)
        reason = " ".join(str(error).split())
        raise ConfigError(f"tracker_kwargs.{tracker}: {reason}") from None


def library(tracker: str, module: str) -> Any:
    """Import the tracker's library; TrackerError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        install = f"pip install 'dfx-agent[{tracker}]'"
        raise TrackerError(f"cannot open tracker {tracker}: {error}: {install}") from None


def folder(tracker: str, path: object) -> Path:
    """The folder, created if needed; TrackerError if it is not writable."""
    made = Path(str(path)).absolute()
    try:
        made.mkdir(parents=True, exist_ok=True)
        probe = made / ".dfx-agent"
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = f"{made}: {error.strerror}"
        raise TrackerError(
            f"cannot open tracker {tracker}: {reason}: name another folder"
        ) from None
    return made


def experiment_name(given: object, run: str) -> str:
    """The name that is set, else the run's; ROLL's configuration writes ``${exp_name}`` for it."""
    return run if given is None else str(given).replace("${exp_name}", run)


def file_name(run: str) -> str:
    """A file name for a run: without slashes, and never "." or ".."."""
    return quote(run, safe=" +=@,") if run.strip(".") else run.replace(".", "%2E") or "%"
