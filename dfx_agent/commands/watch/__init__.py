"""Follow logs of jobs that cannot be attached to, on the same page and with the same alerts."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dfx_agent.agent.config import Config
from dfx_agent.attach.spawn import block_signals
from dfx_agent.base.errors import UsageError
from dfx_agent.commands.backtest import add_format_arguments, key_map_of
from dfx_agent.commands.serve.options import add_service_arguments, load_config
from dfx_agent.commands.serve.service import Service
from dfx_agent.commands.serve.shutdown import wait_for_signal
from dfx_agent.commands.watch.followed_log import FollowedLog

HELP = "follow logs of jobs that cannot be attached to"
EXAMPLE = """dfx-agent watch /mnt/cluster/run7/metrics.jsonl
  dfx-agent watch --dir ~/watched metrics.jsonl
  dfx-agent diagnose --dir ~/watched

Without --dir the agent has a folder of its own, gone when it ends: ask it by diagnose --url."""

_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_POLL_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="a log that a job writes")
    add_format_arguments(parser)
    add_service_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    """Until SIGINT or SIGTERM; wrong use when a file is not there."""
    paths = [Path(file) for file in dict.fromkeys(args.files)]
    for path in paths:
        if not os.path.exists(path):  # False too where it may not be looked for
            raise UsageError(f"there is no {path} that we may read: name a log that the job writes")
    config, key_map = load_config(args), key_map_of(args)
    block_signals()
    with _folder(args, config) as directory:
        service = Service(dataclasses.replace(config, directory=directory))
        service.start()
        print(f"dfx-agent: page {service.url}/  metrics {service.url}/metrics", flush=True)
        logs = [
            FollowedLog(path, run, directory, _say, args.format, key_map=key_map)
            for path, run in zip(paths, run_names(paths), strict=True)
        ]
        print(f"dfx-agent: following {len(logs)} log(s); Ctrl-C ends", flush=True)
        _follow(logs, service)
        service.stop()
    return 0


def _folder(args: argparse.Namespace, config: Config) -> AbstractContextManager[str]:
    """The named folder, which other commands and a restart find; else a temporary folder."""
    if args.directory:
        return nullcontext(config.directory)
    return tempfile.TemporaryDirectory(prefix="dfx-watch-")


def run_names(paths: Iterable[Path]) -> list[str]:
    """The file's name without its ending, numbered where two are the same."""
    names: list[str] = []
    for path in paths:
        stem = path.name.partition(".")[0] or path.name
        num_same = sum(name == stem or name.startswith(f"{stem}-") for name in names)
        names.append(f"{stem}-{num_same + 1}" if num_same else stem)
    return names


def _follow(logs: list[FollowedLog], service: Service) -> None:
    try:
        while not wait_for_signal(_SIGNALS, _POLL_SECONDS):
            for log in logs:
                log.poll(service.agent.poll)
    finally:
        for log in logs:
            log.close()


def _say(line: str) -> None:
    print(f"dfx-agent: {line}", file=sys.stderr, flush=True)
