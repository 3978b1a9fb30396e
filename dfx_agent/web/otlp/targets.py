"""The agents of a job's nodes as targets of Prometheus: asked for over HTTP, and as a file.

One URL in ``http_sd_configs``, or one file in ``file_sd_configs``, scrapes the whole job.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from dfx_agent.web.otlp.intake import AgentTarget, Intake
from dfx_agent.web.targets import TargetGroup, agent_group

PATH = "/api/v1/targets"


def route(intake: Intake, *, is_local: bool) -> Route:
    def targets(_request: Request) -> Response:
        groups = target_groups(intake.targets(), is_local=is_local)
        return JSONResponse(
            [asdict(group) for group in groups], headers={"Cache-Control": "no-store"}
        )

    return Route(PATH, targets)


def target_groups(targets: tuple[AgentTarget, ...], *, is_local: bool) -> tuple[TargetGroup, ...]:
    """One for each agent; those that serve on loopback only where everything is on this machine."""
    found = (
        agent_group(target.url, target.node, target.runs, is_local=is_local) for target in targets
    )
    return tuple(group for group in found if group is not None)


class TargetsFile:
    """``write`` replaces the file as a whole where the targets are others than before."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._written: tuple[TargetGroup, ...] | None = None

    def write(self, groups: tuple[TargetGroup, ...]) -> None:
        """OSError where it cannot be written."""
        if groups == self._written:
            return
        text = json.dumps([asdict(group) for group in groups], indent=1)
        beside = f"{self._path}.{os.getpid()}.tmp"
        try:
            with open(beside, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(beside, self._path)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise
        self._written = groups
