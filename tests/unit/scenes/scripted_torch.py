"""What torch gives away about a make-believe rank: collectives, groups, memory, hooks, verdicts."""

from __future__ import annotations

from dataclasses import replace

from dfx_agent.snapshot import (
    CollectiveTime,
    DeviceMemory,
    GroupRow,
    HeldMemory,
    HostMemory,
    OpenSpan,
    RankRow,
    Verdict,
)

GIB = float(1 << 30)
MIB = float(1 << 20)
HOOKS = ("backward", "collectives", "ddp", "forward", "grad_norm", "optimizer")
CLEAR = (
    Verdict("hang", "clear", "actor", "every rank moves on"),
    Verdict("crash", "clear", "actor", "no rank has died"),
    Verdict(
        "straggler", "insufficient evidence", "actor", "3 of 8 steps needed so far",
        evidence=("3 steps closed since the agent came", "the verdict needs 8"),
    ),
)  # fmt: skip
SLOW_STEPS = ("rank 2 is 0.51 s later than the others in 18 of the last 20 steps",
              "tokens per rank: 15,930 against 15,620: equal within 2 %",
              "seconds per token in rollout: 1.22 times the median of the others")  # fmt: skip
STRAGGLER = Verdict(
    "straggler", "found", "actor", "Rank 2 is slower than its peers at equal tokens in rollout",
    ranks=("2",), stage="rollout", cause="slower at equal tokens", lost_seconds=0.51,
    evidence=SLOW_STEPS,
)  # fmt: skip


def hang(now: float) -> Verdict:
    """Rank 2 did not arrive where the others wait."""
    return Verdict(
        "hang", "found", "actor", "Rank 2 did not arrive in all_reduce@0 #1234; it is in rollout",
        ranks=("2",), stage="rollout", cause="rank did not arrive", step=45,
        since_seconds=now - 47.2,
        evidence=("ranks 0, 1, 3 wait in all_reduce@0 #1234 since 47.2 s",
                  "rank 2 has enqueued #1233 of group 0 and is in rollout",
                  "usual: at most 2.41 s in rollout, limit 12.1 s",
                  "  sample_tokens (sampling.py:84)\n  rollout (trainer.py:120)"),
    )  # fmt: skip


def dressed(row: RankRow, *, coverage: float = 0.998, num_devices: int = 1) -> RankRow:
    """``row`` with everything that hooks in torch would add; grows with its steps."""
    rank, steps = int(row.rank), row.step or 0
    devices = tuple(_device(f"cuda:{index}", rank, steps) for index in range(num_devices))
    return replace(
        row,
        collectives=_collectives(rank, row.totals.wall_seconds),
        groups=(
            GroupRow("0", 26 * steps, 26 * steps - 1, coverage),
            GroupRow("12", 2 * steps, None, None),
        ),
        devices=devices,
        host_memory=HostMemory(3.1 * GIB + (rank + steps) * 12 * MIB, 1.25 * MIB),
        held=tuple(
            HeldMemory("weight_sync", "end/offload", device.device, 2 * GIB, 3 * GIB)
            for device in devices
        ),
        counters_total={"micro_batches": 2.0 * steps, "optimizer_steps": float(steps)},
        gauges={
            **{f"patch/{name}": 1.0 for name in HOOKS},
            "patch/grad_scaler": 0.0,
            "guest/overhead_ratio": 0.00031 + 0.00002 * rank,
        },
    )


def in_collective(row: RankRow, seconds: float) -> RankRow:
    """``row`` where it has been in an all-reduce for a while, inside what it was in."""
    span = OpenSpan("collective", "all_reduce@0", row.begin_seconds, seconds, None, sequence=1234)
    return replace(row, inflight=(*row.inflight, span))


def _collectives(rank: int, wall_seconds: float) -> tuple[CollectiveTime, ...]:
    peers = 0.01 if rank == 2 else 0.07 + 0.01 * (rank % 3)
    parts = [("0", "backward", peers, 0.02, 0.0), ("12", "optimizer", 0.002, 0.004, 0.006)]
    return tuple(
        CollectiveTime(
            group, stage, "arrival", 1170, 96.0 * GIB,
            peers * wall_seconds, transfer * wall_seconds, unmatched * wall_seconds,
        )
        for group, stage, peers, transfer, unmatched in parts
    )  # fmt: skip


def _device(name: str, rank: int, steps: int) -> DeviceMemory:
    allocated = (41 + (rank * 7 + steps) % 9) * GIB
    peaks = {"rollout": 58 * GIB, "backward": 66.2 * GIB, "weight_sync": 44 * GIB}
    return DeviceMemory(name, allocated, 68 * GIB, 80 * GIB, 0.0, 0.0, peaks)
