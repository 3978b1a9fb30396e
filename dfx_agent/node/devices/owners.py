"""Which devices a process of the job uses: by the driver's list of processes, else by what it sees.

The driver lists processes by the pids of the host. Inside a container those mean nothing, and it
may list none: then variables say which devices the process sees, as its guest tells them, else as
it was started with them. Its allocator or local rank says which of those it uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dfx_agent.snapshot import DeviceRow

# vendor -> variables that hide devices, the outermost first; each counts what the one before left
VISIBLE = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES",),
}
# what a container was given, by its runtime; of use where the agent itself is outside
GIVEN = {
    "nvidia": "NVIDIA_VISIBLE_DEVICES",
    "amd": "AMD_VISIBLE_DEVICES",
    "ascend": "ASCEND_VISIBLE_DEVICES",
}
VARIABLES = (*(name for names in VISIBLE.values() for name in names), *GIVEN.values())
# where it is not set, another one means the same
_INSTEAD = {"HIP_VISIBLE_DEVICES": "CUDA_VISIBLE_DEVICES"}
_MIG_OF_GPU = "mig-gpu-"
_MOST_DIGITS = 6
# names of torch's devices -> vendor; ROCm says cuda too
_KINDS = {"cuda": ("nvidia", "amd"), "hip": ("amd",), "npu": ("ascend",)}


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a process. ``pid``: the host's, 0 where that is not known.

    ``environment``: of VARIABLES, as it was started; ``told``: as its guest says that they are now,
    which goes before, None where one is not set. ``is_inside``: in a container that the agent is
    not in. ``used``: devices of its allocator by torch's name ("cuda:0"); empty where it tells
    none. ``local_rank`` is negative where that is not known.
    """

    pid: int
    environment: Mapping[str, str] = field(default_factory=dict)
    is_inside: bool = False
    used: Collection[str] = ()
    local_rank: int = -1
    told: Mapping[str, str | None] = field(default_factory=dict)

    def value(self, name: str) -> str | None:
        """Of one of VARIABLES; None where it is not set."""
        return self.told[name] if name in self.told else self.environment.get(name)


def devices_of(sight: Sight, rows: Sequence[DeviceRow]) -> tuple[str, ...]:
    """Names of the rows that it uses; a MIG part instead of the GPU that it is part of."""
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


def visible(vendor: str, sight: Sight, rows: Sequence[DeviceRow]) -> list[str]:
    """Names of the vendor's devices in the order in which the process counts them."""
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


def _places(vendor: str, sight: Sight, num_seen: int) -> list[int]:
    """Which of those that it sees it uses."""
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
    """Those that one variable leaves of ``seen``, in its order; the first that is wrong ends it."""
    if value is None or value.strip() == "all":
        return list(seen)
    found = []
    for word in _words(value):
        row = _named(word.strip(), seen, rows)
        if row is None:
            break
        found.append(row)
    return found


def _words(value: str) -> Iterator[str]:
    """Ascend's runtime takes ranges, as in 0-3,6."""
    for word in (part.strip() for part in value.split(",")):
        first, sign, last = word.partition("-")
        if sign and _is_index(first) and _is_index(last):
            yield from map(str, range(int(first), int(last) + 1))
        else:
            yield word


def _named(word: str, seen: Sequence[DeviceRow], rows: Sequence[DeviceRow]) -> DeviceRow | None:
    """By index among ``seen``, by the begin of a UUID, which may be of a MIG part, or as "0:1".

    A MIG part is named by its GPU, too: "MIG-GPU-<UUID>/<GPU instance>/<compute instance>".
    """
    if not word:
        return None
    if word.lower().startswith(_MIG_OF_GPU):
        uuid, _, instance = word[len("MIG-") :].partition("/")
        parent = _by_uuid(uuid, [row for row in rows if "/" not in row.device])
        parts = [row for row in rows if parent and row.device.startswith(f"{parent.device}/")]
        return next((row for row in parts if row.instance == instance), _by_uuid(word, rows))
    gpu, sign, part = word.partition(":")
    if sign and _is_index(gpu) and _is_index(part):  # of what a container is given: part 1 of GPU 0
        whole = seen[int(gpu)].device if int(gpu) < len(seen) else ""
        return next((row for row in rows if row.device == f"{whole}/mig:{part}"), None)
    if _is_index(word):
        return seen[int(word)] if int(word) < len(seen) else None
    return _by_uuid(word, rows)


def _is_index(word: str) -> bool:
    """What int() takes and a machine may have: no "²", nor thousands of digits."""
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS


def _by_uuid(word: str, rows: Sequence[DeviceRow]) -> DeviceRow | None:
    matching = [row for row in rows if row.uuid.lower().startswith(word.lower())]
    return matching[0] if len(matching) == 1 else None
