"""Real GRPO on CPU: a transformer of 1 M parameters learns to reverse digits, from nothing.

Run it as people run such jobs:

    torchrun --nproc-per-node 4 -m dfx_agent.commands.demo.tiny_grpo

or, as one process, ``python -m dfx_agent.commands.demo.tiny_grpo``.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

import dfx_agent.shim as dfx
from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.fault_plan import FaultPlan
from dfx_agent.commands.demo.faults import GRAMMAR, FaultError, check, parse
from dfx_agent.commands.demo.trainer import NUM_MINI_BATCHES, Settings, Trainer


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 trained to the end, 2 wrong use, 130 interrupted."""
    options = _parse(arguments)
    rank, world_size = _identity()
    try:
        faults = [parse(spec) for spec in options.fault]
        check(faults, world_size)
    except FaultError as error:
        _fail(str(error))
    try:
        _train(options, FaultPlan(faults, rank, world_size))
    except KeyboardInterrupt:
        return 130
    return 0


def _train(options: argparse.Namespace, plan: FaultPlan) -> None:
    torch.set_num_threads(1)
    dfx.init(role="trainer", framework="verl")
    _join_process_group()
    with _checkpoint_folder(plan.rank) as folder:
        trainer = Trainer(_settings(options, Path(folder)), plan)
        if plan.rank == 0:
            print(_introduction(options, plan, trainer.num_parameters), flush=True)
        trainer.run()
        del trainer
    gc.collect()  # a DDP model that lives longer than its group may never end (docs/limits.md)
    dist.destroy_process_group()
    dfx.shutdown()


def _identity() -> tuple[int, int]:
    """Rank and world size that torchrun sets, else those of a single process."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _checkpoint_folder(rank: int) -> AbstractContextManager[str]:
    """A temporary folder under $TMPDIR for the one rank that writes."""
    if rank == 0:
        return tempfile.TemporaryDirectory(prefix="tiny_grpo_")
    return nullcontext(os.devnull)


def _join_process_group() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def _settings(options: argparse.Namespace, checkpoint_folder: Path) -> Settings:
    return Settings(
        seed=options.seed,
        num_steps=options.steps,
        prompts_per_rank=options.prompts_per_rank,
        group_size=options.group_size,
        learning_rate=options.learning_rate,
        checkpoint_every=options.checkpoint_every,
        validate_every=options.validate_every,
        checkpoint_folder=checkpoint_folder,
        is_short=options.brief,
    )


def _introduction(options: argparse.Namespace, plan: FaultPlan, num_parameters: int) -> str:
    faults = f", faults: {' '.join(options.fault)}" if options.fault else ""
    return (
        f"tiny_grpo: {num_parameters:,} parameters, {plan.world_size} ranks, {task.NAME}, "
        f"{options.prompts_per_rank} prompts x {options.group_size} samples a rank{faults}"
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="tiny_grpo",
        description="Real GRPO on CPU: a transformer of 1 M parameters learns to reverse digits.",
        epilog="example: torchrun --nproc-per-node 4 -m dfx_agent.commands.demo.tiny_grpo",
    )
    add = parser.add_argument
    add("--steps", type=_at_least(1), default=240, metavar="N", help="default %(default)s")
    add("--seed", type=_at_least(0), default=0, metavar="N", help="default %(default)s")
    add("--prompts-per-rank", type=_at_least(1), default=8, metavar="N", help="default %(default)s")
    add(
        "--group-size",
        type=_at_least(NUM_MINI_BATCHES),
        default=8,
        metavar="N",
        help="samples per prompt, default %(default)s",
    )
    add("--learning-rate", type=_positive, default=1e-4, metavar="RATE", help="default %(default)s")
    for what, default in (("checkpoint", 25), ("validate", 10)):
        add(
            f"--{what}-every",
            type=_at_least(0),
            default=default,
            metavar="STEPS",
            help="0 is never, default %(default)s",
        )
    add("--brief", action="store_true", help="a short line for each step, not all metrics")
    add(
        "--fault",
        action="append",
        default=[],
        metavar="SPEC",
        help=f"make something go wrong, may be repeated: {', '.join(GRAMMAR.values())}; "
        "STEP is the first step of it, default 10",
    )
    return parser.parse_args(arguments)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message}; see --help")


def _fail(message: str) -> NoReturn:
    """End with exit code 2; of many ranks with the same mistake, one says it."""
    if _identity()[0] == 0:
        print(f"tiny_grpo: {message}", file=sys.stderr)
    sys.exit(2)


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0, not {word}")
    return value


def _at_least(smallest: int) -> Callable[[str], int]:
    def convert(word: str) -> int:
        value = int(word)
        if value < smallest:
            raise argparse.ArgumentTypeError(f"must be at least {smallest}, not {value}")
        return value

    convert.__name__ = "whole number"  # argparse says it when the word is no number
    return convert


if __name__ == "__main__":
    sys.exit(main())
