"""The hub of a job on several nodes: the agents of the nodes send it their facts."""

from __future__ import annotations

import argparse
import signal

from dfx_agent.attach.spawn import block_signals
from dfx_agent.commands.hub.auto_hub import hub_of
from dfx_agent.commands.serve.options import (
    HUB_LISTEN,
    add_delivery_arguments,
    add_server_arguments,
    load_config,
)

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
