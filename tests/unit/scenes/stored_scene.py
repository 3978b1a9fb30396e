"""Files of stored runs, written as an agent writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfx_agent.exporters.history.run_file import Fact, RunFile
from dfx_agent.snapshot import (
    AgentRow,
    AlertRow,
    Incident,
    RankRow,
    RunRow,
    Standing,
    StepCell,
    StepRow,
    TimeSplit,
)

BEGIN = 1_795_000_000.0
AGENT = AgentRow("0.1", 1, "n", BEGIN, 1, 0.0, 1, 5, 0, 0, 0, None, ())
CLEAR = Standing("clear", "No problem found.")
STRAGGLER = Incident(
    id="i1", kind="straggler", state="found", severity="critical", role="trainer", ranks=("1",),
    stage="rollout", cause="slow", since_seconds=BEGIN + 40, step=4, lost_seconds=0.5, summary="s",
    cost="c", action="a", sentence="Rank 1 delays the others.", alerts=("DfxStraggler",),
    evidence=("e",), end_seconds=BEGIN + 70,
)  # fmt: skip
ALERT = AlertRow(
    "r", "DfxStraggler", "warning", {"rank": "1"}, "slow", BEGIN + 41, 4, is_inhibited=False,
    lines=(), meaning="", diagnosis="", mitigation="",
)  # fmt: skip
ENDED = "The run ended at 12:00:00 in step 40: ranks 0, 1 exited."


def rank_row(rank: int = 0, world_size: int | None = 2, pid: int = 7) -> RankRow:
    return RankRow(
        role="trainer", rank=str(rank), local_rank=rank, world_size=world_size, node="n",
        pid=pid + rank, attempt=0, state="exited", begin_seconds=BEGIN,
        last_event_seconds=BEGIN + 400, step=None, step_begin_seconds=None, inflight=(),
        totals=TimeSplit(), current=TimeSplit(), last=None, tokens_total={}, queue_depth={},
        policy_version=None, scalars=(), stamps=(), num_records=5, num_lost_records=0,
        num_late_records=0, num_guest_drops=0,
    )  # fmt: skip


def step_row(
    step: int, stages: Mapping[str, float], tokens: float | None = 100.0, num_ranks: int = 2,
    waits: Mapping[str, Mapping[str, float]] | None = None,
) -> StepRow:  # fmt: skip
    """A step of equal ranks; its wall time is that of its stages and waits."""
    waited = sum(sum(by_stage.values()) for by_stage in (waits or {}).values())
    active = sum(stages.values())
    split = TimeSplit(active + waited, active, 0.0, stages, waits or {})
    counted = {} if tokens is None else {"response": tokens}
    cells = tuple(StepCell(str(rank), split, counted) for rank in range(num_ranks))
    begin = BEGIN + 10.0 * step
    return StepRow(step, "trainer", begin, begin + active + waited, (), None, cells)


def jittered(step: int) -> float:
    """A factor near 1 that has no order, as step times have."""
    return 1 + 0.02 * ((step * 7919) % 11 - 5) / 5


def steps(
    rollout: float = 1.0, update: float = 0.5, number: int = 40, tokens: float | None = 100.0,
    num_ranks: int = 2,
) -> list[StepRow]:  # fmt: skip
    return [
        step_row(
            step,
            {"rollout": rollout * jittered(step), "actor_update": update * jittered(step + 3)},
            tokens,
            num_ranks,
        )
        for step in range(1, number + 1)
    ]


@dataclass(frozen=True)
class Stored:
    """What an agent has stored of a run."""

    rows: Sequence[StepRow] = ()
    facts: Sequence[Fact] = ()
    incidents: Sequence[Incident] = ()
    alerts: Sequence[AlertRow] = ()
    scalars: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    world_size: int | None = 2
    ending: str = ENDED
    begin_seconds: float = BEGIN


def store(directory: Path, run: str = "r", **given: Any) -> str:
    """The path of a new file with one run; ``given`` as in ``Stored``."""
    stored = Stored(**given)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    ranks = (rank_row(0, stored.world_size), rank_row(1, stored.world_size))
    row = RunRow(
        run, "trl", 0, stored.begin_seconds, ranks, (), (), standing=CLEAR,
        past_incidents=tuple(stored.incidents), ending=stored.ending,
    )  # fmt: skip
    file = RunFile.open_for(str(directory), row, "WAL")
    file.begin()
    file.write_agent(AGENT)
    file.write_facts(stored.facts)
    file.write_steps(stored.rows, 0)
    file.write_scalars(stored.scalars)
    file.write_alerts(stored.alerts, BEGIN + 50)
    file.write_run(row, BEGIN + 400)
    file.commit()
    file.close(is_complete=True)
    return file.path
