"""Assembles the hub of a job: the facts of its nodes, one page, one list of targets."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from dfx_agent.agent.config import Config
from dfx_agent.alerting.courier import Courier
from dfx_agent.alerting.evaluator import metrics_read
from dfx_agent.alerting.live import LiveAlerts, of_job
from dfx_agent.base.errors import ConfigError
from dfx_agent.base.own_memory import collect_rarely
from dfx_agent.catalogue.alerts.declared import ALERTS, alerts_with
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.commands.diagnose import diagnosis_text
from dfx_agent.commands.hub.hub_spans import NODE as SPANS_NODE
from dfx_agent.commands.hub.hub_spans import HubSpans
from dfx_agent.commands.hub.node_timelines import NodeTimelines
from dfx_agent.commands.hub.probing import Probing
from dfx_agent.commands.hub.shown_ranks import ShownRanks
from dfx_agent.commands.serve.delivery import receivers
from dfx_agent.commands.serve.options import listener_of, read_token
from dfx_agent.commands.serve.shutdown import wait_for_nodes
from dfx_agent.commands.serve.stored_history import StoredHistory
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter, run_samples
from dfx_agent.hub.access import Access, Strangers
from dfx_agent.hub.otlp import endpoint, traces
from dfx_agent.hub.otlp.intake import Intake
from dfx_agent.job.folds import JobFolds
from dfx_agent.snapshot import (
    NodeRow,
    ScalarHistory,
    SegmentProblem,
    SignalHistory,
    Snapshot,
    Source,
    SpansRow,
    StepRow,
    TimelineRow,
)
from dfx_agent.web import targets
from dfx_agent.web.app import create_app
from dfx_agent.web.server import HubProtocol, Server

_TARGETS_EVERY_SECONDS = 1.0
_DESCRIPTORS = 1 << 14
_SEE_OFF_SECONDS = 10.0


class Hub:
    """Web server and intake."""

    def __init__(self, config: Config, targets_file: str | None = None, node: str = "") -> None:
        """``node``: whose processes are on this machine, "" if that is not known."""
        self._listener = listener_of(config)
        token = read_token(config, self._listener.host)
        uids = frozenset() if token else frozenset({0, os.getuid()})
        (divergence,) = alerts_with(dict(config.thresholds), (DIVERGENCE,))
        strangers = Strangers()
        self._access = Access(
            token, config.token_file or "", uids, config.open_to_local_users, strangers.see
        )
        folds = JobFolds(divergence.condition)
        alert_receivers = receivers(config)
        self.intake = Intake(folds, delivers=bool(alert_receivers))
        self._probing = Probing(folds, self.intake.targets)
        self._spans = HubSpans(folds)
        self._timelines = NodeTimelines(
            folds,
            self.intake.targets,
            token,
            config.hub_ca_file,
            lambda: self._is_local,
            {SPANS_NODE: self._spans.timeline},
        )
        self._ranks = ShownRanks(self._timelines.rank_rows)
        self._source = _Source(folds, self.intake, self._timelines, self._spans.row, strangers)
        self._alerts = _alerts(config, folds, self._source, alert_receivers, lambda: self.url)
        self._history = StoredHistory(
            config, self._source, self._alerts.alerts, self._report_history, only_node=node
        )
        self._file = targets.TargetsFile(targets_file) if targets_file else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_targets, name="dfx-targets", daemon=True)

    @property
    def url(self) -> str:
        return self._listener.url

    def start(self) -> None:
        """Serve; ListenError when the address is taken, ConfigError for a file of targets."""
        self._listener.bind()
        _allow_descriptors()
        self._is_local = self._listener.is_loopback
        if self._file is not None:
            self._write_targets()
            self._thread.start()
        routes = (
            endpoint.route(self.intake),
            traces.route(self._spans),
            targets.route(self.intake, is_local=self._is_local),
            diagnosis_text.route(self._source.snapshot, ""),
            *self._history.routes(),
        )
        render = PrometheusExporter(self._source, self._alerts).render
        source, full = self._history.source, self._ranks.full
        app = create_app(
            source, render, self._access, self._alerts, routes, full,
            earlier_steps=source.earlier_steps,
        )  # fmt: skip
        self._server = Server(app, self._listener, protocol=HubProtocol)
        self._server.start()
        self._alerts.start()
        self._history.start()
        self._probing.start(is_local=self._is_local)
        collect_rarely()

    def see_nodes_off(self) -> None:
        """The job has ended here: what ended it may be known elsewhere, a few seconds later."""
        wait_for_nodes(self.intake.present, _SEE_OFF_SECONDS, _say)

    def stop(self) -> None:
        self._stop.set()
        self._probing.stop()
        self._alerts.stop()
        if not self._history.stop():
            _say("the last steps are not in the history: its disk did not answer in time")
        self._server.stop()
        self._ranks.close()
        self._timelines.close()
        self._spans.stop()
        self._listener.close()

    def _report_history(self, problem: str) -> None:
        """Say it, and show it with the problems of the hub. "": history is written again."""
        self._source.history_problem = problem
        _say(problem or "history is written again")

    def _keep_targets(self) -> None:
        is_well = True
        while not self._stop.wait(_TARGETS_EVERY_SECONDS):
            try:
                self._write_targets()
            except ConfigError as error:
                if is_well:
                    _say(str(error))
                is_well = False
            else:
                is_well = True

    def _write_targets(self) -> None:
        assert self._file is not None
        found = targets.agent_groups(self.intake.targets(), is_local=self._is_local)
        try:
            self._file.write(found)
        except OSError as error:
            raise ConfigError(
                f"cannot write the targets: {error.filename}: {error.strerror}"
            ) from None


_HubRows = tuple[tuple[NodeRow, ...], SpansRow | None, tuple[SegmentProblem, ...]]


class _Source:
    """The state of the job, and the nodes that reported it."""

    def __init__(
        self,
        folds: JobFolds,
        intake: Intake,
        timelines: NodeTimelines,
        spans: Callable[[], SpansRow | None],
        strangers: Strangers,
    ) -> None:
        self._folds = folds
        self._intake = intake
        self._timelines, self._spans, self._strangers = timelines, spans, strangers
        self._latest: tuple[Snapshot, _HubRows, Snapshot] | None = None
        self.history_problem = ""
        """Why the history is not written."""

    def snapshot(self) -> Snapshot:
        """The very same value until something of it is another."""
        job_snapshot = self._folds.snapshot()
        hub_rows = nodes, spans, strange = self._nodes(), self._spans(), self._problems()
        latest = self._latest
        if latest is not None and latest[0] is job_snapshot and latest[1] == hub_rows:
            return latest[2]
        num_polls = job_snapshot.agent.num_polls + 1  # it is ready before the first node comes
        problems = (*job_snapshot.agent.problems, *strange)
        agent = replace(
            job_snapshot.agent, num_polls=num_polls, nodes=nodes, spans=spans, problems=problems
        )
        whole = replace(job_snapshot, agent=agent)
        self._latest = job_snapshot, hub_rows, whole
        return whole

    def _problems(self) -> tuple[SegmentProblem, ...]:
        problem = self.history_problem
        row = [SegmentProblem("history", "exporter", problem)] if problem else []
        return (*self._strangers.problems(), *row)

    def _nodes(self) -> tuple[NodeRow, ...]:
        problems = self._timelines.problems()
        rows = self._intake.nodes()
        return tuple(
            replace(row, timeline_problem=problems[row.node]) if row.node in problems else row
            for row in rows
        )

    def scalar_history(self, run: str, keys: Sequence[str]) -> Iterable[ScalarHistory]:
        return self._folds.scalar_history(run, keys)

    def timeline(
        self,
        run: str,
        num_steps: int,
        ranks: Collection[tuple[str, str]] = (),
    ) -> tuple[TimelineRow, ...]:
        """Rows of the nodes that answer in time; ``snapshot`` names the other nodes."""
        return self._timelines.rows(run, num_steps, ranks)

    def signal_history(self, run: str, num_steps: int) -> SignalHistory:
        return self._folds.signal_history(run, num_steps)

    def closed_steps(self, run: str, after_step: int | None) -> Sequence[StepRow]:
        return self._folds.closed_steps(run, after_step)

    def step_scalars(
        self, run: str, after_step: int | None, since_seconds: float | None = None
    ) -> Mapping[int, Mapping[str, float]]:
        return self._folds.step_scalars(run, after_step, since_seconds)

    def first_scalar_step(self, run: str) -> int:
        return self._folds.first_scalar_step(run)

    def reset_signals(self, run: str) -> None:
        self._folds.reset_signals(run)


def _alerts(
    config: Config,
    folds: JobFolds,
    source: Source,
    alert_receivers: Sequence[Courier],
    page_url: Callable[[], str],
) -> LiveAlerts:
    """Those on verdicts, with the labels that the agents of all nodes give them."""
    alerts = of_job(alerts_with(dict(config.thresholds), ALERTS))
    wanted = metrics_read(alerts)
    live = LiveAlerts(
        source,
        lambda run: run_samples(run, wanted),
        alerts,
        alert_receivers,
        dict(config.alert_labels),
        page_url,
    )
    folds.await_alerts()
    live.join_incidents(folds.see_alerts)
    live.follow_symptoms(folds.signal_states)
    live.follow_verdicts()
    return live


def _say(text: str) -> None:
    print(f"dfx-agent: {text}", file=sys.stderr, flush=True)


def _allow_descriptors() -> None:
    """A connection for each node: as many as the system lets us have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
