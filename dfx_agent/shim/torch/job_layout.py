"""What this rank knows of the layout of its job: process groups, its place in them, its peers.

Read where torch and frameworks keep it, never asked of other ranks and nothing imported for it. The
guest's own thread says it when groups came, and looks again once a minute.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.torch import collectives
from dfx_agent.wire import job_description
from dfx_agent.wire.records import PEER

_AGAIN_SECONDS = 60.0
_PARALLEL_STATE = "megatron.core.parallel_state"
# axis -> what Megatron's functions call it
_MEGATRON = {
    "pipeline": "pipeline_model_parallel",
    "tensor": "tensor_model_parallel",
    "data": "data_parallel",
    "expert": "expert_model_parallel",
    "context": "context_parallel",
}


class LayoutTeller:
    """Says each thing once, and again where it has changed, as long as there is room."""

    def __init__(self) -> None:
        self._writer: recorder.Recorder | None = None
        self._said: dict[str, list[str]] = {}
        self._num_bytes = 0
        self._untold: set[str] = set()
        self._seen: tuple[int, int] = -1, -1
        self._next_look = 0.0

    def look(self, writer: recorder.Recorder) -> None:
        groups = collectives.known_groups()
        seen = len(groups), sum(len(group.peers) for group in groups)
        now = time.monotonic()
        if writer is not self._writer:
            self._writer, self._said, self._num_bytes, self._untold = writer, {}, 0, set()
        elif seen == self._seen and now < self._next_look:
            return
        self._seen, self._next_look = seen, now + _AGAIN_SECONDS
        for group in groups:
            texts = _group_texts(group)
            if texts:
                self._say(writer, f"group {group.name}", texts)
        peers = {PEER - number for group in groups for number in list(group.peers.values())}
        if peers:
            self._say(writer, "peers", [job_description.format_peers(peers)])
        places = _megatron_places()
        if places:
            self._say(writer, "place", [job_description.format_position(places)])

    def _say(self, writer: recorder.Recorder, key: str, texts: list[str]) -> None:
        if self._said.get(key) == texts:
            return
        num_bytes = sum(len(text.encode()) for text in texts)
        if self._num_bytes + num_bytes > job_description.MAX_BYTES:
            if key not in self._untold:
                self._untold.add(key)
                writer.say(job_description.format_missing_groups(len(self._untold)))
            return
        self._said[key] = texts
        self._num_bytes += num_bytes
        for text in texts:
            writer.say(text)


def _group_texts(group: collectives.Group) -> list[str]:
    """Nothing of a group that torch does not list, or that has gone meanwhile."""
    process_group = group.ref()
    if process_group is None or group.name == collectives.OTHER:
        return []
    try:
        ranks = sys.modules["torch.distributed"].get_process_group_ranks(process_group)
        description = str(getattr(process_group, "group_desc", "") or "")
        return job_description.format_group(group.name, description, ranks)
    except Exception:  # noqa: BLE001 (whatever torch says, the job goes on)
        return []


def _megatron_places() -> dict[str, tuple[int, int]]:
    """Empty where there is no Megatron, or before it has laid the job out."""
    state: Any = sys.modules.get(_PARALLEL_STATE)
    found = {}
    for axis, name in _MEGATRON.items() if state is not None else ():
        index, size = _number(state, f"get_{name}_rank"), _number(state, f"get_{name}_world_size")
        if 0 <= index < size:
            found[axis] = index, size
    return found


def _number(state: Any, name: str) -> int:
    """What a function of it says; -1 where it raises, as it does for an axis that is not there."""
    try:
        number = getattr(state, name)()
    except Exception:  # noqa: BLE001 (Megatron's own errors)
        return -1
    return number if type(number) is int and number >= 0 else -1
