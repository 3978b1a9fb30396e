"""Engines as Prometheus' HTTP service discovery has them: who scrapes them itself needs no file."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from dfx_agent.snapshot import EngineFacts, Snapshot


@dataclass(frozen=True)
class TargetGroup:
    """``targets``: one "host:port", as this machine reaches it. ``labels`` of its series."""

    targets: tuple[str, ...]
    labels: dict[str, str]


def target_groups(snapshot: Snapshot) -> tuple[TargetGroup, ...]:
    """Each endpoint once: several replicas behind a router are one target."""
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
