"""A real GRPO training on this machine, watched live."""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import time
import webbrowser

from dfx_agent.assembly.options import add_service_arguments, load_config
from dfx_agent.assembly.service import Service
from dfx_agent.attach.spawn import Job, block_signals, environment
from dfx_agent.demo import faults
from dfx_agent.errors import UsageError

HELP = "train a small model with GRPO on this machine's CPU and watch it live"
EXAMPLE = "dfx-agent demo --ranks 4 --fault straggler:2:1.5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_service_arguments(parser)
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (4)")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps")
    parser.add_argument(
        "--fault", action="append", default=[], metavar="SPEC", help="straggler:RANK:FACTOR, ..."
    )
    parser.add_argument("--exit", action="store_true", help="end with the training")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")


def execute(args: argparse.Namespace) -> int:
    """Exit code of the training. The page stays until Ctrl-C, unless that ended the training."""
    if not 1 <= args.ranks <= 64:
        raise UsageError(f"--ranks {args.ranks}: use 1 to 64")
    _check_faults(args.fault, args.ranks)
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demo trains with torch: pip install 'dfx-agent[demo]'")
    config = load_config(args)
    mask = block_signals()
    service = Service(config)
    service.start()
    print(f"dfx-agent: page {service.url}/  metrics {service.url}/metrics", flush=True)
    base = {"OMP_NUM_THREADS": "1", **os.environ}
    env = environment(base, config.directory, time.strftime("demo-%m%d-%H%M%S"))
    job = Job(_command(args), env, mask)
    if not args.no_browser and _has_display():
        webbrowser.open(service.url)
    code = job.wait()
    if not args.exit and not job.was_signalled:
        print(f"dfx-agent: training ended; {service.url}/ stays until Ctrl-C", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    else:
        service.see_job_off()
    service.stop()
    return code


def _check_faults(specs: list[str], num_ranks: int) -> None:
    try:
        faults.check([faults.parse(spec) for spec in specs], num_ranks)
    except faults.FaultError as error:
        raise UsageError(str(error)) from None


def _command(args: argparse.Namespace) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(args.ranks), "-m", "dfx_agent.demo.tiny_grpo"]
    if args.steps is not None:
        command += ["--steps", str(args.steps)]
    for fault in args.fault:
        command += ["--fault", fault]
    return command


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
