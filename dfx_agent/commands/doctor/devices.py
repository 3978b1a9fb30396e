"""Devices: which are here, whether SM activity is measured, and what cannot be read of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dfx_agent.agent.device_check import KindOfDevice, check_devices
from dfx_agent.commands.doctor.finding import Finding
from dfx_agent.snapshot import DeviceRow
from dfx_agent.snapshot.devices import device_text

_PATIENCE_SECONDS = 10.0
_NAMES = {"nvidia": "NVIDIA", "amd": "AMD", "ascend": "Ascend", "host": "host"}
_NONE = "no such device: there is no driver for one, or it shows none here"
_REFUSABLE = "(GPM)"
_SOURCES = {"nvml_gpm": "GPM", "dcgm": "a dcgm-exporter", "dcmi": "DCMI", "amdsmi": "amdsmi"}


def findings(kinds: Sequence[KindOfDevice] | None = None) -> Iterator[Finding]:
    for kind in check_devices(_PATIENCE_SECONDS) if kinds is None else kinds:
        name = _NAMES.get(kind.name, kind.name)
        if kind.problem:
            text, _, remedy = kind.problem.partition("; ")
            yield Finding(name, "problem", text, remedy)
        elif not kind.rows:
            yield Finding(name, "absent", _NONE)
        else:
            yield from _of_rows(name, kind.rows)


def _of_rows(name: str, rows: Sequence[DeviceRow]) -> Iterator[Finding]:
    devices = [row for row in rows if row.is_accelerator]
    if not devices:
        yield from map(_host, rows)
        return
    models = Counter(row.model or "unknown model" for row in devices)
    yield Finding(name, "ok", ", ".join(f"{number} × {model}" for model, number in models.items()))
    yield _activity(name, devices)
    yield from _problems(devices)


def _problems(devices: Sequence[DeviceRow]) -> Iterator[Finding]:
    """What many devices alike say is said once."""
    devices_by_problem: dict[str, list[str]] = {}
    for row in devices:
        for problem in row.problems:
            devices_by_problem.setdefault(problem, []).append(device_text(row.device))
    for problem, (first, *others) in devices_by_problem.items():
        subject = f"{first} and {len(others)} more" if others else first
        text, _, remedy = problem.partition("; ")
        yield Finding(subject, "problem", text, remedy)


def _activity(name: str, devices: Sequence[DeviceRow]) -> Finding:
    """SM activity shows how busy a device is; utilisation shows only that something runs."""
    sources = {row.active_source for row in devices if "sm" in row.active_ratio}
    subject = f"{name}, activity"
    if sources:
        by = ", ".join(sorted(_SOURCES.get(source, source) for source in sources))
        cores = "AI Core" if name == "Ascend" else "SM"
        return Finding(subject, "ok", f"{cores} activity is measured by {by}")
    text = "SM activity is not measured: utilisation alone, which is higher"
    is_refused = any(_REFUSABLE in problem for row in devices for problem in row.problems)
    remedy = ""
    if name == "NVIDIA":
        before_hopper = "before Hopper start a dcgm-exporter and name it in DFX_DCGM_URL"
        remedy = "see below what each GPU says of GPM" if is_refused else before_hopper
    return Finding(subject, "absent", text, remedy)


def _host(row: DeviceRow) -> Finding:
    use = row.host
    facts = [f"{(row.total_bytes or 0) / 2**30:.0f} GiB of memory"]
    if use is not None and use.limit_bytes is not None:
        facts.append(f"the container may use {use.limit_bytes / 2**30:.1f} GiB")
    if use is not None and use.cpu_limit is not None:
        facts.append(f"{use.cpu_limit:g} processors for the container")
    if use is not None:
        facts.append("stalls are reported (PSI)" if use.stalled_ratio else "no stalls: without PSI")
    return Finding("host", "ok", ", ".join(facts))
