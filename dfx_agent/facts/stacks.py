"""Where the threads of a process stand, and where the ranks of a job stand together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# What a rank may do for long while the others wait, as function names begin, or as paths hold it.
_LONG_FUNCTION = re.compile(
    r"_*(save|checkpoint|ckpt|evaluat|validat|generate|rollout|roll_out|compile)", re.IGNORECASE
)


_LONG_PATH = re.compile(
    r"torch/(serialization\.py|distributed/checkpoint/|_dynamo/|_inductor/)|/(safetensors|triton)/"
    r"|-packages/(vllm|sglang)/"
)


# an answer that others compute: rollouts come from servers and actors
_CLIENTS = (
    (
        "an HTTP answer",
        re.compile(
            r"-packages/(requests|urllib3|httpx|httpcore|aiohttp)/|/(http/client|urllib/request)\.py$"
        ),
    ),
    ("a gRPC answer", re.compile(r"-packages/grpc/")),
    ("a ZeroMQ message", re.compile(r"-packages/zmq/")),
    ("a Ray object", re.compile(r"-packages/ray/")),
)


_LOOK_AT_FRAMES = 16


class Frame(NamedTuple):
    """One call."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({os.path.basename(self.file)}:{self.line})"


@dataclass(frozen=True)
class ThreadStack:
    """One Python thread, outermost call first. ``native_id`` is 0 when it is not known."""

    name: str
    native_id: int
    is_main: bool
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class ProcessStacks:
    """All threads of one process; ``source`` is "guest" or "py-spy".

    ``time_ns`` is on the host's monotonic clock, None when the tool does not say.
    """

    source: str
    time_ns: int | None
    threads: tuple[ThreadStack, ...]

    @property
    def main(self) -> ThreadStack | None:
        return next((thread for thread in self.threads if thread.is_main), None)

    def is_long_work(self) -> bool:
        """Whether the main thread saves, validates, generates or compiles, or asks a server."""
        return self.is_long_function() or bool(client_of(self))

    def is_long_function(self) -> bool:
        """The same by what it calls, whoever computes that."""
        frames = self.newest_frames
        return any(_LONG_FUNCTION.match(f.function) or _LONG_PATH.search(f.file) for f in frames)

    @property
    def newest_frames(self) -> tuple[Frame, ...]:
        """Innermost calls of the main thread."""
        return self.main.frames[-_LOOK_AT_FRAMES:] if self.main else ()


def client_of(stacks: ProcessStacks) -> str:
    """What the main thread waits for from a server, as in "an HTTP answer"; "" for nothing."""
    for frame in reversed(stacks.newest_frames):
        for answer, path in _CLIENTS:
            if path.search(frame.file):
                return answer
    return ""


@dataclass(frozen=True)
class MergedStack:
    """Ranks whose main threads stand at the same place, outermost call first."""

    ranks: tuple[str, ...]
    frames: tuple[Frame, ...]

    def innermost(self, num_frames: int) -> str:
        """As in "train (train.py:8) > step (train.py:42) > barrier (distributed_c10d.py:99)"."""
        return " > ".join(map(str, self.frames[-num_frames:]))


def merge(stacks: Mapping[str, ProcessStacks]) -> list[MergedStack]:
    """Ranks by the stack of their main thread, the largest group first."""
    groups: dict[tuple[Frame, ...], list[str]] = {}
    for rank, process in stacks.items():
        if process.main is not None:
            groups.setdefault(process.main.frames, []).append(rank)
    merged = [MergedStack(tuple(ranks), frames) for frames, ranks in groups.items()]
    return sorted(merged, key=lambda group: len(group.ranks), reverse=True)
