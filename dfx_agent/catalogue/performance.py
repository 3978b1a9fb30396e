"""How long steps and stages take, and when they ran."""

from collections.abc import Callable, Iterable
from statistics import fmean

from dfx_agent.catalogue.spec import PER_NODE, PER_RANK, Metric, native
from dfx_agent.snapshot import LedgerRow, RankRow, RunRow, StepRow

_STEP_SAMPLES = "dfx_step_samples"
_NUM_LATEST = 8
# stages whose own time is that of the work; an update has most of its time in the stages inside it
_SINGLE_STAGES = frozenset({"rollout", "reward", "old_logprob", "ref_logprob", "values"})


def samples_per_second(run: RunRow) -> float | None:
    """Samples per second of the latest step with reported samples.

    Without reported samples the shape ledger is used, else the models. Reported samples and those
    of the ledger count the full step, so ranks are not summed. The slowest role sets the time. If
    the step is not shown (not over yet, or long ago), the mean time of the latest 8 is used.
    """
    step, num_samples = _reported_samples(run)
    if num_samples is None and run.ledger is not None:
        step, num_samples = run.ledger.step, run.ledger.num_samples
    if step is None or num_samples is None:
        return max(map(_forward_samples_per_second(run), _latest_rows(run)), default=0.0) or None
    rows = [row for row in run.steps if row.step == step] or run.steps
    by_role: dict[str, list[float]] = {}
    for row in rows:
        by_role.setdefault(row.role, []).append(row.end_seconds - row.begin_seconds)
    seconds = max((fmean(of_role[-_NUM_LATEST:]) for of_role in by_role.values()), default=0.0)
    return num_samples / seconds if seconds > 0.0 else None


def _reported_samples(run: RunRow) -> tuple[int | None, float | None]:
    """Step, and its number of samples."""
    for row in run.scalars:
        if row.metric == _STEP_SAMPLES and not any(row.labels.values()) and row.moments.count:
            return row.step, row.moments.sum / row.moments.count
    return None, None


def _forward_samples_per_second(run: RunRow) -> Callable[[StepRow], float]:
    """Counts only ranks at position 0 of all axes but data: the others have the same samples."""
    followers = {(rank.role, rank.rank) for rank in run.ranks if has_samples_of_another(rank)}

    def of_step(row: StepRow) -> float:
        cells = (cell for cell in row.cells if (row.role, cell.rank) not in followers)
        seconds = row.end_seconds - row.begin_seconds
        return sum(cell.num_samples or 0.0 for cell in cells) / seconds if seconds > 0.0 else 0.0

    return of_step


def _stage_rate(
    amount: Callable[[LedgerRow], int | None],
) -> Callable[[RunRow], dict[tuple[str, ...], float]]:
    """By role and stage: what the stage processed in its latest step / its time in that step.

    The amount is that of the boundary with the stage's name, over all ranks that have samples of
    their own.
    """

    def rates(run: RunRow) -> dict[tuple[str, ...], float]:
        amounts: dict[tuple[str, str, int | None], float] = {}
        for rank in run.ranks:
            for row in () if has_samples_of_another(rank) else rank.ledger:
                place, number = (rank.role, row.boundary, row.step), amount(row)
                if number is not None and row.boundary in _SINGLE_STAGES:
                    amounts[place] = amounts.get(place, 0.0) + number
        seconds = {place: _stage_seconds(run, *place) for place in amounts}
        return {
            (role, stage): amounts[role, stage, step] / seconds[role, stage, step]
            for role, stage, step in sorted(amounts, key=lambda place: place[2] or -1)
            if seconds[role, stage, step] > 0.0
        }

    return rates


def _stage_seconds(run: RunRow, role: str, stage: str, step: int | None) -> float:
    """Time of the slowest rank in the stage; the mean of the shown steps if the step is not."""
    rows = [row for row in run.steps if row.role == role]
    slowest = [
        max((cell.split.stage_seconds.get(stage, 0.0) for cell in row.cells), default=0.0)
        for row in [row for row in rows if row.step == step] or rows
    ]
    return fmean(slowest) if slowest else 0.0


def has_samples_of_another(rank: RankRow) -> bool:
    """Whether it is not at position 0 of all axes but data: then another rank has its samples."""
    return any(index for axis, index in rank.place.items() if axis != "data")


def _latest_rows(run: RunRow) -> Iterable[StepRow]:
    """The latest closed step of each role."""
    return {row.role: row for row in run.steps}.values()


def _tokens_per_second(run: RunRow) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for row in _latest_rows(run):
        seconds = row.end_seconds - row.begin_seconds
        for kind in {kind for cell in row.cells for kind in cell.tokens} if seconds > 0 else ():
            num_tokens = sum(cell.tokens.get(kind, 0.0) for cell in row.cells)
            found[row.role, kind] = num_tokens / seconds
    return found


def _innermost(rank: RankRow) -> dict[tuple[str, ...], float]:
    spans = [span for span in rank.inflight if span.kind != "collective"]
    return {(span.kind, span.name): span.elapsed_seconds for span in spans[-1:]}


RUN_INFO = Metric(
    "dfx_run", "info", "", ("run", "framework", "attempt"),
    "A training run the agent follows; attempt counts restarts.", "agent",
)  # fmt: skip
RUN_LIVE = Metric(
    "dfx_run_live", "gauge", "", PER_NODE,
    "1 while a process of the run lives, 0 once all have ended: then its alerts are over, except "
    "those that say how it ended.", "agent",
    subject="run", value=lambda run: 0.0 if run.ending else 1.0,
)  # fmt: skip
STEP = Metric(
    "dfx_step", "gauge", "", PER_RANK, "Training step the process is in now.", "shim",
    subject="rank", value=lambda rank: rank.step,
)  # fmt: skip
RANK_STEP_SECONDS = Metric(
    "dfx_rank_step_seconds", "gauge", "seconds", PER_RANK,
    "Wall time of the rank's last closed step, from set_step to set_step.", "derived",
    subject="guest", value=lambda rank: rank.last and rank.last.wall_seconds,
)  # fmt: skip
RANK_STAGE_SECONDS = Metric(
    "dfx_rank_stage_seconds", "gauge", "seconds", (*PER_RANK, "stage"),
    "Exclusive time of the stage in the rank's last closed step, without waits.", "derived",
    subject="guest", value=lambda rank: rank.last and rank.last.stage_seconds,
)  # fmt: skip
BUBBLE_RATIO = Metric(
    "dfx_pipeline_bubble_ratio", "gauge", "ratio", (*PER_NODE, "role"),
    "1 - sum of active time over ranks / (ranks x wall time), of the last closed step.", "derived",
    subject="run", value=lambda run: {
        (row.role,): row.bubble_ratio for row in _latest_rows(run) if row.bubble_ratio is not None
    },
)  # fmt: skip
STEP_TOKENS_RATE = Metric(
    "dfx_pipeline_tokens_per_second", "gauge", "", (*PER_NODE, "role", "kind"),
    "Tokens of the last closed step over its ranks / its wall time, by kind (prompt, response).",
    "derived",
    subject="run", value=_tokens_per_second,
)  # fmt: skip
SAMPLES_RATE = Metric(
    "dfx_samples_per_second", "gauge", "", PER_NODE,
    "Samples of the latest step with known samples / its wall time: as the framework reports "
    "them, else of the first boundary of the shape ledger, else rows that entered trained forward "
    "passes (each pass counts).", "derived",
    subject="run", value=samples_per_second,
)  # fmt: skip
STAGE_SAMPLES_RATE = Metric(
    "dfx_stage_samples_per_second", "gauge", "", (*PER_NODE, "role", "stage"),
    "Samples of the latest step at the boundary of the shape ledger with the stage's name / time "
    "of the slowest rank in the stage, without waits; of rollout, reward, log-prob and value "
    "stages. Stage reward: throughput of the reward.",
    "derived",
    subject="run", value=_stage_rate(lambda row: row.num_samples),
)  # fmt: skip
STAGE_TOKENS_RATE = Metric(
    "dfx_stage_tokens_per_second", "gauge", "", (*PER_NODE, "role", "stage"),
    "The same for tokens that count in the response mask.", "derived",
    subject="run", value=_stage_rate(lambda row: row.num_tokens),
)  # fmt: skip
STAGE_START = Metric(
    "dfx_stage_start_timestamp_seconds", "gauge", "seconds", (*PER_RANK, "stage", "slot"),
    "Unix time of the last begin of the stage; slot (0 to 3, in turn) distinguishes repeats "
    "within a step; idle is a stage of its own.", "shim",
)  # fmt: skip
STAGE_END = Metric(
    "dfx_stage_end_timestamp_seconds", "gauge", "seconds", (*PER_RANK, "stage", "slot"),
    "When the stage last ended, Unix time; absent while its first run is open.", "shim",
)  # fmt: skip
INFLIGHT_SECONDS = Metric(
    "dfx_rank_inflight_seconds", "gauge", "seconds", (*PER_RANK, "kind", "stage"),
    "How long the innermost open stage or wait has been open; no series when nothing is.", "shim",
    subject="guest", value=_innermost,
)  # fmt: skip
POLICY_VERSION = Metric(
    "dfx_policy_version", "gauge", "", PER_RANK,
    "Version of the weights the process acts with.", "shim",
    subject="rank", value=lambda rank: rank.policy_version,
)  # fmt: skip
NATIVE_STAGE_SECONDS = Metric(
    "dfx_stage_seconds", "gauge", "seconds", (*PER_RANK, "stage", "domain"),
    "Stage time as the framework's own timer reports it (controller's view).", "native",
)  # fmt: skip
STEP_SECONDS = Metric(
    "dfx_step_seconds", "gauge", "seconds", PER_RANK,
    "Step time as the framework itself reports it.", "native",
)  # fmt: skip
TOKENS_PER_SECOND_PER_GPU = Metric(
    "dfx_tokens_per_second_per_gpu", "gauge", "", (*PER_RANK, "scope"),
    "Tokens per second and device as the framework reports it.", "native",
)  # fmt: skip
STEP_TOKENS = Metric(
    "dfx_step_tokens", "gauge", "tokens", (*PER_RANK, "variant", "scope"),
    "Prompt and response tokens of the step as the framework reports them.", "native",
)  # fmt: skip
SUSTAINED_TOKENS_RATIO = Metric(
    "dfx_step_tokens_sustained_ratio", "gauge", "", (*PER_NODE, "role"),
    "Tokens of a step, all ranks of the agent together / median of the 32 steps before the latest "
    "two; the smaller of the latest two steps. Absent until 10 steps had tokens.", "derived",
    subject="run", value=lambda run: run.sustained_tokens_ratio,
)  # fmt: skip

LATEST_TOKENS_RATIO = Metric(
    "dfx_step_tokens_latest_ratio", "gauge", "", (*PER_NODE, "role"),
    "Tokens of the latest step, all ranks of the agent together / median of the 32 steps before "
    "the latest two. Absent until 10 steps had tokens.", "derived",
    subject="run", value=lambda run: run.latest_tokens_ratio,
)  # fmt: skip
TOKEN_IMBALANCE = Metric(
    "dfx_step_tokens_imbalance_ratio", "gauge", "", (*PER_NODE, "role"),
    "Tokens of the rank that has most / mean over ranks, of each step; median of the latest 8 "
    "steps. 1 is balanced. Absent for a single rank.", "derived",
    subject="run", value=lambda run: run.token_imbalance,
)  # fmt: skip

# only logged by frameworks: the mapping names them
# fmt: off
_NATIVE = (
    native(
        "dfx_stage_worker_seconds", "seconds", ("cluster", "op", "part"),
        "Time of one worker method by part (total, execute, onload, offload), mean over ranks.",
    ),
    native(
        "dfx_stage_token_seconds", "seconds", ("stage",),
        "Stage time per token; rollout: per response token, others: per token of prompt and "
        "response.",
    ),
    native(
        "dfx_tokens", "tokens", (),
        "Tokens trained on since the run began, as the framework reports them.", kind="counter",
    ),
    native(
        "dfx_step_samples", "", (),
        "Samples of the step.",
    ),
    native(
        "dfx_step_groups", "", ("variant",),
        "Prompt groups of the step.",
    ),
    native(
        "dfx_groups", "", (),
        "Prompt groups since the run began, as the framework reports them.", kind="counter",
    ),
    native(
        "dfx_samples", "", ("variant",),
        "Samples since the run began, as the framework reports them.", kind="counter",
    ),
    native(
        "dfx_tokens_per_second", "", ("scope",),
        "Tokens per second as the framework reports them; scope says of what and over which "
        "time.",
    ),
    native(
        "dfx_env_steps_per_second", "", (),
        "Environment steps per second.",
    ),
    native(
        "dfx_mfu_ratio", "ratio", ("model", "basis"),
        "Model FLOP/s / peak FLOP/s as the framework estimates it; not comparable between "
        "frameworks, basis says which time it is over.",
    ),
    native(
        "dfx_flops_per_second_per_gpu", "", ("stage",),
        "Model FLOP/s of one device in the stage, as the framework estimates it.",
    ),
    native(
        "dfx_pipeline_idle_ratio", "ratio", ("side",),
        "Share of its time that this side of an asynchronous pipeline waits for the other, as "
        "the framework reports it.",
    ),
    native(
        "dfx_resource_utilization_ratio", "ratio", ("side",),
        "Share of the allocated device time that is used, as verl's dynamic resource mode "
        "reports it.",
    ),
)
# fmt: on
