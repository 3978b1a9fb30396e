"""What the models of a rank multiply, and how much of its device's peak that is (MFU)."""

from collections.abc import Iterator, Sequence

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import RankRow, RunRow, WorkRow

# what the guest counts: "flops/<way>/<type of numbers>/<stage>"
COUNTER = "flops/"
# and "passes/<tokens or pairs>/<stage>", which become FLOPs with a model's config.json
# "code/": stack samples, which the pipeline verdict reads; samples become samples per second
COUNTERS = (COUNTER, "passes/", "code/", "forward/samples")


def _mfu_by_stage(rank: RankRow) -> dict[tuple[str, ...], float]:
    work = rank.work
    return {} if work is None else {
        (stage.stage, work.peak_source): stage.mfu_ratio
        for stage in work.stages
        if stage.mfu_ratio is not None
    }  # fmt: skip


def _mfu_of_step(rank: RankRow) -> dict[tuple[str, ...], float]:
    work = rank.work
    has_ratio = work is not None and work.mfu_ratio is not None
    return {(work.peak_source,): work.mfu_ratio} if work and has_ratio else {}  # type: ignore[dict-item]


def _flops_per_second(rank: RankRow) -> dict[tuple[str, ...], float]:
    return {
        (stage.stage,): (stage.forward_flops + stage.backward_flops) / stage.seconds
        for stage in (rank.work.stages if rank.work else ())
        if stage.seconds
    }


def _flops(rank: RankRow) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for name, number in rank.counters_total.items():
        if name.startswith(COUNTER):
            way, _, stage = [*name[len(COUNTER) :].split("/", 2), "", ""][:3]
            found[way, stage] = found.get((way, stage), 0.0) + number
    return found


MFU = Metric(
    "dfx_rank_mfu_ratio", "gauge", "ratio", (*PER_RANK, "stage", "peak_source"),
    "Model FLOPs of the stage in the rank's latest step / (peak FLOP/s of its device x time in "
    "which the stage was open, waits included); peak_source is table or override.", "derived",
    subject="guest", value=_mfu_by_stage,
)  # fmt: skip
STEP_MFU = Metric(
    "dfx_rank_step_mfu_ratio", "gauge", "ratio", (*PER_RANK, "peak_source"),
    "Model FLOPs of the rank's latest step / (peak FLOP/s of its device x wall time of the step).",
    "derived",
    subject="guest", value=_mfu_of_step,
)  # fmt: skip
MFU_UNKNOWN = Metric(
    "dfx_rank_mfu_unknown", "gauge", "", (*PER_RANK, "reason"),
    "1 for a rank with a detected model and without an MFU; reason says why.", "derived",
    subject="guest", value=lambda rank: (
        {(rank.work.reason,): 1.0} if rank.work and rank.work.reason else {}
    ),
)  # fmt: skip
FLOPS_RATE = Metric(
    "dfx_rank_stage_model_flops_per_second", "gauge", "", (*PER_RANK, "stage"),
    "Model FLOPs of the stage in the rank's latest step / time in which the stage was open.",
    "derived",
    subject="guest", value=_flops_per_second,
)  # fmt: skip
MODEL_FLOPS = Metric(
    "dfx_rank_model_flops", "counter", "", (*PER_RANK, "way", "stage"),
    "Model FLOPs that the rank's models did, counted from their shapes; way is forward or "
    "backward.", "shim",
    subject="guest", value=_flops,
)  # fmt: skip

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))


def work_lines(run: RunRow) -> tuple[str, ...]:
    """A line for each role whose models were met, as page and report show it."""
    roles: dict[str, list[WorkRow]] = {}
    for rank in run.ranks:
        if rank.work is not None:
            roles.setdefault(rank.role, []).append(rank.work)
    return tuple(f"{role}: {_words(rows)}" for role, rows in roles.items())


def _words(rows: Sequence[WorkRow]) -> str:
    first = rows[0]
    models = {m.name: m for row in rows for m in row.models}.values()
    met = ", ".join(f"{m.name} {_short(m.num_parameters)} parameters" for m in models)
    ratios = [row.mfu_ratio for row in rows if row.mfu_ratio is not None]
    stages = ", ".join(_stage_words(rows, is_ratio=bool(ratios)))
    if ratios:
        peak = _short(first.peak_flops_per_second or 0.0)
        source = f"peak {peak}FLOP/s, by {first.peak_source}"
        text = f"MFU {sum(ratios) / len(ratios):.2%} of the step ({source}): {stages}"
    else:
        text = f"no MFU: {first.reason}" + (f"; {stages}" if stages else "")
    return f"{text} · {met}" if met else text


def _stage_words(rows: Sequence[WorkRow], *, is_ratio: bool) -> Iterator[str]:
    """Means over ranks, by stage."""
    stages = sorted({s.stage for row in rows for s in row.stages if s.seconds})
    for name in stages:
        own = [s for row in rows for s in row.stages if s.stage == name]
        ratios = [s.mfu_ratio for s in own if s.mfu_ratio is not None]
        rates = [(s.forward_flops + s.backward_flops) / s.seconds for s in own if s.seconds]
        if is_ratio and ratios:
            yield f"{name} {sum(ratios) / len(ratios):.2%}"
        elif rates:
            yield f"{name} {_short(sum(rates) / len(rates))}FLOP/s"


def _short(number: float) -> str:
    """As in "1.1 M", "989 T"."""
    unit, letter = next(((u, prefix) for u, prefix in _UNITS if number >= u), (1.0, ""))
    return f"{number / unit:.3g} {letter}"
