"""The machine under the job: processors, stalls, faults, limits, shared memory."""

from collections.abc import Callable

from dfx_agent.catalogue.spec import Metric
from dfx_agent.snapshot import AgentRow, HostUse


def _of_host(figure: Callable[[HostUse], float | None]) -> Callable[[AgentRow], float | None]:
    def value(agent: AgentRow) -> float | None:
        host = next((row.host for row in agent.devices if row.host is not None), None)
        return None if host is None else figure(host)

    return value


def _stalled(agent: AgentRow) -> dict[tuple[str, ...], float]:
    hosts = [row.host for row in agent.devices if row.host is not None]
    return {
        (resource, kind): share
        for host in hosts
        for resource, kinds in host.stalled_ratio.items()
        for kind, share in kinds.items()
    }


CPU = Metric(
    "dfx_host_cpu_ratio", "gauge", "ratio", (),
    "Share of the machine's processors that worked since the look before.", "device",
    subject="agent", value=_of_host(lambda host: host.cpu_ratio),
)  # fmt: skip
STALLED = Metric(
    "dfx_host_stalled_ratio", "gauge", "ratio", ("resource", "kind"),
    "Share of the last 10 s in which some, or all (full), tasks of the machine stood still for a "
    "resource (PSI): cpu, memory, io.", "device",
    subject="agent", value=_stalled,
)  # fmt: skip
MAJOR_FAULTS = Metric(
    "dfx_host_major_page_faults", "counter", "", (),
    "Pages that had to be read from a disk since the machine booted.", "device",
    subject="agent", value=_of_host(lambda host: host.num_major_faults),
)  # fmt: skip
OOM_KILLS = Metric(
    "dfx_host_oom_kills", "counter", "", (),
    "Processes that the kernel's OOM killer has ended since the machine booted.", "device",
    subject="agent", value=_of_host(lambda host: host.num_oom_kills),
)  # fmt: skip
SHM_TOTAL = Metric(
    "dfx_host_shm_total_bytes", "gauge", "bytes", (),
    "Size of /dev/shm, which data loaders, NCCL and the guests write into.", "device",
    subject="agent", value=_of_host(lambda host: host.shm_total_bytes),
)  # fmt: skip
SHM_USED = Metric(
    "dfx_host_shm_used_bytes", "gauge", "bytes", (),
    "Used of /dev/shm; full ends jobs with a bus error.", "device",
    subject="agent", value=_of_host(lambda host: host.shm_used_bytes),
)  # fmt: skip
LIMIT = Metric(
    "dfx_host_memory_limit_bytes", "gauge", "bytes", (),
    "Memory limit of the control group that the agent is in; absent where there is none.", "device",
    subject="agent", value=_of_host(lambda host: host.limit_bytes),
)  # fmt: skip
LIMIT_USED = Metric(
    "dfx_host_memory_limit_used_bytes", "gauge", "bytes", (),
    "Memory that counts against that limit, without file pages that can be dropped.", "device",
    subject="agent", value=_of_host(lambda host: host.limit_used_bytes),
)  # fmt: skip
CPU_LIMIT = Metric(
    "dfx_host_cpu_limit", "gauge", "", (),
    "Processors that the control group of the agent may use; absent where there is no quota.",
    "device",
    subject="agent", value=_of_host(lambda host: host.cpu_limit),
)  # fmt: skip
CPU_THROTTLED = Metric(
    "dfx_host_cpu_throttled_seconds", "counter", "seconds", (),
    "Time in which that quota held threads back.", "device",
    subject="agent", value=_of_host(lambda host: host.cpu_throttled_seconds),
)  # fmt: skip
