"""Targets for Prometheus' HTTP service discovery: engines of runs, and agents of nodes."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dfx_agent.base.loopback import is_loopback
from dfx_agent.hub.otlp.intake import AgentTarget, Intake
from dfx_agent.snapshot import EngineFacts, Snapshot

PATH = "/api/v1/targets"


@dataclass(frozen=True)
class TargetGroup:
    """``targets``: one "host:port" as reached from this machine; ``labels``: of its series."""

    targets: tuple[str, ...]
    labels: dict[str, str]


def target_groups(snapshot: Snapshot) -> tuple[TargetGroup, ...]:
    """Each endpoint once: replicas behind one router are one target."""
    found: dict[str, TargetGroup] = {}
    for run in snapshot.runs:
        for engine in run.engines.replicas if run.engines else ():
            if engine.url not in found:
                found[engine.url] = _group(engine, run.run, snapshot.agent.node)
    return tuple(found.values())


def _group(engine: EngineFacts, run: str, node: str) -> TargetGroup:
    parts = urlsplit(engine.url)
    labels = {
        "__scheme__": parts.scheme,
        "__metrics_path__": parts.path,
        "run": run,
        "node": node,
        "role": "rollout",
        "replica": "" if engine.worker else engine.replica,
        "pd": engine.pd,
    }
    return TargetGroup((parts.netloc,), {name: text for name, text in labels.items() if text})


def agent_group(
    url: str, node: str, runs: tuple[str, ...], *, is_local: bool
) -> TargetGroup | None:
    """The agent of a node; None where ``url`` is none, or a loopback of another machine.

    Its series name node and run themselves, so that these are labels for relabelling alone.
    """
    try:
        parts = urlsplit(url)
        is_found = parts.scheme in {"http", "https"} and parts.port is not None
    except ValueError:
        return None
    if not is_found or parts.hostname is None:
        return None
    if is_loopback(parts.hostname) and not is_local:
        return None
    labels = {
        "__scheme__": parts.scheme,
        "__metrics_path__": "/metrics",
        "__meta_dfx_node": node,
        "__meta_dfx_runs": ",".join(("", *runs, "")),
    }
    return TargetGroup((parts.netloc,), labels)


def route(intake: Intake, *, is_local: bool) -> Route:
    def targets(_request: Request) -> Response:
        groups = agent_groups(intake.targets(), is_local=is_local)
        return JSONResponse(
            [asdict(group) for group in groups], headers={"Cache-Control": "no-store"}
        )

    return Route(PATH, targets)


def agent_groups(targets: tuple[AgentTarget, ...], *, is_local: bool) -> tuple[TargetGroup, ...]:
    """One target per agent; agents on loopback only if all are on this machine."""
    found = (
        agent_group(target.url, target.node, target.runs, is_local=is_local) for target in targets
    )
    return tuple(group for group in found if group is not None)


class TargetsFile:
    """``write`` replaces the whole file when the targets have changed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written: tuple[TargetGroup, ...] | None = None

    def write(self, groups: tuple[TargetGroup, ...]) -> None:
        """Raises OSError if the file cannot be written."""
        if groups == self._written:
            return
        text = json.dumps([asdict(group) for group in groups], indent=1)
        temporary = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(temporary, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        self._written = groups
