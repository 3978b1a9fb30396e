"""Reports what this rank knows about the layout of its job: groups, its position, its peers.

The data comes from torch and the frameworks in this process. Nothing is imported or requested from
other ranks. The guest's own thread reports it when groups appear, and checks again once a minute.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from dfx_agent.shim import recorder
from dfx_agent.shim.torch import collectives
from dfx_agent.wire import job_description
from dfx_agent.wire.records import PEER

_AGAIN_SECONDS = 60.0
_PARALLEL_STATE = "megatron.core.parallel_state"
# axis -> its name in Megatron's functions
_MEGATRON = {
    "pipeline": "pipeline_model_parallel",
    "tensor": "tensor_model_parallel",
    "data": "data_parallel",
    "expert": "expert_model_parallel",
    "context": "context_parallel",
}


class LayoutReporter:
    """Reports each item once, and again if it has changed, as long as the name table has room."""

    def __init__(self) -> None:
        self._writer: recorder.Recorder | None = None
        self._sent: dict[str, list[str]] = {}
        self._num_bytes = 0
        self._missing: set[str] = set()
        self._seen: tuple[int, int] = -1, -1
        self._next_check = 0.0

    def report(self, writer: recorder.Recorder) -> None:
        """Report what is new since the last call."""
        groups = collectives.seen_groups()
        seen = len(groups), sum(len(group.peers) for group in groups)
        now = time.monotonic()
        if writer is not self._writer:
            self._writer, self._sent, self._num_bytes, self._missing = writer, {}, 0, set()
        elif seen == self._seen and now < self._next_check:
            return
        self._seen, self._next_check = seen, now + _AGAIN_SECONDS
        for group in groups:
            texts = _group_texts(group)
            if texts:
                self._send(writer, f"group {group.name}", texts)
        peers = {PEER - number for group in groups for number in list(group.peers.values())}
        if peers:
            self._send(writer, "peers", [job_description.format_peers(peers)])
        positions = _megatron_positions()
        if positions:
            self._send(writer, "place", [job_description.format_position(positions)])

    def _send(self, writer: recorder.Recorder, key: str, texts: list[str]) -> None:
        if self._sent.get(key) == texts:
            return
        num_bytes = sum(len(text.encode()) for text in texts)
        if self._num_bytes + num_bytes > job_description.MAX_BYTES:
            if key not in self._missing:
                self._missing.add(key)
                writer.add_description(job_description.format_missing_groups(len(self._missing)))
            return
        self._sent[key] = texts
        self._num_bytes += num_bytes
        for text in texts:
            writer.add_description(text)


def _group_texts(group: collectives.TrackedGroup) -> list[str]:
    """Texts about a group; empty if torch does not list it or it was destroyed."""
    process_group = group.ref()
    if process_group is None or group.name == collectives.OTHER:
        return []
    try:
        ranks = sys.modules["torch.distributed"].get_process_group_ranks(process_group)
        description = str(getattr(process_group, "group_desc", "") or "")
        return job_description.format_group(group.name, description, ranks)
    except Exception:  # noqa: BLE001 (never into the job)
        return []


def _megatron_positions() -> dict[str, tuple[int, int]]:
    """Read Megatron's (index, size) by axis; empty before Megatron has initialised them."""
    state: Any = sys.modules.get(_PARALLEL_STATE)
    positions = {}
    for axis, name in _MEGATRON.items() if state is not None else ():
        index, size = _number(state, f"get_{name}_rank"), _number(state, f"get_{name}_world_size")
        if 0 <= index < size:
            positions[axis] = index, size
    return positions


def _number(state: Any, name: str) -> int:
    """Call a function of Megatron; -1 if it raises, as for an axis that is not in use."""
    try:
        number = getattr(state, name)()
    except Exception:  # noqa: BLE001 (Megatron's own errors)
        return -1
    return number if type(number) is int and number >= 0 else -1


class VisibleDevices:
    """Reports the variables until an accelerator is in use, which never reads them again."""

    def __init__(self) -> None:
        self._writer: recorder.Recorder | None = None
        self._sent: tuple[str | None, ...] = ()
        self._is_settled = False

    def report(self, writer: recorder.Recorder, *, is_used: bool) -> None:
        """Report changes; ``is_used`` means that an accelerator has been initialised."""
        if writer is not self._writer:
            self._writer, self._sent, self._is_settled = writer, (), False
        if self._is_settled:
            return
        self._is_settled = is_used
        values = tuple(map(os.environ.get, job_description.HIDING_VARIABLES))
        if values == self._sent or not (is_used or any(value is not None for value in values)):
            return
        self._sent = values
        for name, value in zip(job_description.HIDING_VARIABLES, values, strict=True):
            writer.add_description(job_description.format_visible(name, value))
