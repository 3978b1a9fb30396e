"""Who else is there: the agent of the folder, its engines, Prometheus, Alertmanager, the hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dfx_agent.agent.config import AUTO, Config
from dfx_agent.base.lean_httpx import httpx
from dfx_agent.commands.doctor.finding import Finding
from dfx_agent.commands.ps.agent_client import NoAnswerError, of_folder
from dfx_agent.snapshot import RunRow, Snapshot

DEFAULT_PROMETHEUS = "http://127.0.0.1:9090"

_TIMEOUT_SECONDS = 3.0
_ASSETS = "add the agents to its scrape configuration: `dfx-agent assets DIR` writes one"


def findings(config: Config, prometheus: str | None) -> Iterator[Finding]:
    """``prometheus``: where it should be, None for the usual place."""
    yield from _agent(config)
    yield _prometheus(prometheus or DEFAULT_PROMETHEUS, is_named=prometheus is not None)
    for url in config.alertmanager:
        yield _answers("Alertmanager", f"{url.rstrip('/')}/-/healthy")
    if config.hub is not None and not AUTO.fullmatch(config.hub):
        yield _answers("hub", f"{config.hub.rstrip('/')}/healthz")


def _agent(config: Config) -> Iterator[Finding]:
    asked = of_folder(config, None)
    try:
        snapshot = None if asked is None else asked.snapshot()
    except NoAnswerError as error:
        yield Finding("agent", "problem", str(error), "see its log, or restart it")
        return
    if asked is None or snapshot is None:
        text = f"none follows {config.directory}"
        yield Finding("agent", "absent", text, "dfx-agent run, attach or serve starts one")
        yield Finding("engines", "absent", "found by an agent, of the jobs that it follows")
        return
    yield _follows(asked.url, snapshot)
    for run in snapshot.runs:
        yield _engines(run)


def _follows(url: str, snapshot: Snapshot) -> Finding:
    living = [rank for run in snapshot.runs for rank in run.ranks if rank.state == "live"]
    text = f"{url}, version {snapshot.agent.version}, follows {len(living)} living processes"
    faults = snapshot.agent.faults
    if faults:
        return Finding("agent", "problem", f"{text}; {faults[0].what}: {faults[0].message}")
    return Finding("agent", "ok", text)


def _engines(run: RunRow) -> Finding:
    replicas = run.engines.replicas if run.engines else ()
    if not replicas:
        text = f"none in run {run.run}; a training without rollout servers has none"
        return Finding("engines", "absent", text, "name those elsewhere in DFX_ENGINES")
    down = [engine for engine in replicas if engine.state != "up"]
    text = f"{len(replicas) - len(down)} of {len(replicas)} of run {run.run} are up"
    if down:
        return Finding("engines", "problem", f"{text}; replica {down[0].replica}: {down[0].reason}")
    return Finding("engines", "ok", text)


def _prometheus(url: str, *, is_named: bool) -> Finding:
    try:
        answer = _get(f"{url.rstrip('/')}/api/v1/query?query=count(dfx_agent_info)")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        state, remedy = "absent", "name it with --prometheus URL; the agent's page needs none"
        if is_named:
            state, remedy = "problem", "see whether it runs, and whether a proxy is in the way"
        reason = str(error) or type(error).__name__
        return Finding("Prometheus", "problem" if state == "problem" else "absent",
                       f"{url} does not answer ({reason})", remedy)  # fmt: skip
    found = answer.get("data", {}).get("result", [])
    if not found:
        return Finding("Prometheus", "problem", f"{url} answers and knows no agent", _ASSETS)
    return Finding("Prometheus", "ok", f"{url} scrapes {found[0]['value'][1]} agents")


def _answers(subject: str, url: str) -> Finding:
    try:
        httpx.get(url, timeout=_TIMEOUT_SECONDS).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        return Finding(subject, "problem", f"{url} does not answer ({reason})", "see that it runs")
    return Finding(subject, "ok", f"{url} answers")


def _get(url: str) -> dict[str, Any]:
    answer = httpx.get(url, timeout=_TIMEOUT_SECONDS)
    answer.raise_for_status()
    content: dict[str, Any] = answer.json()
    return content
