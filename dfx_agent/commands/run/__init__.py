"""Start a command with the guest in it and in every Python child, and an agent next to it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from dfx_agent.attach.spawn import SpawnedJob, block_signals, environment
from dfx_agent.base.errors import DfxError, ListenError, UsageError
from dfx_agent.commands.run.launch import launch_of
from dfx_agent.commands.serve.options import (
    add_budget_argument,
    add_service_arguments,
    budget_of,
    listener_of,
    load_config,
)
from dfx_agent.web.listener import parse_listen
from dfx_agent.wire import SegmentError

# What serves is imported in _observe: a dependency that is missing or broken must not stop the job.
if TYPE_CHECKING:
    from dfx_agent.agent.config import Config
    from dfx_agent.commands.hub.hub_service import Hub
    from dfx_agent.commands.run.starting import StartingRanks
    from dfx_agent.commands.serve.service import Service
    from dfx_agent.facts.seat import Launch

HELP = "start CMD with the guest in it and in every Python child; exit code is CMD's"
EXAMPLE = "dfx-agent run --run nightly -- torchrun --nproc-per-node 8 train.py --lr 1e-6"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "dfx-agent run [options] -- CMD ..."
    add_service_arguments(parser)
    parser.add_argument("--run", metavar="NAME", help="name of the run (script and time)")
    add_budget_argument(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the job as it starts today"
    )


def execute(args: argparse.Namespace) -> int:
    """Exit code of CMD. Words that cannot be read are wrong use; else CMD runs, whatever fails."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command: write `dfx-agent run -- CMD ...`")
    budget_of(args)
    if args.listen:
        parse_listen(args.listen)
    mask = block_signals()
    service, hub, env = _observe(args, args.run or _run_name(command), command)
    if service is not None and args.max_overhead:
        env["DFX_MAX_OVERHEAD"] = args.max_overhead
    begin_seconds = time.time()
    job = SpawnedJob(command, env, mask)
    starting = None if service is None else _watch_starting(service, env["DFX_RUN"], job.pid)
    code = job.wait()
    if service is not None and starting is not None:
        _see_off(service, hub, starting)
        _print_finding(env["DFX_DIR"], env["DFX_RUN"], begin_seconds)
    return code


def _observe(
    args: argparse.Namespace, run: str, command: Sequence[str]
) -> tuple[Service | None, Hub | None, dict[str, str]]:
    """Start serving; (service or None, the hub if it is here, environment of the job)."""
    hub = None
    try:
        config, hub = _settled(load_config(args), command)
        service = _serve(config, launch_of(command, os.environ, run))
        env = environment(os.environ, config.directory, run)
    except Exception as error:  # noqa: BLE001 (the job does not depend on us)
        _say(f"{_error_text(error)}; CMD runs unobserved")
        if hub is not None:
            hub.stop()
        return None, None, dict(os.environ)
    _say(f"page {service.url}/  metrics {service.url}/metrics  run {run}")
    return service, hub, env


def _settled(config: Config, command: Sequence[str]) -> tuple[Config, Hub | None]:
    """Settings with the address of the hub; the hub is started if it belongs on this node."""
    if config.hub is None:
        return config, None
    from dfx_agent.commands.hub import settled

    return settled(config, command, _say)


def _serve(config: Config, launch: Launch | None) -> Service:
    """Serve; if the address is in use, print that and use another port of the same host."""
    from dfx_agent.commands.serve.service import Service

    try:
        return _started(Service(config, launch=launch))
    except ListenError as error:
        host = config.listen.rpartition(":")[0]
        service = _started(Service(config, listener_of(config, f"{host}:0"), launch))
        _say(f"{error}: taking {service.url} instead")
        return service


def _started(service: Service) -> Service:
    try:
        service.start()
    except Exception:
        with suppress(Exception):
            service.stop()
        raise
    return service


def _watch_starting(service: Service, run: str, pid: int) -> StartingRanks:
    """Show ranks that have written nothing yet."""
    from dfx_agent.commands.run.starting import StartingRanks

    starting = StartingRanks(service.agent, run, pid)
    starting.start()
    return starting


def _see_off(service: Service, hub: Hub | None, starting: StartingRanks) -> None:
    """The job has ended: its exit code stands, whatever happens here."""
    try:
        starting.stop()
        service.see_job_off()
        service.stop()
        if hub is not None:
            hub.see_nodes_off()
            hub.stop()
    except Exception as error:  # noqa: BLE001 (the exit code is the job's)
        _say(f"after the job: {_error_text(error)}")


def _print_finding(directory: str, run: str, begin_seconds: float) -> None:
    """Print the latest crash of this job, else its last hang: CMD's exit code shows neither."""
    try:
        from dfx_agent.agent.stored.findings import findings

        stored = [f for f in findings(directory, run) if f.run == run]
        stored = [f for f in stored if f.begin_seconds >= begin_seconds]
        shown = [f for f in stored if f.kind == "crash"] + [f for f in stored if not f.is_over]
        for found in shown[:1]:
            _say(f"{found.kind} found: {found.sentence} {found.how_to_read}")
    except Exception as error:  # noqa: BLE001 (as above)
        _say(f"evidence of the job: {_error_text(error)}")


def _error_text(error: Exception) -> str:
    """One line; with its type where it is none of those that are written for people."""
    lines = str(error).splitlines() or [""]
    is_ours = isinstance(error, (DfxError, SegmentError, OSError))
    return lines[0] if is_ours else f"the agent failed: {type(error).__name__}: {lines[0]}"


def _run_name(command: list[str]) -> str:
    """Script and start time: two runs of one script are two runs."""
    scripts = [os.path.basename(word) for word in command if word.endswith(".py")]
    modules = [b.rpartition(".")[2] for a, b in pairwise(command) if a == "-m"]
    stem = (scripts or modules[-1:] or [os.path.basename(command[0])])[0].removesuffix(".py")
    return f"{stem}-{time.strftime('%m%d-%H%M%S')}"


def _say(text: str) -> None:
    print(f"dfx-agent: {text}", file=sys.stderr, flush=True)
