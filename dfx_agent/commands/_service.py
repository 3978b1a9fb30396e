"""The agent with everything around it, put together once for every verb that serves."""

from __future__ import annotations

import argparse
import ipaddress
import os
from pathlib import Path

from dfx_agent.agent import config as configuration
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.errors import ConfigError
from dfx_agent.exporters.prometheus import PrometheusExporter
from dfx_agent.web.app import create_app
from dfx_agent.web.server import Server, parse_listen


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that every serving verb has."""
    parser.add_argument("--listen", metavar="ADDR", help="page and /metrics (127.0.0.1:9931)")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument(
        "--token-file", metavar="FILE", help="token that clients must show; required off loopback"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of --tls-cert")
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")


def load_config(args: argparse.Namespace) -> Config:
    """Settings from file, environment and flags; ConfigError names the bad one."""
    names = ("listen", "directory", "token_file", "tls_cert", "tls_key")
    flags = {name: getattr(args, name) for name in names}
    return configuration.load(flags, os.environ, args.config)


class Service:
    """Agent, exporter and web server. The agent's folder is checked when it is made."""

    def __init__(self, config: Config, listen: str | None = None) -> None:
        host, port = parse_listen(listen or config.listen)
        token = _token(config, host)
        self.agent = Agent(config)
        exporter = PrometheusExporter(self.agent)
        app = create_app(self.agent, exporter.render, token)
        self.server = Server(app, host, port, config.tls_cert, config.tls_key)

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        """Serve; ListenError when the address is taken."""
        self.server.start()
        self.agent.start()

    def stop(self) -> None:
        self.agent.stop()
        self.server.stop()


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
