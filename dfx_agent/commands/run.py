"""Start a command with the guest in it and in every Python child, agent beside it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from itertools import pairwise

from dfx_agent.agent.config import Config
from dfx_agent.attach.spawn import Job, block_signals, environment
from dfx_agent.commands._options import (
    add_budget_argument,
    add_service_arguments,
    budget_of,
    listener_of,
    load_config,
)
from dfx_agent.commands._service import Service
from dfx_agent.errors import ListenError, UsageError
from dfx_agent.wire import SegmentError

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
    """Exit code of CMD. Whatever goes wrong with us, CMD runs."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no command: write `dfx-agent run -- CMD ...`")
    budget_of(args)
    config = load_config(args)
    run = args.run or _run_name(command)
    mask = block_signals()
    service, env = _observe(config, run, is_given=args.listen is not None)
    if args.max_overhead:
        env["DFX_MAX_OVERHEAD"] = args.max_overhead
    job = Job(command, env, mask)
    code = job.wait()
    if service is not None:
        service.see_job_off()
        service.stop()
    return code


def _observe(config: Config, run: str, *, is_given: bool) -> tuple[Service | None, dict[str, str]]:
    """Start serving; (service or None, environment of the job)."""
    unchanged = dict(os.environ)
    try:
        service = _serve(config, is_given=is_given)
        env = environment(os.environ, config.directory, run)
    except (SegmentError, OSError) as error:
        _say(f"{error}; CMD runs unobserved")
        return None, unchanged
    _say(f"page {service.url}/  metrics {service.url}/metrics  run {run}")
    return service, env


def _serve(config: Config, *, is_given: bool) -> Service:
    service = Service(config)
    try:
        service.start()
    except ListenError as error:
        if is_given:
            service.stop()
            raise
        service.agent.stop()
        host = config.listen.rpartition(":")[0]
        service = Service(config, listener_of(config, f"{host}:0"))
        service.start()
        _say(f"{error}: taking {service.url} instead")
    return service


def _run_name(command: list[str]) -> str:
    """Script and start time: two runs of one script are two runs."""
    scripts = [os.path.basename(word) for word in command if word.endswith(".py")]
    modules = [b.rpartition(".")[2] for a, b in pairwise(command) if a == "-m"]
    stem = (scripts or modules[-1:] or [os.path.basename(command[0])])[0].removesuffix(".py")
    return f"{stem}-{time.strftime('%m%d-%H%M%S')}"


def _say(text: str) -> None:
    print(f"dfx-agent: {text}", file=sys.stderr, flush=True)
