"""``--fault SPEC``: what can go wrong with the demo, and what each SPEC means.

Standard library only, so that a command line can check a SPEC before it starts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STAGES = (
    "rollout",
    "reward",
    "old_logprob",
    "ref_logprob",
    "advantage",
    "actor_update",
    "forward",
    "backward",
    "optimizer",
    "weight_sync",
    "checkpoint",
    "validation",
)
GRAMMAR = {
    "straggler": "straggler:RANK:FACTOR",
    "tokens_imbalance": "tokens_imbalance",
    "divergence": "divergence[:STEP]",
    "entropy_collapse": "entropy_collapse[:STEP]",
    "length_explosion": "length_explosion[:STEP]",
    "nan": "nan[:STEP]",
    "misalign": "misalign[:STEP]",
    "host_leak": "host_leak[:MIB_PER_STEP]",
    "hang": "hang:RANK:STAGE[:STEP]",
    "crash": "crash:RANK[:STEP]",
    "rollout_abort": "rollout_abort[:RATIO]",
}

# Field -> how to read it, what it must be, and that in words.
_FIELDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], bool], str]] = {
    "RANK": (int, lambda rank: rank >= 0, "a whole number from 0"),
    "REPLICA": (int, lambda replica: replica >= 0, "a whole number from 0"),
    "FACTOR": (float, lambda factor: 1 <= factor < float("inf"), "a number from 1"),
    "STAGE": (str, lambda stage: stage in STAGES, f"one of {', '.join(STAGES)}"),
    "STEP": (int, lambda step: step >= 1, "a whole number from 1"),
    "RATIO": (float, lambda ratio: 0 < ratio <= 1, "a number above 0, at most 1"),
    "SECONDS": (float, lambda seconds: 0 < seconds < float("inf"), "a number above 0"),
    "MIB_PER_STEP": (float, lambda mib: 0 < mib < float("inf"), "a number above 0"),
}


_NEED_PEERS = frozenset({"straggler", "tokens_imbalance"})
LEAST_SHARED_FACTOR = 1.3  # where ranks share CPUs; see docs/concepts/straggler.md


class FaultError(ValueError):
    """A ``--fault`` that this run cannot have; the message is the one line that people read."""


@dataclass(frozen=True)
class Fault:
    """One parsed SPEC; only the fields that its ``kind`` names in its grammar mean anything."""

    kind: str
    rank: int = 0
    replica: int = 0
    factor: float = 1.0
    stage: str = ""
    step: int = 10
    ratio: float = 0.3
    seconds: float = 1.0
    mib_per_step: float = 4.0


def parse(spec: str, grammar: Mapping[str, str] = GRAMMAR) -> Fault:
    """A ``Fault`` from ``spec``; FaultError says in one line what is wrong with it."""
    kind, *words = spec.split(":")
    if kind not in grammar:
        raise FaultError(
            f"--fault {spec}: no such fault; choose from {', '.join(grammar.values())}"
        )
    required, _, optional = grammar[kind].partition("[")
    fields = required.split(":")[1:]
    num_required = len(fields)
    fields += [optional.strip(":]")] if optional else []
    if not num_required <= len(words) <= len(fields):
        raise FaultError(f"--fault {spec}: expected {grammar[kind]}")
    return Fault(
        kind,
        **{
            name.lower(): _convert(spec, name, word)
            for name, word in zip(fields, words, strict=False)
        },
    )


def _convert(spec: str, name: str, word: str) -> Any:
    convert, is_valid, expectation = _FIELDS[name]
    try:
        value = convert(word)
    except ValueError:
        value = None
    if value is None or not is_valid(value):
        raise FaultError(f"--fault {spec}: {name} must be {expectation}, not {word!r}")
    return value


def check(faults: Iterable[Fault], num_ranks: int) -> None:
    """FaultError for a rank that a run of ``num_ranks`` lacks, or a fault that needs more ranks."""
    for fault in faults:
        if fault.rank >= num_ranks:
            raise FaultError(
                f"--fault {fault.kind}: there is no rank {fault.rank} in a run of {num_ranks}; "
                "ranks count from 0"
            )
        if fault.kind in _NEED_PEERS and num_ranks == 1:
            raise FaultError(
                f"--fault {fault.kind} needs at least 2 ranks; start the demo with torchrun"
            )


def straggler_note(faults: Iterable[Fault], num_ranks: int, num_cpus: int) -> str:
    """What to expect of a slow rank on this machine, as one line; "" where nothing is in its way.

    Where ranks share CPUs, the scheduler hides a small difference, and a larger one takes longer.
    """
    factors = [fault.factor for fault in faults if fault.kind == "straggler"]
    if not factors or num_ranks <= num_cpus:
        return ""
    shared = f"{num_ranks} ranks share {num_cpus} CPU{'s' * (num_cpus > 1)}"
    if min(factors) < LEAST_SHARED_FACTOR:
        least = f"use a factor of {LEAST_SHARED_FACTOR} or more, or --ranks {num_cpus}"
        return f"{shared}: a straggler of {min(factors):g} may not be found; {least}"
    return f"{shared}: it takes 12 to 45 steps until the straggler is found"
