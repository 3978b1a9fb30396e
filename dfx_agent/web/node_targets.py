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

from dfx_agent.hub.otlp.intake import AgentTarget, Intake
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
