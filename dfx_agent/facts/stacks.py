"""Where the threads of a process stand, and where the ranks of a job stand together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# What a rank may do for long while the others wait, as the first word of a function's name. The
# word is whole: `save_state` and `saveState`, not `saved_tensors`.
_LONG_FUNCTION = re.compile(
    r"_*(?i:save|saving|checkpoint|checkpointing|ckpt|evaluate|evaluation|validate|validation"
    r"|generate|generation|rollout|roll_out|compile)(?![a-z])"
)
# torch says by its paths what it does: its `checkpoint` computes activations again
_TORCH = re.compile(r"-packages/torch/|/pytorch/torch/")


# frames that are there only while it is done: those around a compiled model stay for every step
_LONG_PATH = re.compile(
    r"torch/(serialization\.py|distributed/checkpoint/)|/safetensors/|-packages/(vllm|sglang)/"
    r"|torch/_dynamo/convert_frame\.py"
    r"|torch/_inductor/(graph|scheduler|async_compile|cpp_builder|autotune_process)\.py"
    r"|torch/_inductor/(codegen|compile_worker)/"
    r"|/triton/(compiler/|runtime/build\.py|backends/\w+/compiler\.py)"
)
# the same file holds what compiles and what runs the result
_COMPILES = re.compile(r"torch/_inductor/(compile_fx|codecache|select_algorithm)\.py \w*compile")


# what it waits for that no peer of the job does, by the file of the innermost call
_OWN_WAITS = (
    ("a child process", re.compile(r"/(subprocess|multiprocessing/(popen_\w+|process))\.py$")),
    (
        "a queue or a pipe",
        re.compile(
            r"/(queue|multiprocessing/(queues|connection|pool|managers|synchronize)"
            r"|concurrent/futures/\w+|torch/utils/data/dataloader)\.py$"
        ),
    ),
    (
        "files",
        re.compile(
            r"/(shutil|tarfile|zipfile|gzip|bz2|lzma|pathlib|tempfile|numpy/lib/format)\.py$"
            r"|/pathlib/|-packages/(fsspec|s3fs|gcsfs|h5py|zarr|pyarrow|boto3|botocore|s3transfer)/"
        ),
    ),
    ("the network", re.compile(r"/(socket|ssl|ftplib|smtplib)\.py$|-packages/paramiko/")),
    ("its next try", re.compile(r"-packages/(tenacity|backoff|retry|retrying)/")),
)
_RETRY_FUNCTION = re.compile(r"_*(?i:retry|retries|backoff|back_off)(?![a-z])")
# how those wait inside
_PRIMITIVES = re.compile(r"/(threading|selectors)\.py$")


RAY_OBJECT = "a Ray object"
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
    (RAY_OBJECT, re.compile(r"-packages/ray/")),
)
# around every method of an actor: what Ray itself runs to call it
_RAY_CALLS = re.compile(
    r"-packages/ray/(_private/(workers/default_worker\.py |worker\.py main_loop$"
    r"|function_manager\.py \w*executor$|async_compat\.py )|util/tracing/)"
)
_RAY_IDLE = re.compile(r"-packages/ray/_private/worker\.py main_loop$")


_LOOK_AT_FRAMES = 16
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d[^/]*/|^<")


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

    @property
    def is_idle_in_ray(self) -> bool:
        """Whether the innermost call is Ray's worker loop."""
        newest = self.frames[-1] if self.frames else None
        return newest is not None and bool(_RAY_IDLE.search(f"{newest.file} {newest.function}"))

    @property
    def runs_ray_method(self) -> bool:
        """Whether Ray called a method or a task here that has not returned."""
        calls = self.num_frames_of_ray
        return 0 < calls < len(self.frames)

    @property
    def num_frames_of_ray(self) -> int:
        """How many of the outermost calls belong to Ray, which called the job's method."""
        numbered = enumerate(self.frames, start=1)
        calls = [n for n, f in numbered if _RAY_CALLS.search(f"{f.file} {f.function}")]
        return max(calls, default=0)


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
        """Python's main thread; of an actor with several threads one that runs a method."""
        main = next((thread for thread in self.threads if thread.is_main), None)
        if main is None or not main.is_idle_in_ray:
            return main
        return next((thread for thread in self.threads if thread.runs_ray_method), main)

    @property
    def is_idle_actor(self) -> bool:
        """Whether Ray's worker loop waits for the next call: nothing in this process is to do."""
        return self.main is not None and self.main.is_idle_in_ray

    def is_long_work(self) -> bool:
        """Whether the main thread saves, validates, generates or compiles, or asks a server."""
        return self.is_long_function() or bool(client_of(self))

    def is_long_function(self) -> bool:
        """The same by what it calls, whoever computes that."""
        return self.is_named_long() or self.is_in_long_code()

    def is_named_long(self) -> bool:
        """By the names of the functions outside torch alone, which is a guess."""
        return _is_named_long(self.newest_frames)

    def is_named_long_inside(self) -> bool:
        """The same without the callers of the job's own innermost function."""
        return _is_named_long(self.inner_frames)

    def is_in_long_code(self) -> bool:
        """By code that does nothing but save, generate or compile."""
        return any(
            _LONG_PATH.search(f.file) or _COMPILES.search(f"{f.file} {f.function}")
            for f in self.newest_frames
        )

    @property
    def own_frame(self) -> Frame | None:
        """The innermost call of the job's own code in the main thread."""
        frames = self.main.frames if self.main else ()
        return next((f for f in reversed(frames) if not _LIBRARY.search(f.file)), None)

    @property
    def inner_frames(self) -> tuple[Frame, ...]:
        """The job's own innermost call and what that one calls; all of them without one."""
        frames = self.newest_frames
        own = [n for n, f in enumerate(frames) if not _LIBRARY.search(f.file)]
        return frames[own[-1] :] if own else frames

    @property
    def newest_frames(self) -> tuple[Frame, ...]:
        """Innermost calls of the main thread, without those of Ray that called the job's method."""
        thread = self.main
        return thread.frames[thread.num_frames_of_ray :][-_LOOK_AT_FRAMES:] if thread else ()


def _is_named_long(frames: Iterable[Frame]) -> bool:
    return any(_LONG_FUNCTION.match(f.function) for f in frames if not _TORCH.search(f.file))


def client_of(stacks: ProcessStacks) -> str:
    """What the main thread waits for from a server, as in "an HTTP answer"; "" for nothing.

    Only a client that the job's own innermost function calls: its callers wait for that function.
    """
    for frame in reversed(stacks.inner_frames):
        for answer, path in _CLIENTS:
            if path.search(frame.file):
                return answer
    return ""


def own_wait_of(stacks: ProcessStacks) -> str:
    """What it waits for outside the job, as in "a child process"; "" for nothing known."""
    frames = (f for f in reversed(stacks.newest_frames) if not _PRIMITIVES.search(f.file))
    innermost = next(frames, None)
    if innermost is None:
        return ""
    if _RETRY_FUNCTION.match(innermost.function):
        return "its next try"
    return next((what for what, file in _OWN_WAITS if file.search(innermost.file)), "")


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
