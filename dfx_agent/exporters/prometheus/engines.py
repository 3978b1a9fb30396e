"""Rollout engines as Prometheus families, by the catalogue's names."""

from __future__ import annotations

from urllib.parse import urlsplit

from dfx_agent.catalogue import engines
from dfx_agent.exporters.prometheus.ranks import Page, add_values
from dfx_agent.snapshot import RunRow


def add_engines(page: Page, run: RunRow, node: str) -> None:
    """Each replica by itself: a sum or a mean would hide the bad one."""
    for engine in run.engines.replicas if run.engines else ():
        key = run.run, node, engine.replica, engine.dp_rank
        address = urlsplit(engine.url).netloc
        about = "rollout", engine.engine, address, engine.worker, engine.model, engine.pd
        page.info(engines.INFO, (*key, *about))
        add_values(page, "engine", key, engine)
