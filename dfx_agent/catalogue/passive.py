"""Processes without a guest, as they are seen from outside: no times of stages, no waits."""

from dfx_agent.catalogue.spec import PER_RANK, Metric

CPU_SECONDS = Metric(
    "dfx_passive_cpu_seconds", "counter", "seconds", PER_RANK,
    "Processor time of a process without a guest since it began, all threads, from /proc.",
    "agent",
)  # fmt: skip
THREADS = Metric(
    "dfx_passive_threads", "gauge", "", (*PER_RANK, "state"),
    "Threads of a process without a guest by the kernel's letter: R runs, S sleeps, D waits for a "
    "device, T is stopped.", "agent",
)  # fmt: skip
STACK_SAMPLES = Metric(
    "dfx_passive_stack_samples", "counter", "", (*PER_RANK, "stage"),
    "Stacks of the main thread that py-spy saw, by the stage that their frames show (empty: none "
    "that is known); a sample every few seconds, no measure of time.", "agent",
)  # fmt: skip
STACK_FAILURES = Metric(
    "dfx_passive_stack_failures", "counter", "", PER_RANK,
    "Stacks that py-spy could not read; a process that runs on is sometimes caught in between.",
    "agent",
)  # fmt: skip

METRICS = (CPU_SECONDS, THREADS, STACK_SAMPLES, STACK_FAILURES)
