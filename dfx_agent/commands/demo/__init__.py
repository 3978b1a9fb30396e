"""A real GRPO training on this machine, watched live.

Each rank runs ``dfx_agent.commands.demo.tiny_grpo``, which imports this module: so what serves is
imported inside functions.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
import time
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dfx_agent.base.errors import UsageError
from dfx_agent.commands.demo import faults

if TYPE_CHECKING:
    from dfx_agent.commands.serve.service import Service

HELP = "train a small model with GRPO on this machine's CPU and watch it live"
EXAMPLE = "dfx-agent demo --ranks 4 --fault straggler:2:1.5"
DEFAULT_RANKS = 4
# of one core with 256-bit vectors: an example, so that the page has an MFU where there is no device
CPU_TFLOPS = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from dfx_agent.commands.serve.options import add_service_arguments

    add_service_arguments(parser)
    parser.add_argument(
        "--ranks", type=int, default=DEFAULT_RANKS, metavar="N", help="processes (%(default)s)"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="training steps")
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="SPEC",
        help=", ".join(faults.GRAMMAR.values()),
    )
    parser.add_argument("--exit", action="store_true", help="end with the training")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    parser.add_argument(
        "--verbose", action="store_true", help="print all metrics of each step, as verl does"
    )


def execute(args: argparse.Namespace) -> int:
    """Exit code of the training. The page stays until Ctrl-C, unless that ended the training."""
    from dfx_agent.attach.spawn import SpawnedJob, block_signals, environment
    from dfx_agent.commands.serve.options import load_config
    from dfx_agent.commands.serve.service import Service

    _check(args)
    if importlib.util.find_spec("torch") is None:
        raise UsageError("the demo trains with torch: pip install 'dfx-agent[demo]'")
    config = load_config(args)
    if not config.peak_tflops:
        config = replace(config, peak_tflops={"all": CPU_TFLOPS})
    mask = block_signals()
    service = Service(config)
    service.start()
    print(f"dfx-agent: page {service.url}/  metrics {service.url}/metrics", flush=True)
    note = _note(args)
    if note:
        print(f"dfx-agent: {note}", flush=True)
    base = {"OMP_NUM_THREADS": "1", **os.environ}
    run = time.strftime("demo-%m%d-%H%M%S")
    env = environment(base, config.directory, run)
    job = SpawnedJob(_command(args), env, mask)
    if not args.no_browser and _has_display():
        webbrowser.open(service.url)
    code = job.wait()
    if not args.exit and not job.was_signalled:
        print(f"dfx-agent: training ended; {service.url}/ stays until Ctrl-C", flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    else:
        service.see_job_off()
    print("\n".join(_last_lines(service, run)), flush=True)
    service.stop()
    return code


def _last_lines(service: Service, name: str) -> list[str]:
    """What was seen, where the report is, what to try next."""
    from dfx_agent.exporters.evidence_page import of_run

    snapshot = service.agent.snapshot()
    run = next((run for run in snapshot.runs if run.run == name), None)
    seen = "the training wrote nothing"
    written = f"page {service.url}/ (ends now)"
    if run is not None:
        seen = run.standing.reason
        report = Path(tempfile.gettempdir(), f"{name}.html")
        try:
            agent = service.agent
            curves, timeline = agent.signal_history(name, 256), agent.timeline(name, 4)
            page = of_run(run, snapshot.agent, snapshot.time_seconds, curves, timeline)
            report.write_text(page, encoding="utf-8")
            written = f"report {report}  {written}"
        except OSError as error:
            written += f"; no report: cannot write {report} ({error.strerror})"
    next_step = "on your own job: dfx-agent run -- torchrun ... or dfx-agent attach --pid PID"
    return [f"dfx-agent: {line}" for line in (f"seen: {seen}", written, next_step)]


def _note(args: argparse.Namespace) -> str:
    """What this machine cannot show well of the faults that were asked for."""
    parsed = [faults.parse(spec) for spec in args.fault]
    return faults.straggler_note(parsed, args.ranks, len(os.sched_getaffinity(0)))


def _check(args: argparse.Namespace) -> None:
    """UsageError for more ranks, or other faults, than there are."""
    if not 1 <= args.ranks <= 64:
        raise UsageError(f"--ranks {args.ranks}: use 1 to 64")
    try:
        faults.check([faults.parse(spec) for spec in args.fault], args.ranks)
    except faults.FaultError as error:
        raise UsageError(str(error)) from None


def _command(args: argparse.Namespace) -> list[str]:
    launcher = [sys.executable, "-m", "dfx_agent.commands.demo.launcher", "--standalone"]
    command = [
        *launcher,
        "--nproc-per-node",
        str(args.ranks),
        "-m",
        "dfx_agent.commands.demo.tiny_grpo",
    ]
    if args.steps is not None:
        command += ["--steps", str(args.steps)]
    if not args.verbose:
        command.append("--brief")
    for fault in args.fault:
        command += ["--fault", fault]
    return command


def _has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
