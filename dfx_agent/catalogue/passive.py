"""Processes without a guest, observed from outside: no times of stages, no waits."""

from dfx_agent.catalogue.spec import PER_RANK, Metric
from dfx_agent.snapshot import RankRow


def _stack_failures(rank: RankRow) -> int | None:
    look = rank.outside
    has_looked = look is not None and (look.stage_samples or look.num_failed_samples)
    return look.num_failed_samples if look is not None and has_looked else None


CPU_SECONDS = Metric(
    "dfx_passive_cpu_seconds", "counter", "seconds", PER_RANK,
    "CPU time of a process without a guest since it began, all threads, from /proc.",
    "agent",
    subject="rank", value=lambda rank: rank.outside and rank.outside.cpu_seconds,
)  # fmt: skip
THREADS = Metric(
    "dfx_passive_threads", "gauge", "", (*PER_RANK, "state"),
    "Threads of a process without a guest by the kernel's letter: R runs, S sleeps, D waits for a "
    "device, T is stopped.", "agent",
    subject="rank", value=lambda rank: rank.outside and rank.outside.num_threads,
)  # fmt: skip
STACK_SAMPLES = Metric(
    "dfx_passive_stack_samples", "counter", "", (*PER_RANK, "stage"),
    "Stacks of the main thread that py-spy sampled, by the stage of their frames (empty: no known "
    "stage); a sample every few seconds, not a measure of time.", "agent",
    subject="rank", value=lambda rank: rank.outside and rank.outside.stage_samples,
)  # fmt: skip
STACK_FAILURES = Metric(
    "dfx_passive_stack_failures", "counter", "", PER_RANK,
    "Stacks that py-spy could not read; a process that runs on is sometimes caught in between.",
    "agent",
    subject="rank", value=_stack_failures,
)  # fmt: skip
