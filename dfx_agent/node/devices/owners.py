"""Finds the devices that a process of the job uses.

The driver lists the processes of each device by pids of the host. In a container these pids mean
nothing, and the list may be empty. Then environment variables decide which devices are visible to
the process: their current values if the guest reports them, else their values at the start. Its
allocator or its local rank decides which of the visible devices it uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dfx_agent.snapshot import DeviceRow

# vendor -> variables that hide devices, outermost first; each selects from what the previous left
VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
}
# variables that a container runtime sets; they matter if the agent runs outside the container
GIVEN = {
    "nvidia": "NVIDIA_VISIBLE_DEVICES",
    "amd": "AMD_VISIBLE_DEVICES",
    "ascend": "ASCEND_VISIBLE_DEVICES",
}
VARIABLES = (*(name for names in VISIBLE.values() for name in names), *GIVEN.values())
# a variable that is used if the first one is unset
_INSTEAD = {"HIP_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES"}
_MIG_OF_GPU = "mig-gpu-"
_MOST_DIGITS = 6
# torch's device types -> vendors; ROCm uses cuda too
_KINDS = {"cuda": ("nvidia", "amd"), "hip": ("amd",), "npu": ("ascend",)}


@dataclass(frozen=True, slots=True)
class ProcessDevices:
    """What is known about the devices of one process."""

    pid: int  # on the host, 0 if unknown
    environment: Mapping[str, str] = field(default_factory=dict)  # VARIABLES at its start
    is_inside: bool = False  # in a container that the agent is not in
    used: Collection[str] = ()  # devices of its allocator, for example cuda:0; empty if unknown
    local_rank: int = -1  # negative if unknown
    # current values of VARIABLES as the guest reports them, None if unset; override `environment`
    reported: Mapping[str, str | None] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        """Value of one of VARIABLES; None if it is unset."""
        return self.reported[name] if name in self.reported else self.environment.get(name)


def devices_of(sight: ProcessDevices, rows: Sequence[DeviceRow]) -> tuple[str, ...]:
    """Names of the devices that the process uses; a MIG part replaces the GPU it belongs to."""
    rows = [row for row in rows if row.is_accelerator]
    listed = [row for row in rows if any(p.pid == sight.pid for p in row.processes)]
    if listed:
        parts = {row.device.partition("/")[0] for row in listed if "/" in row.device}
        return tuple(row.device for row in listed if row.device not in parts)
    found: list[str] = []
    for vendor in dict.fromkeys(row.vendor for row in rows):
        seen = visible(vendor, sight, [row for row in rows if row.vendor == vendor])
        found += [seen[place] for place in _places(vendor, sight, len(seen)) if place < len(seen)]
    return tuple(found)


def visible(vendor: str, sight: ProcessDevices, rows: Sequence[DeviceRow]) -> list[str]:
    """Names of the vendor's devices, in the order in which the process numbers them."""
    parents = [row for row in rows if row.place is not None]
    chosen: list[DeviceRow] = sorted(parents, key=lambda row: row.place or 0)
    if sight.is_inside:
        chosen = _chosen(sight.environment.get(GIVEN[vendor]), chosen, rows)
    for name in VISIBLE[vendor]:
        value = sight.value(name)
        if value is None and name in _INSTEAD:
            value = sight.value(_INSTEAD[name])
        chosen = _chosen(value, chosen, rows)
    return [row.device for row in chosen]


def _places(vendor: str, sight: ProcessDevices, num_seen: int) -> list[int]:
    """Indexes of the visible devices that the process uses."""
    used = [
        int(index)
        for kind, _, index in (name.partition(":") for name in sight.used)
        if vendor in _KINDS.get(kind, ()) and _is_index(index)
    ]
    if used:
        return sorted(used)
    if num_seen == 1:
        return [0]
    return [sight.local_rank] if sight.local_rank >= 0 else []


def _chosen(
    value: str | None, seen: Sequence[DeviceRow], rows: Sequence[DeviceRow]
) -> list[DeviceRow]:
    """Devices that one variable selects from ``seen``, in its order, up to an invalid one."""
    if value is None or value.strip() == "all":
        return list(seen)
    chosen = []
    for word in _words(value):
        row = _find_row(word.strip(), seen, rows)
        if row is None:
            break
        chosen.append(row)
    return chosen


def _words(value: str) -> Iterator[str]:
    """Words of the variable; Ascend's runtime also accepts ranges, for example 0-3,6."""
    for word in (part.strip() for part in value.split(",")):
        first, sign, last = word.partition("-")
        if sign and _is_index(first) and _is_index(last):
            yield from map(str, range(int(first), int(last) + 1))
        else:
            yield word


def _find_row(word: str, seen: Sequence[DeviceRow], rows: Sequence[DeviceRow]) -> DeviceRow | None:
    """By index within ``seen``, by the start of a UUID, which may be a MIG part's, or as "0:1".

    A MIG part may be named with its GPU: "MIG-GPU-<UUID>/<GPU instance>/<compute instance>".
    """
    if not word:
        return None
    if word.lower().startswith(_MIG_OF_GPU):
        uuid, _, instance = word[len("MIG-") :].partition("/")
        parent = _by_uuid(uuid, [row for row in rows if "/" not in row.device])
        parts = [row for row in rows if parent and row.device.startswith(f"{parent.device}/")]
        return next((row for row in parts if row.instance == instance), _by_uuid(word, rows))
    gpu, sign, part = word.partition(":")
    if sign and _is_index(gpu) and _is_index(part):  # syntax of container runtimes: GPU:part
        whole = seen[int(gpu)].device if int(gpu) < len(seen) else ""
        return next((row for row in rows if row.device == f"{whole}/mig:{part}"), None)
    if _is_index(word):
        return seen[int(word)] if int(word) < len(seen) else None
    return _by_uuid(word, rows)


def _is_index(word: str) -> bool:
    """Whether int() accepts it and a machine may have it: rejects "²" and very long numbers."""
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS


def _by_uuid(word: str, rows: Sequence[DeviceRow]) -> DeviceRow | None:
    matching = [row for row in rows if row.uuid.lower().startswith(word.lower())]
    return matching[0] if len(matching) == 1 else None
