"""Flags of every command that serves; checks their values without loading the server.

This module imports little. ``attach`` enters the job before the agent is loaded, and must report a
wrong option before it changes anything.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from dfx_agent.base.errors import ConfigError, UsageError
from dfx_agent.base.loopback import is_loopback
from dfx_agent.web.listener import Listener, parse_listen

if TYPE_CHECKING:
    from dfx_agent.agent.config import Config

HUB_PORT = 9932
HUB_LISTEN = f"0.0.0.0:{HUB_PORT}"


def add_service_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that every serving verb has."""
    add_server_arguments(parser, "127.0.0.1:9931")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    _add_hub_arguments(parser)
    add_delivery_arguments(parser)
    parser.add_argument(
        "--otlp",
        dest="otlp_endpoint",
        metavar="URL",
        help="push metrics and steps to this OpenTelemetry receiver (http://HOST:4318)",
    )


def add_delivery_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that set where alerts are delivered."""
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


def add_server_arguments(parser: argparse.ArgumentParser, listen: str) -> None:
    """Flags of whatever serves a page; ``listen`` is the address by default."""
    parser.add_argument("--listen", metavar="ADDR", help=f"page and /metrics ({listen})")
    parser.add_argument(
        "--token-file", metavar="FILE", help="token that clients must show; required off loopback"
    )
    parser.add_argument("--tls-cert", metavar="FILE", help="serve HTTPS with this certificate")
    parser.add_argument("--tls-key", metavar="FILE", help="private key of --tls-cert")
    parser.add_argument("--config", metavar="FILE", help="settings file (dfx.yaml if it exists)")


def _add_hub_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--join",
        dest="hub",
        metavar="URL",
        help="send this node's data to the hub of a job (`dfx-agent hub`); "
        "auto under `run`: start or find the hub on node rank 0",
    )
    parser.add_argument(
        "--join-token-file",
        dest="hub_token_file",
        metavar="FILE",
        help="token of the hub (that of --token-file)",
    )
    parser.add_argument(
        "--join-ca-file", dest="hub_ca_file", metavar="FILE", help="check the hub's HTTPS with it"
    )


def add_budget_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-overhead",
        metavar="PERCENT",
        help="budget of the guest in each process (0.5%%); above it hooks are given up, visibly",
    )


def budget_of(args: argparse.Namespace) -> float | None:
    """``--max-overhead`` as a share of time, None without one; UsageError when it is none."""
    from dfx_agent.wire.variables import ratio_below_one

    ratio = ratio_below_one(args.max_overhead or "")
    if args.max_overhead and ratio is None:
        raise UsageError(f"--max-overhead {args.max_overhead}: write a share of time, as in 0.5%")
    return ratio


def load_config(args: argparse.Namespace, listen: str | None = None) -> Config:
    """Settings from file, environment and the verb's flags; ConfigError names the bad one.

    ``listen`` replaces the default address: a hub listens elsewhere than the agent of its node.
    """
    from dfx_agent.agent.config import Config, load

    flags = {setting.name: getattr(args, setting.name, None) for setting in fields(Config)}
    return load({**flags, "listen": args.listen or listen}, os.environ, args.config)


def listener_of(config: Config, listen: str | None = None) -> Listener:
    """The address to serve on, not bound yet. UsageError or ConfigError where it cannot be."""
    host, port = parse_listen(listen or config.listen)
    read_token(config, host)
    return Listener(host, port, config.tls_cert, config.tls_key)


def read_token(config: Config, host: str) -> str | None:
    """What clients must show. ConfigError without one where other machines reach ``host``."""
    if config.token_file is None:
        if not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines: give --token-file FILE, "
                "or listen on 127.0.0.1"
            )
        return None
    return _token_in(config.token_file)


def read_hub_token(config: Config) -> str | None:
    """What the hub must be shown: where none is given for it, the token that we ask for."""
    file = config.hub_token_file or config.token_file
    return None if file is None else _token_in(file)


def _token_in(file: str) -> str:
    try:
        token = Path(file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    if not token:
        raise ConfigError(f"{file} is empty: put a token into it")
    return token
