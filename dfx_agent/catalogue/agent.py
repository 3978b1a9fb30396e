"""The agent and the guest about themselves: nothing is lost silently."""

from collections import Counter
from collections.abc import Iterator

from dfx_agent.catalogue.spec import PER_NODE, PER_RANK, Metric
from dfx_agent.snapshot import RankRow


def _patches(rank: RankRow) -> Iterator[tuple[tuple[str], float]]:
    for name, state in rank.gauges.items():
        head, _, rest = name.partition("/")
        if head == "patch":
            yield (rest,), state


NATIVE_METRIC = Metric(
    "dfx_native_metric", "gauge", "", (*PER_RANK, "framework", "key"),
    "A native key without a mapping, in its native unit: exported, never dropped.", "native",
)  # fmt: skip
UNMAPPED_KEYS = Metric(
    "dfx_unmapped_keys", "gauge", "", PER_RANK,
    "Native keys of this rank without a mapping: rises when a framework renames a key.",
    "agent",
)  # fmt: skip
UNEXPORTED_KEYS = Metric(
    "dfx_unexported_keys", "gauge", "", PER_RANK,
    "Keys among dfx_unmapped_keys beyond the first 200: they are counted and have no series.",
    "agent",
)  # fmt: skip
NATIVE_COUNT = Metric(
    "dfx_native_count", "counter", "", (*PER_RANK, "key"),
    "A count that the guest collects under a name that is not in the catalogue.", "shim",
)  # fmt: skip
AGENT_INFO = Metric(
    "dfx_agent", "info", "", ("version",), "The agent that answers this scrape.", "agent",
)  # fmt: skip
AGENT_POLLS = Metric(
    "dfx_agent_polls", "counter", "", (), "Times the agent read all segments.", "agent",
    subject="agent", value=lambda agent: agent.num_polls,
)  # fmt: skip
AGENT_POLL_SECONDS = Metric(
    "dfx_agent_poll_seconds", "gauge", "seconds", (), "How long the last reading took.", "agent",
    subject="agent", value=lambda agent: agent.poll_elapsed_seconds,
)  # fmt: skip
AGENT_SEGMENTS = Metric(
    "dfx_agent_segments", "gauge", "", (), "Segments the agent follows.", "agent",
    subject="agent", value=lambda agent: agent.num_segments,
)  # fmt: skip
AGENT_REAPED = Metric(
    "dfx_agent_reaped_segments", "counter", "", (),
    "Segments removed after their process was gone.", "agent",
    subject="agent", value=lambda agent: agent.num_reaped_segments,
)  # fmt: skip
DROPPED_RUNS = Metric(
    "dfx_agent_dropped_runs", "counter", "", (),
    "Ended runs that are no longer shown. The latest 32 are shown, each for an hour.", "agent",
    subject="agent", value=lambda agent: agent.num_dropped_runs,
)  # fmt: skip
DROPPED_RANKS = Metric(
    "dfx_dropped_ranks", "counter", "", (*PER_NODE, "role"),
    "Ended processes without series. Each run retains the latest 64 that closed, the latest 64 "
    "that died, and 256 of each from the ranks of its world.", "agent",
    subject="run", value=lambda run: {(row.role,): row.num_ranks for row in run.dropped_ranks},
)  # fmt: skip
AGENT_PROBLEMS = Metric(
    "dfx_agent_refused_segments", "gauge", "", ("kind",),
    "Segments the agent cannot read, by reason.", "agent",
    subject="agent",
    value=lambda agent: dict(Counter((problem.kind,) for problem in agent.problems)),
)  # fmt: skip
EXPORTER_ERRORS = Metric(
    "dfx_agent_exporter_errors", "counter", "", (), "Failures of an exporter or a listener.",
    "agent",
    subject="agent", value=lambda agent: agent.num_exporter_errors,
)  # fmt: skip
AGENT_BLIND = Metric(
    "dfx_agent_blind", "gauge", "", (),
    "1 while something has not been read or judged for three periods: /readyz fails and names it. "
    "0 otherwise.", "agent",
)  # fmt: skip
RUN_BLIND = Metric(
    "dfx_agent_run_blind", "gauge", "", PER_NODE,
    "1 while this run, or a part of it, has not been read or judged for three periods: its "
    "verdicts and alerts may be out of date. 0 otherwise.", "agent",
)  # fmt: skip
READ_AGE_SECONDS = Metric(
    "dfx_agent_read_age_seconds", "gauge", "seconds", (),
    "Since all segments were last read to the end; no series before the first time.", "agent",
)  # fmt: skip
JUDGED_AGE_SECONDS = Metric(
    "dfx_agent_judged_age_seconds", "gauge", "seconds", PER_NODE,
    "Since the run was last judged, of its kinds of verdict the one that waits longest; no series "
    "before the first judgement.", "agent",
)  # fmt: skip
AGENT_FAULTS = Metric(
    "dfx_agent_faults", "counter", "", ("part",),
    "Failures of the agent's own work on one process, run or file, each behind its own guard: part "
    "folder, reading, judgement, rendering, keeping or device. The log has the traceback.", "agent",
)  # fmt: skip
JOB_ENDED = Metric(
    "dfx_agent_job_ended", "gauge", "", (),
    "1 once the job that this agent was started with has ended: the agent ends after the next "
    "scrape. 0 before, and for an agent that outlives jobs.", "agent",
    subject="agent", value=lambda agent: agent.is_job_ended,
)  # fmt: skip
RECORDS = Metric(
    "dfx_guest_records", "counter", "", PER_RANK, "Records read from the process.", "agent",
    subject="sender", value=lambda rank: rank.num_records,
)  # fmt: skip
LOST_RECORDS = Metric(
    "dfx_guest_lost_records", "counter", "", PER_RANK,
    "Records overwritten before they were read, counted exactly.", "agent",
    subject="sender", value=lambda rank: rank.num_lost_records,
)  # fmt: skip
EARLIER_RECORDS = Metric(
    "dfx_guest_earlier_records", "gauge", "", PER_RANK,
    "Records overwritten before this agent began to read the process: not lost by it.", "agent",
    subject="sender", value=lambda rank: rank.num_earlier_records,
)  # fmt: skip
LATE_RECORDS = Metric(
    "dfx_guest_late_records", "counter", "", PER_RANK,
    "Spans that arrived after their time had been accounted, or left no record.", "agent",
    subject="sender", value=lambda rank: rank.num_late_records,
)  # fmt: skip
GUEST_DROPS = Metric(
    "dfx_guest_dropped", "counter", "", PER_RANK,
    "What the guest could not record: names beyond its table, open spans beyond its table, "
    "its own errors.", "agent",
    subject="sender", value=lambda rank: rank.num_guest_drops,
)  # fmt: skip
GUEST_OVERHEAD_RATIO = Metric(
    "dfx_guest_overhead_ratio", "gauge", "ratio", PER_RANK,
    "What the guest costs its process, timed in place in the job's threads, and its own thread: "
    "share of the time.", "shim",
    subject="guest", value=lambda rank: rank.gauges.get("guest/overhead_ratio"),
)  # fmt: skip
GUEST_GIVEN_UP = Metric(
    "dfx_guest_given_up", "gauge", "", PER_RANK,
    "What the guest records less often because it cost more than its budget: 1 FLOPs in every 16th "
    "step, 2 also values and batches in every 16th step; and what it does not record: 3 also "
    "stages within a step and FLOPs, 4 also collectives (3 and 4 only under `--max-overhead` or "
    "`DFX_MAX_OVERHEAD`); 0 nothing any more; no series otherwise.",
    "shim",
    subject="guest", value=lambda rank: rank.gauges.get("guest/given_up"),
)  # fmt: skip
PATCH_ACTIVE = Metric(
    "dfx_patch_active", "gauge", "", (*PER_RANK, "name"),
    "1 while the guest observes the job by this hook, 0 where torch has nothing to hook, the hook "
    "is off, or it failed.", "shim",
    subject="guest", value=lambda rank: {name: state > 0 for name, state in _patches(rank)},
)  # fmt: skip
PATCH_FAILED = Metric(
    "dfx_patch_failed", "gauge", "", (*PER_RANK, "name"),
    "1 where this hook could not be installed or taken back; no series otherwise.", "shim",
    subject="guest", value=lambda rank: {name: 1 for name, state in _patches(rank) if state < 0},
)  # fmt: skip
ADAPTER_ACTIVE = Metric(
    "dfx_adapter_active", "gauge", "", (*PER_RANK, "framework", "version", "part"),
    "1 once something has come through this part of the framework, 0 before and where the "
    "installed version has nothing to observe (or it was not imported, or is off), -1 where it "
    "failed.",
    "shim",
)  # fmt: skip
ADAPTER_SILENT = Metric(
    "dfx_adapter_silent", "gauge", "", (*PER_RANK, "framework", "version", "part"),
    "1 where this part is installed and nothing has come through it in any process of the run "
    "though a step of the rank is over (a checkpoint may come later; metrics and steps should have "
    "come); no series otherwise.",
    "shim",
)  # fmt: skip

STALE_SCALARS = Metric(
    "dfx_stale_scalars", "counter", "", PER_NODE,
    "Values without history: of a step long past, or of a name after the first 10,000 of a run.",
    "agent",
    subject="run", value=lambda run: run.num_stale_scalars,
)  # fmt: skip

# gauges of the guest that have a metric of their own
GAUGES = frozenset({"guest/overhead_ratio", "guest/given_up"})
