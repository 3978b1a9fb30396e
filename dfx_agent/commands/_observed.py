"""What is known of this machine's runs now: from the agent that follows them, else from segments.

An agent has history that a fresh reader has not, so it is asked first, if it is the one that holds
the folder's lock: another one on that port follows other jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfx_agent.agent import config as configuration
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.errors import UsageError
from dfx_agent.wire import SegmentError

DEFAULT_URL = "http://127.0.0.1:9931"

_TIMEOUT_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 1.0
_LONGEST_WATCH_SECONDS = 86400.0


@dataclass(frozen=True)
class Observed:
    """A snapshot as JSON has it, where it is from, and the folder of the segments."""

    source: str
    directory: str
    snapshot: dict[str, Any]

    @property
    def runs(self) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.snapshot["runs"]
        return runs


def add_observing_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of verbs that look once and say what they see."""
    parser.add_argument("--run", metavar="NAME", help="only this run")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"agent to ask ({DEFAULT_URL} if it follows DIR, else the segments are read)",
    )
    parser.add_argument("--token-file", metavar="FILE", help="token of that agent")


def observe(
    args: argparse.Namespace,
    seconds: float,
    is_enough: Callable[[Observed], bool] = lambda _: True,
    *,
    asks_again: bool = False,
) -> Observed:
    """Look at segments for ``seconds`` or until it ``is_enough``; ask an agent once, or as long.

    UsageError when the agent that was named does not answer, or when there is no such run.
    """
    if not 0 <= seconds <= _LONGEST_WATCH_SECONDS:
        raise UsageError(f"--watch {seconds:g}: use 0 to {_LONGEST_WATCH_SECONDS:.0f} seconds")
    config = configuration.load({"directory": args.directory}, os.environ, None)
    url, token = args.url or DEFAULT_URL, _token(args.token_file)
    deadline = time.monotonic() + seconds
    seen = _ask(url, token, config, is_named=args.url is not None)
    if seen is None:
        return _of_run(_read(config, seconds, is_enough), args.run)
    while asks_again and not is_enough(seen) and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        seen = _ask(url, token, config, is_named=True) or seen
    return _of_run(seen, args.run)


def _of_run(seen: Observed, run: str | None) -> Observed:
    if run is None:
        return seen
    names = [row["run"] for row in seen.runs]
    if run not in names:
        known = f"there are {', '.join(names)}" if names else "no run is observed"
        raise UsageError(f"no run named {run}: {known}")
    runs = [row for row in seen.runs if row["run"] == run]
    return dataclasses.replace(seen, snapshot={**seen.snapshot, "runs": runs})


def _ask(url: str, token: str | None, config: Config, *, is_named: bool) -> Observed | None:
    """The agent's snapshot; None when there is no agent of this folder and none was named."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url {url}: write http://HOST:PORT")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        address = url.rstrip("/") + "/api/v1/snapshot"
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 (checked above)
        # a proxy for the Internet has no business between us and an agent
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
            snapshot = json.load(response)
        agent, _ = snapshot["agent"], snapshot["runs"]
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError) as error:
        if is_named:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UsageError(f"no snapshot from {url} ({reason}): is an agent there?") from None
        return None
    if not is_named and _lock_owner(config.directory) not in {
        agent.get("pid"),
        agent.get("other_agent_pid"),
    }:
        return None
    return Observed(url, config.directory, snapshot)


def _read(config: Config, seconds: float, is_enough: Callable[[Observed], bool]) -> Observed:
    try:
        agent = Agent(config, reap=False)
    except SegmentError as error:
        raise UsageError(str(error)) from None
    deadline = time.monotonic() + seconds
    agent.poll()
    while True:
        time.sleep(config.poll_seconds)  # steps are accounted one reading behind
        agent.poll()
        seen = Observed("segments", config.directory, dataclasses.asdict(agent.snapshot()))
        if time.monotonic() >= deadline or is_enough(seen):
            agent.stop()
            return seen


def _lock_owner(directory: str) -> int | None:
    """Pid of the agent that reaps in this folder."""
    try:
        text = Path(directory, "agent.lock").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None


def _token(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {error}") from None
