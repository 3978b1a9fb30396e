"""The hub of a job on several nodes: the agents of the nodes send it their facts."""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dfx_agent.agent.config import AUTO, Config
from dfx_agent.attach.spawn import block_signals
from dfx_agent.base.errors import ConfigError, ListenError
from dfx_agent.commands.run.launch import rendezvous_of
from dfx_agent.commands.serve.options import (
    HUB_LISTEN,
    HUB_PORT,
    add_delivery_arguments,
    add_server_arguments,
    load_config,
)
from dfx_agent.wire import variables

if TYPE_CHECKING:
    from dfx_agent.commands.hub.hub_service import Hub


HELP = "be the hub of a job on several nodes, which their agents join"
EXAMPLE = """dfx-agent hub --token-file ~/dfx-token
  on each node:
  dfx-agent run --join http://HOST:9932 --join-token-file ~/dfx-token -- CMD"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser, HUB_LISTEN)
    add_delivery_arguments(parser)
    parser.add_argument(
        "--targets-file",
        metavar="FILE",
        help="keep the agents of all nodes in FILE, for file_sd_configs of Prometheus",
    )


def execute(args: argparse.Namespace) -> int:
    """Until SIGINT or SIGTERM."""
    config = load_config(args, HUB_LISTEN)
    block_signals()
    hub = hub_of(config, args.targets_file)
    hub.start()
    print(f"dfx-agent: hub {hub.url}/  nodes: --join {hub.url}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
    hub.stop()
    return 0


def hub_of(config: Config, targets_file: str | None = None, node: str = "") -> Hub:
    """A hub, not started. ``node``: whose processes are on this machine, "" if not known."""
    from dfx_agent.commands.hub.hub_service import Hub

    return Hub(config, targets_file, node)


def settled(
    config: Config, command: Sequence[str], say: Callable[[str], None]
) -> tuple[Config, Hub | None]:
    """``config`` with the URL of the hub in place of "auto"; the hub, where it is this node's.

    It serves already. Without a place to meet there is no hub, and it is said. ConfigError where no
    token is given.
    """
    asked = AUTO.fullmatch(config.hub or "")
    if asked is None:
        return config, None
    port = int(asked[1] or HUB_PORT)
    rendezvous = rendezvous_of(command, os.environ)
    if rendezvous is None:
        say("no hub: neither MASTER_ADDR, --rdzv-endpoint nor a scheduler says where nodes meet")
        return replace(config, hub=None), None
    host = f"[{rendezvous.host}]" if ":" in rendezvous.host else rendezvous.host
    url = f"{'https' if config.tls_cert else 'http'}://{host}:{port}"
    listening = replace(config, listen=f"0.0.0.0:{port}")
    hub = _begun(listening, url, say) if rendezvous.is_here else None
    return replace(config, hub=url), hub


def _begun(config: Config, url: str, say: Callable[[str], None]) -> Hub | None:
    """None where somebody else listens there: it may be the hub of all jobs of this host."""
    token_file = config.hub_token_file or config.token_file
    if token_file is None:
        raise ConfigError("hub auto: give a token that all nodes can read with --join-token-file")
    node = variables.NODE.text() or socket.gethostname()
    hub = hub_of(replace(config, token_file=token_file), node=node)
    try:
        hub.start()
    except ListenError as error:
        say(f"{error}: joining what is there")
        return None
    say(f"hub {url}/")
    return hub
