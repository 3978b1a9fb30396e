"""The agent with everything around it, put together once for every verb that serves."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dfx_agent.agent import folder_token
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import AUTO, Config
from dfx_agent.agent.stored.document import StoredDocument
from dfx_agent.alerting import notification
from dfx_agent.alerting.evaluator import metrics_read
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.base.errors import ConfigError
from dfx_agent.base.own_memory import IN_AN_AGENT, OwnMemory, collect_rarely
from dfx_agent.catalogue.alerts.declared import ALERTS, alerts_with
from dfx_agent.commands.diagnose import diagnosis_text
from dfx_agent.commands.serve.delivery import receivers
from dfx_agent.commands.serve.options import listener_of, read_hub_token, read_token
from dfx_agent.commands.serve.shutdown import Scrapes, wait_for_scrape
from dfx_agent.commands.serve.span_segments import SpanSegments
from dfx_agent.commands.serve.stored_history import StoredHistory
from dfx_agent.exporters.otel.join import HubJoin
from dfx_agent.exporters.otel.push import STOP_SECONDS as OTLP_STOP_SECONDS
from dfx_agent.exporters.otel.push import OtlpPush
from dfx_agent.exporters.prometheus.exporter import (
    PrometheusExporter,
    SnapshotCollector,
    run_samples,
)
from dfx_agent.exporters.trackers.tracker import Tracker
from dfx_agent.exporters.trackers.writing import STOP_SECONDS, Trackers, open_trackers
from dfx_agent.facts.seat import Launch
from dfx_agent.shim import imports
from dfx_agent.web.listener import Listener
from dfx_agent.wire import SegmentError, variables

if TYPE_CHECKING:
    from dfx_agent.hub.access import Access
    from dfx_agent.web.server import Server

_DELIVERED_FILE = "told.json"


class Service:
    """Agent, alerts, trackers, exporters and web server.

    The constructor checks the agent's folder, the trackers and the push. ``listener`` is already
    bound, or differs from that of ``config``. ``launch``: the job that is started with the agent,
    if the job has several nodes.
    """

    def __init__(
        self, config: Config, listener: Listener | None = None, launch: Launch | None = None
    ) -> None:
        self._listener = listener or listener_of(config)
        self._config = config
        self._token = read_token(config, self._listener.host)
        self._server: Server | None = None
        self._scrapes = Scrapes()
        self._memory = OwnMemory()
        self._certificate = os.path.abspath(config.tls_cert) if config.tls_cert else ""
        self._linger_seconds = config.linger_seconds
        trackers = _trackers(config)
        self.otlp = _otlp(config, self._report_otlp)
        self._join = _join(config, self._report_hub)
        self.agent = Agent(config)
        self._node = variables.NODE.text() or self.agent.snapshot().agent.node
        self._spans = SpanSegments(
            config.directory, lambda: self.agent.snapshot().runs, lambda r: r.pid == os.getpid()
        )
        self.agent.follow_spans(self._spans.row)
        if self._join is not None:
            self.agent.collect_facts(self._node, launch)
            self.agent.follow_hub(self._join.row)
        self.trackers = Trackers(trackers, self.agent, self._report)
        self.alerts = _alerts(config, self.agent, lambda: self.url)
        self._history = StoredHistory(config, self.agent, self.alerts.alerts, self._report_history)
        if (join := self._join) is not None:
            self.alerts.share(lambda: join.is_delivered_by_hub, join.called)

    @property
    def url(self) -> str:
        return self._listener.url

    def bind(self) -> None:
        """ListenError when the address is taken, before anything else has happened."""
        self._listener.bind()

    def start(self) -> None:
        """Serve; ListenError when the address is taken."""
        self.bind()
        from dfx_agent.hub.otlp.traces import route
        from dfx_agent.web.app import create_app
        from dfx_agent.web.server import Server

        sources = self.agent, self.alerts, self.trackers, self.otlp
        exporter = PrometheusExporter(*sources)
        render = self._scrapes.watched(exporter.render)
        added = (
            route(self._spans),
            diagnosis_text.route(self.agent.snapshot, self._config.directory),
            *self._history.routes(),
        )
        source = self._history.source
        access, earlier = self._access(), source.earlier_steps
        memory = self.agent.memory_histories
        app = create_app(
            source, render, access, self.alerts, added, earlier_steps=earlier, memory_of=memory
        )
        self._server = Server(app, self._listener)
        self.agent.announce(self._listener.local_url, self._certificate)
        self.agent.start()
        self._server.start()
        self.alerts.start()
        self.trackers.start()
        self._history.start()
        self._memory.start()
        if self.otlp is not None:
            collect, instance = SnapshotCollector(*sources).collect, urlsplit(self.url).netloc
            self.otlp.start(self.agent, collect, instance)
        if self._join is not None:
            self._join.start(self.agent, self._node, self.url)
        collect_rarely(IN_AN_AGENT)

    def _access(self) -> Access:
        """Users of the job may read; requests that change something need the token."""
        from dfx_agent.hub.access import Access

        is_open, token_file = self._config.open_to_local_users, self._config.token_file
        if self._token is not None:
            return Access(self._token, token_file or "", is_open_to_local_users=is_open)
        uids = frozenset({0, os.getuid(), self.agent.folder_uid})
        directory = self._config.directory
        try:
            token = folder_token.made(directory)
        except (OSError, SegmentError) as error:
            _say(f"cannot store {folder_token.path(directory)} ({error}): no baseline can be reset")
            return Access(None, uids=uids, is_open_to_local_users=is_open)
        return Access(token, folder_token.path(directory), uids, is_open)

    def see_job_off(self) -> None:
        """The job that we were started with has ended: let Prometheus see it, if it scrapes us."""
        self.agent.see_job_ended()
        wait_for_scrape(self._scrapes, self._linger_seconds, _say)

    def stop(self) -> None:
        """Says on stderr which alerts and steps could not be delivered."""
        self._memory.stop()
        self._spans.stop()
        self.agent.stop()
        if self._join is not None and not self._join.stop():
            _say("the hub did not receive all data: it did not accept the last of it in time")
        self.alerts.stop()
        for name in self.trackers.stop():
            _say(
                f"tracker {name} is not done after {STOP_SECONDS:.0f} s: last steps may be missing"
            )
        if self.otlp is not None and not self.otlp.stop():
            _say(f"OpenTelemetry push is not done after {OTLP_STOP_SECONDS:.0f} s: some is missing")
        if not self._history.stop():
            _say("the last steps are not in the history: its disk did not answer in time")
        for row in self.alerts.alerts().deliveries:
            if row.num_waiting:
                what = f"{row.num_waiting} notifications not delivered to {row.kind} {row.target}"
                _say(f"{what}: {row.last_error}")
        if self._server is not None:
            self._server.stop()
        self._listener.close()

    def _report_otlp(self, signal: str, message: str) -> None:
        """An empty message: it is taken again."""
        if message:
            self._report("", f"otlp {signal}", message)
        else:
            _say(f"OpenTelemetry {signal} are taken again")
            self.agent.settle("", f"otlp {signal}")

    def _report_hub(self, message: str, is_well: bool) -> None:  # noqa: FBT001 (of a callback)
        if is_well:
            _say(message)
            self.agent.settle("", "hub")
        else:
            self._report("", "hub", message)

    def _report_history(self, problem: str) -> None:
        """An empty problem: history is written again."""
        if problem:
            self._report("", "history", problem)
        else:
            _say("history is written again")
            self.agent.settle("", "history")

    def _report(self, run: str, tracker: str, message: str) -> None:
        _say(message)
        self.agent.report(run, tracker, message)


def _say(text: str) -> None:
    print(f"dfx-agent: {text}", file=sys.stderr, flush=True)


def _trackers(config: Config) -> dict[str, Tracker]:
    """Under DFX_AGENT=1 this process is armed as well; what it writes is no job's."""
    if config.track_with:
        imports.cancel_all()
    return open_trackers(config.track_with, config.tracker_kwargs)


def _otlp(config: Config, report: Callable[[str, str], None]) -> OtlpPush | None:
    if config.otlp_endpoint is None:
        return None
    return OtlpPush(config.otlp_endpoint, config.otlp_signals, config.otlp_seconds, report)


def _join(config: Config, report: Callable[[str, bool], None]) -> HubJoin | None:
    if config.hub is None:
        return None
    if AUTO.fullmatch(config.hub):
        raise ConfigError("hub auto: only `run` finds it; give its URL with --join URL")
    return HubJoin(config.hub, read_hub_token(config), config.hub_ca_file, report)


def _alerts(config: Config, agent: Agent, page_url: Callable[[], str]) -> LiveAlerts:
    row = agent.snapshot().agent
    is_first = row.other_agent_pid is None  # two agents of a folder do not share a memory
    alerts = alerts_with(dict(config.thresholds), ALERTS)
    wanted = metrics_read(alerts)
    live = LiveAlerts(
        agent,
        lambda run: run_samples(run, wanted),
        alerts,
        receivers(config),
        dict(config.alert_labels),
        page_url,
        row.node,
        _delivered(config, agent) if is_first else None,
    )
    agent.await_alerts()
    live.join_incidents(agent.see_alerts)
    live.follow_symptoms(agent.signal_states)
    return live


def _delivered(config: Config, agent: Agent) -> StoredDocument[dict[str, notification.Delivered]]:
    """Alerts that this agent and earlier agents have delivered to receivers."""

    def report(problem: str) -> None:
        agent.report(
            "", _DELIVERED_FILE, f"{problem}: alerts that still fire may be delivered again"
        )

    return StoredDocument(config.directory, _DELIVERED_FILE, notification.DOCUMENT, report)
