"""Steps to Weights & Biases, one W&B run per run; offline mode needs no network and no account."""

from __future__ import annotations

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
# the agent's terminal, machine and working tree do not belong to the job, so none is uploaded
_SETTINGS = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "x_disable_stats": True,
}
# set by us: one W&B run per run
_OURS = frozenset({"reinit"})
# of ROLL's YAML, which names no option of wandb.init
_OF_ROLL = frozenset({"api_key", "log_dir"})
_LOGIN_TIMEOUT_SECONDS = 15


def open_tracker(options: Options) -> Tracker:
    """Options of ``wandb.init``; ``settings`` is a mapping, and ``mode`` may be offline."""
    wandb = library("wandb", "wandb")
    accepted = frozenset(inspect.signature(wandb.init).parameters) - _OURS
    given = checked_options("wandb", options, accepted | _OF_ROLL)
    api_key = given.pop("api_key", None)
    if "log_dir" in given:
        given["dir"] = given.pop("log_dir")
    given["dir"] = str(folder("wandb", given.get("dir", os.environ.get("WANDB_DIR", "."))))
    mode = given.get("mode") or os.environ.get("WANDB_MODE", "online")
    own = given.get("settings", {})
    checked_settings("wandb", lambda: wandb.Settings(mode=mode, **own))
    given["settings"] = {**_SETTINGS, **own}
    if mode == "online":
        _log_in(wandb, api_key)
    return partial(_begin, wandb, {"project": _PROJECT, **given})


def _begin(wandb: Any, options: Mapping[str, Any], run: str) -> WandbRun:
    """Several runs at a time may be open in one process."""
    settings = wandb.Settings(**options["settings"])
    named = {**options, "name": experiment_name(options.get("name"), run), "settings": settings}
    return WandbRun(wandb.init(reinit="create_new", **named))


class WandbRun:
    """A call returns when wandb's own process has received the step."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, time_seconds: float, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "_timestamp": time_seconds}, step=step)

    def close(self) -> None:
        self._run.finish()


def _log_in(wandb: Any, api_key: str | None) -> None:
    """Raises TrackerError if there is no key, or if the server rejects it."""
    try:
        wandb.login(key=api_key, prompt=False, verify=True, timeout=_LOGIN_TIMEOUT_SECONDS)
        has_key = wandb.login(prompt=False)
        reason = "no API key"
    except Exception as error:  # noqa: BLE001 (whatever the library raises is the reason)
        has_key, reason = False, " ".join(str(error).split())
    if not has_key:
        remedy = "run `wandb login`, or set tracker_kwargs.wandb.mode to offline"
        raise TrackerError(f"cannot open tracker wandb: {reason}: {remedy}") from None
