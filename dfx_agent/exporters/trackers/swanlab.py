"""Steps to SwanLab; modes local and offline need no network and no account."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

from dfx_agent.base.errors import TrackerError
from dfx_agent.exporters.trackers.tracker import (
    Options,
    Tracker,
    checked_options,
    checked_settings,
    experiment_name,
    folder,
    library,
)

_PROJECT = "dfx-agent"
_LOG_DIR = "swanlog"
# the agent's terminal, machine and working tree do not belong to the job, so none is stored
_SETTINGS = {
    "interactive": False,
    "terminal": {"proxy_type": "none"},
    "probe": {"hardware": False, "monitor": False, "requirements": False, "git": False},
}
# set by us: one experiment per run
_OURS = frozenset({"reinit", "kwargs"})
# ROLL's YAML -> today's name; the login is a call of its own
_OF_ROLL = {"experiment_name": "name", "logdir": "log_dir"}
_LOGIN = "login_kwargs"


def open_tracker(options: Options) -> Tracker:
    """Options of ``swanlab.init``; ``settings`` is a mapping."""
    swanlab = library("swanlab", "swanlab")
    accepted = frozenset(inspect.signature(swanlab.init).parameters) - _OURS
    given = checked_options("swanlab", options, accepted | {_LOGIN, *_OF_ROLL})
    given = {_OF_ROLL.get(key, key): value for key, value in given.items()}
    login = given.pop(_LOGIN, None) or {}
    given["log_dir"] = str(folder("swanlab", given.get("log_dir", _LOG_DIR)))
    mode = given.get("mode") or os.environ.get("SWANLAB_MODE", "online")
    own = given.get("settings", {})
    validate = swanlab.Settings.model_validate
    checked_settings("swanlab", lambda: validate({"mode": mode, **own}))
    given["settings"] = {**_SETTINGS, **own}
    _check_mode(swanlab, mode, login)
    return partial(_begin, swanlab, {"project": _PROJECT, **given})


def _begin(swanlab: Any, options: Mapping[str, Any], run: str) -> SwanLabRun:
    """SwanLab allows one run at a time in a process, so it refuses a second run meanwhile."""
    settings = swanlab.Settings.model_validate(options["settings"])
    named = {**options, "name": experiment_name(options.get("name"), run), "settings": settings}
    return SwanLabRun(swanlab.init(**named))


class SwanLabRun:
    """SwanLab uses the time of writing as the time of a value."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:  # noqa: ARG002 (see the class)
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _check_mode(swanlab: Any, mode: str, login: Options) -> None:
    """Raises TrackerError if the package or the account that this mode needs is missing."""
    if mode == "local" and importlib.util.find_spec("swanboard") is None:
        raise TrackerError(
            "cannot open tracker swanlab: mode local needs swanboard: "
            "pip install 'swanlab[dashboard]', or set tracker_kwargs.swanlab.mode to offline"
        )
    if mode != "online":
        return
    try:
        swanlab.merge_settings(swanlab.Settings.model_validate({"interactive": False}))
        swanlab.login(**login)
    except Exception as error:  # noqa: BLE001 (whatever the library raises is the reason)
        reason = " ".join(str(part) for part in error.args)
        remedy = "run `swanlab login`, or set tracker_kwargs.swanlab.mode to offline"
        raise TrackerError(f"cannot open tracker swanlab: {reason}: {remedy}") from None
