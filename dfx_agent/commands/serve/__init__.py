"""The agent alone: follows every segment that appears in the folder."""

from __future__ import annotations

import argparse
import signal

from dfx_agent.attach.spawn import block_signals
from dfx_agent.commands.serve.options import add_service_arguments, load_config

HELP = "serve the page and /metrics for every observed process of this machine"
EXAMPLE = "dfx-agent serve --listen 127.0.0.1:9931"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_service_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Until SIGINT or SIGTERM."""
    from dfx_agent.commands.serve.service import Service

    config = load_config(args)
    block_signals()
    service = Service(config)
    service.start()
    print(f"dfx-agent: page {service.url}/  metrics {service.url}/metrics", flush=True)
    print(f"dfx-agent: following {config.directory}; Ctrl-C ends", flush=True)
    other = service.agent.snapshot().agent.other_agent_pid
    if other is not None:
        print(f"dfx-agent: pid {other} serves this folder too and does the cleaning up", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
    service.stop()
    return 0
