"""Stacks of the threads of a process, and the common stacks of the ranks of a job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Work that a rank may do for long while its peers wait, as the first word of a function's name. The
# word must be complete: `save_state` and `saveState`, but not `saved_tensors`.
_LONG_FUNCTION = re.compile(
    r"_*(?i:save|saving|checkpoint|checkpointing|ckpt|evaluate|evaluation|validate|validation"
    r"|generate|generation|rollout|roll_out|compile)(?![a-z])"
)
# torch's own functions are recognised by path: its `checkpoint` recomputes activations
_TORCH = re.compile(r"-packages/torch/|/pytorch/torch/")


# frames that exist only during such work; those around a compiled model are there in every step
_LONG_PATH = re.compile(
    r"torch/(serialization\.py|distributed/checkpoint/)|/safetensors/|-packages/(vllm|sglang)/"
    r"|torch/_dynamo/convert_frame\.py"
    r"|torch/_inductor/(graph|scheduler|async_compile|cpp_builder|autotune_process)\.py"
    r"|torch/_inductor/(codegen|compile_worker)/"
    r"|/triton/(compiler/|runtime/build\.py|backends/\w+/compiler\.py)"
)
# these files contain both the compiler and the code that runs its result
_COMPILES = re.compile(r"torch/_inductor/(compile_fx|codecache|select_algorithm)\.py \w*compile")


# what a rank can wait for outside the job, by the file of the innermost call
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
# files in which those waits are implemented
_PRIMITIVES = re.compile(r"/(threading|selectors)\.py$")


RAY_OBJECT = "a Ray object"
# answers that other processes compute: rollouts come from servers and actors
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
# frames of Ray around every method of an actor
_RAY_CALLS = re.compile(
    r"-packages/ray/(_private/(workers/default_worker\.py |worker\.py main_loop$"
    r"|function_manager\.py \w*executor$|async_compat\.py )|util/tracing/)"
)
_RAY_IDLE = re.compile(r"-packages/ray/_private/worker\.py main_loop$")


_NUM_FRAMES = 16
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d[^/]*/|^<")


class Frame(NamedTuple):
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({os.path.basename(self.file)}:{self.line})"


@dataclass(frozen=True)
class ThreadStack:
    """The stack of one Python thread."""

    name: str
    native_id: int
    """0 if unknown."""
    is_main: bool
    frames: tuple[Frame, ...]
    """Outermost call first."""

    @property
    def is_idle_in_ray(self) -> bool:
        """Whether the innermost call is Ray's worker loop."""
        innermost = self.frames[-1] if self.frames else None
        return innermost is not None and bool(
            _RAY_IDLE.search(f"{innermost.file} {innermost.function}")
        )

    @property
    def runs_ray_method(self) -> bool:
        """Whether a method or task that Ray called has not returned yet."""
        calls = self.num_frames_of_ray
        return 0 < calls < len(self.frames)

    @property
    def num_frames_of_ray(self) -> int:
        """Number of outermost calls that belong to Ray, which called the job's method."""
        numbered = enumerate(self.frames, start=1)
        calls = [n for n, f in numbered if _RAY_CALLS.search(f"{f.file} {f.function}")]
        return max(calls, default=0)


@dataclass(frozen=True)
class ProcessStacks:
    """The stacks of all threads of one process."""

    source: str
    """"guest" or "py-spy"."""
    time_ns: int | None
    """On the host's monotonic clock; None if the source does not say."""
    threads: tuple[ThreadStack, ...]

    @property
    def main(self) -> ThreadStack | None:
        """Python's main thread; in an actor with several threads one that runs a method."""
        main = next((thread for thread in self.threads if thread.is_main), None)
        if main is None or not main.is_idle_in_ray:
            return main
        return next((thread for thread in self.threads if thread.runs_ray_method), main)

    @property
    def is_idle_actor(self) -> bool:
        """Whether Ray's worker loop waits for the next call, so that this process has no work."""
        return self.main is not None and self.main.is_idle_in_ray

    def is_long_function(self) -> bool:
        """Whether the main thread saves, validates, generates or compiles by itself."""
        return self.is_named_long() or self.is_in_long_code()

    def is_named_long(self) -> bool:
        """Guess this from the names of functions outside torch."""
        return _is_named_long(self.innermost_frames)

    def is_named_long_inside(self) -> bool:
        """Like ``is_named_long``, without the callers of the job's own innermost function."""
        return _is_named_long(self.inner_frames)

    def is_in_long_code(self) -> bool:
        """Whether it runs code that does nothing but save, generate or compile."""
        return any(
            _LONG_PATH.search(f.file) or _COMPILES.search(f"{f.file} {f.function}")
            for f in self.innermost_frames
        )

    @property
    def own_frame(self) -> Frame | None:
        """The innermost call of the job's own code in the main thread."""
        frames = self.main.frames if self.main else ()
        return next((f for f in reversed(frames) if not _LIBRARY.search(f.file)), None)

    @property
    def inner_frames(self) -> tuple[Frame, ...]:
        """The job's own innermost call and its callees; all frames if there is none."""
        frames = self.innermost_frames
        own = [n for n, f in enumerate(frames) if not _LIBRARY.search(f.file)]
        return frames[own[-1] :] if own else frames

    @property
    def innermost_frames(self) -> tuple[Frame, ...]:
        """Innermost calls of the main thread, without those of Ray that called the job's method."""
        thread = self.main
        return thread.frames[thread.num_frames_of_ray :][-_NUM_FRAMES:] if thread else ()


def _is_named_long(frames: Iterable[Frame]) -> bool:
    return any(_LONG_FUNCTION.match(f.function) for f in frames if not _TORCH.search(f.file))


def client_of(stacks: ProcessStacks) -> str:
    """What the main thread waits for from a server, such as "an HTTP answer"; "" for nothing.

    Only clients that the job's own innermost function calls count: outer callers wait for it.
    """
    for frame in reversed(stacks.inner_frames):
        for answer, path in _CLIENTS:
            if path.search(frame.file):
                return answer
    return ""


def own_wait_of(stacks: ProcessStacks) -> str:
    """What the rank waits for outside the job, such as "a child process"; "" if unknown."""
    frames = (f for f in reversed(stacks.innermost_frames) if not _PRIMITIVES.search(f.file))
    innermost = next(frames, None)
    if innermost is None:
        return ""
    if _RETRY_FUNCTION.match(innermost.function):
        return "its next try"
    return next((what for what, file in _OWN_WAITS if file.search(innermost.file)), "")


@dataclass(frozen=True)
class MergedStack:
    """Ranks whose main threads have the same stack."""

    ranks: tuple[str, ...]
    frames: tuple[Frame, ...]
    """Outermost call first."""

    def innermost(self, num_frames: int) -> str:
        """The last frames as text: "train (train.py:8) > barrier (distributed_c10d.py:99)"."""
        return " > ".join(map(str, self.frames[-num_frames:]))


def merge(stacks: Mapping[str, ProcessStacks]) -> list[MergedStack]:
    """Group ranks by the stack of their main thread, the largest group first."""
    groups: dict[tuple[Frame, ...], list[str]] = {}
    for rank, process in stacks.items():
        if process.main is not None:
            groups.setdefault(process.main.frames, []).append(rank)
    merged = [MergedStack(tuple(ranks), frames) for frames, ranks in groups.items()]
    return sorted(merged, key=lambda group: len(group.ranks), reverse=True)
