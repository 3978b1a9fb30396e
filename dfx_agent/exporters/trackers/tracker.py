"""What a tracker is: somebody's place for numbers by step, such as TensorBoard.

Each tracker is one file of this folder with ``open_tracker(options)``, and no file imports its
library before that is called. An open tracker has everything that can be checked without a run.
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
    """One run in one tracker. Steps come in order, each once; any exception ends the writing."""

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:
        """Values may be NaN or infinite."""

    def close(self) -> None:
        """The run is over, or the writing failed."""


class Tracker(Protocol):
    """One open tracker; ``begin`` is called for each run that appears."""

    def begin(self, run: str) -> RunWriter:
        """Raises what the library raises when the run cannot be begun."""


def checked_options(tracker: str, options: Options, known: frozenset[str]) -> dict[str, Any]:
    """ConfigError that names the first option nobody knows."""
    for key in options:
        if key not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"tracker_kwargs.{tracker}: unknown key {key!r}: known are {listed}")
    return dict(options)


def checked_settings(tracker: str, build: Callable[[], Any]) -> Any:
    """What ``build`` makes of the library's own settings; ConfigError when it refuses them."""
    try:
        return build()
    except Exception as error:  # noqa: BLE001 (whatever the library raises is the reason)
        reason = " ".join(str(error).split())
        raise ConfigError(f"tracker_kwargs.{tracker}: {reason}") from None


def library(tracker: str, module: str) -> Any:
    """The tracker's library; TrackerError that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        install = f"pip install 'dfx-agent[{tracker}]'"
        raise TrackerError(f"cannot open tracker {tracker}: {error}: {install}") from None


def folder(tracker: str, path: object) -> Path:
    """The folder, made if it is not there; TrackerError when nothing can be written into it."""
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
    """A run's name as the name of a file: no slash, and never "." or ".."."""
    return quote(run, safe=" +=@,") if run.strip(".") else run.replace(".", "%2E") or "%"
