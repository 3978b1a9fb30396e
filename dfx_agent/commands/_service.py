"""The agent with everything around it, put together once for every verb that serves."""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dfx_agent.agent import config as configuration
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.alerting.alertmanager import API_PATH, alertmanagers
from dfx_agent.alerting.evaluator import metrics_read
from dfx_agent.alerting.live import LiveAlerts
from dfx_agent.alerting.notification import Receiver
from dfx_agent.alerting.transport import Endpoint
from dfx_agent.alerting.webhook import webhooks
from dfx_agent.errors import ConfigError
from dfx_agent.exporters.base import Tracker
from dfx_agent.exporters.prometheus import PrometheusExporter, run_samples
from dfx_agent.exporters.trackers import STOP_SECONDS, Trackers, open_trackers
from dfx_agent.metrics.alerts import ALERTS, alerts_with
from dfx_agent.shim import imports
from dfx_agent.web.listener import Listener, parse_listen

if TYPE_CHECKING:
    from dfx_agent.web.server import Server

_ALERTING = ("alertmanager", "webhook", "alert_labels")


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that every serving verb has."""
    parser.add_argument("--listen", metavar="ADDR", help="page and /metrics (127.0.0.1:9931)")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument(
        "--token-file", metavar="FILE", help="token that clients must show; required off loopback"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of --tls-cert")
    parser.add_argument(
        "--alertmanager",
        action="append",
        metavar="URL",
        help="deliver alerts to this Alertmanager; once for each of a cluster",
    )
    parser.add_argument(
        "--webhook", action="append", metavar="URL", help="post alerts as JSON; repeatable"
    )
    parser.add_argument(
        "--alert-label",
        dest="alert_labels",
        action="append",
        metavar="NAME=VALUE",
        help="label on every delivered alert, as external_labels of Prometheus; repeatable",
    )
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")


def load_config(args: argparse.Namespace) -> Config:
    """Settings from file, environment and flags; ConfigError names the bad one."""
    names = ("listen", "directory", "token_file", "tls_cert", "tls_key", *_ALERTING)
    flags = {name: getattr(args, name) for name in names}
    return configuration.load(flags, os.environ, args.config)


class Service:
    """Agent, alerts, trackers, exporter and web server.

    The agent's folder and the trackers are checked when it is made.
    """

    def __init__(self, config: Config, listen: str | None = None) -> None:
        host, port = parse_listen(listen or config.listen)
        self._token = _token(config, host)
        self._listener = Listener(host, port, config.tls_cert, config.tls_key)
        self._server: Server | None = None
        trackers = _trackers(config)
        self.agent = Agent(config)
        self.trackers = Trackers(trackers, self.agent, self._report)
        self.alerts = _alerts(config, self.agent, lambda: self.url)

    @property
    def url(self) -> str:
        return self._listener.url

    def bind(self) -> None:
        """ListenError when the address is taken, before anything else has happened."""
        self._listener.bind()

    def start(self) -> None:
        """Serve; ListenError when the address is taken."""
        self.bind()
        # most of the time until a command is ready: attach is in the job before
        from dfx_agent.web.app import create_app
        from dfx_agent.web.server import Server

        exporter = PrometheusExporter(self.agent, self.alerts, self.trackers)
        app = create_app(self.agent, exporter.render, self._token, self.alerts)
        self._server = Server(app, self._listener)
        self._server.start()
        self.agent.start()
        self.alerts.start()
        self.trackers.start()

    def stop(self) -> None:
        """Says on stderr which alerts and steps could not be delivered."""
        self.agent.stop()
        self.alerts.stop()
        for name in self.trackers.stop():
            _say(
                f"tracker {name} is not done after {STOP_SECONDS:.0f} s: last steps may be missing"
            )
        for row in self.alerts.alerts().deliveries:
            if row.num_waiting:
                what = f"{row.num_waiting} notifications not delivered to {row.kind} {row.target}"
                _say(f"{what}: {row.last_error}")
        if self._server is not None:
            self._server.stop()
        self._listener.close()

    def _report(self, run: str, tracker: str, message: str) -> None:
        _say(message)
        self.agent.report(run, tracker, message)


def _say(text: str) -> None:
    print(f"dfx-agent: {text}", file=sys.stderr, flush=True)


def _trackers(config: Config) -> dict[str, Tracker]:
    """Under DFX_AGENT=1 this process is armed as well; what it writes is no job's."""
    if config.track_with:
        imports.forget()
    return open_trackers(config.track_with, config.tracker_kwargs)


def _alerts(config: Config, agent: Agent, page_url: Callable[[], str]) -> LiveAlerts:
    alerts = alerts_with(dict(config.thresholds), ALERTS)
    wanted = metrics_read(alerts)
    return LiveAlerts(
        agent,
        lambda run: run_samples(run, wanted),
        alerts,
        _receivers(config),
        dict(config.alert_labels),
        page_url,
    )


def _receivers(config: Config) -> list[Receiver]:
    ca = config.alert_ca_file
    managers = [
        Endpoint(url.rstrip("/").removesuffix(API_PATH) + API_PATH,
                 config.alertmanager_basic_auth_file, config.alertmanager_token_file, ca)
        for url in config.alertmanager
    ]  # fmt: skip
    hooks = [Endpoint(url, token_file=config.webhook_token_file, ca_file=ca)
             for url in config.webhook]  # fmt: skip
    return [*alertmanagers(managers), *webhooks(hooks)]


def _token(config: Config, host: str) -> str | None:
    if config.token_file is None:
        if not _is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines: give --token-file FILE, "
                "or listen on 127.0.0.1"
            )
        return None
    try:
        token = Path(config.token_file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {config.token_file}: {error.strerror}") from None
    if not token:
        raise ConfigError(f"{config.token_file} is empty: put a token into it")
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
