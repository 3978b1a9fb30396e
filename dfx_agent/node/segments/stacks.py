"""Reads stack dumps that guests wrote next to their segments, and finds the stage of a stack.

The files cannot be trusted: sizes are bounded, and lines that do not parse are skipped. The stage
is recognized by frames of well-known libraries. A sample shows what the main thread does at one
instant; it is never converted to a duration.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.node.segments.owned_files import HeldFolder, read_file
from dfx_agent.wire.segment import STACKS_SUFFIX, SUFFIX

_COLLECTIVE = r"_?(all_|reduce|broadcast|barrier|gather|scatter|send|recv|irecv|isend|wait)"
# (stage, path, function): the first row that matches any frame counts. Generation contains forward,
# and backward may contain a collective: outer stages come first, except for collectives.
_KNOWN = tuple(
    (stage, re.compile(path), re.compile(function))
    for stage, path, function in (
        ("communication", r"torch/distributed/distributed_c10d\.py$", _COLLECTIVE),
        ("checkpoint", r"torch/serialization\.py$", r"_?(legacy_)?save"),
        ("checkpoint", r"torch/distributed/checkpoint/", r".*save"),
        ("checkpoint", r"safetensors/torch\.py$", r"save"),
        ("rollout", r"transformers/generation/utils\.py$", r"(generate|_sample|_beam_search)$"),
        ("rollout", r"vllm/.*\.py$", r"(generate|execute_model)$"),
        ("rollout", r"sglang/.*\.py$", r"(generate|forward_batch_generation)$"),
        ("optimizer", r"torch/optim/(?!lr_scheduler)\w+\.py$", r"(step|wrapper|_use_grad)$"),
        ("backward", r"torch/(_tensor|autograd/(__init__|graph))\.py$", r"(_engine_run_)?backward"),
        ("forward", r"torch/nn/modules/module\.py$", r"_(wrapped_)?call_impl$"),
    )
)
_MAX_BYTES = 256 * 1024
_MAX_THREADS, _MAX_FRAMES = 200, 64
_OUR_THREADS = frozenset({"dfx-watch"})
# files of the guest in the job: preloaded, installed, or injected by attach
_OUR_FILES = re.compile(r"(^|/)dfx_agent/(shim|wire)/|^<attached>/|^<dfx-agent>$")
_PY_SPY_SECONDS = 10.0
_HEAD = re.compile(r"dfx-stacks 1 (\d{1,10}) (\d{1,19}) 0x([0-9a-f]{1,16})$")
_NAME = re.compile(r"name 0x([0-9a-f]{1,16}) (\d{1,10}) (.*)$")
_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9a-f]{1,16})\b.*\(most recent call first\):$")
_FRAME = re.compile(r'  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')


def read_stacks(
    segment: str, since_ns: int, folder: HeldFolder | None = None
) -> ProcessStacks | None:
    """Stacks that the guest of this segment wrote after ``since_ns``; None if there are none.

    ``folder``: the folder of the segment, if it is open.
    """
    text = read_text(segment.removesuffix(SUFFIX) + STACKS_SUFFIX, folder)
    stacks = parse(text) if text else None
    if stacks is None or stacks.time_ns is None or stacks.time_ns < since_ns:
        return None
    return stacks


def parse(text: str) -> ProcessStacks | None:
    """Parse the guest's file: our header, then faulthandler's dump. None if it is no such file."""
    lines = text.splitlines()
    head = _HEAD.match(lines[0]) if lines else None
    if head is None:
        return None
    names: dict[int, tuple[str, int]] = {}
    threads: list[tuple[int, list[Frame]]] = []
    for line in lines[1:]:
        if found := _FRAME.match(line):
            number = int(found[2]) if found[2].isdecimal() else 0
            if threads and len(threads[-1][1]) < _MAX_FRAMES and not _is_ours(found[1]):
                threads[-1][1].append(Frame(found[1], number, found[3]))
        elif found := _NAME.match(line):
            names[int(found[1], 16)] = found[3], int(found[2])
        elif (found := _THREAD.match(line)) and len(threads) < _MAX_THREADS:
            threads.append((int(found[2], 16), []))
    main = int(head[3], 16)
    rows = [
        ThreadStack(*names.get(ident, ("", 0)), ident == main, tuple(reversed(frames)))
        for ident, frames in threads
    ]
    rows = [row for row in rows if row.name not in _OUR_THREADS and row.frames]
    return ProcessStacks("guest", int(head[2]), tuple(rows))


def _is_ours(file: str) -> bool:
    """Whether the file is a wrapper of the guest, which is never what the job is doing."""
    return _OUR_FILES.search(file) is not None


def py_spy() -> str | None:
    """Path of py-spy, on PATH or next to this interpreter; None if it is not installed."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=os.path.dirname(sys.executable))


def dump_with_py_spy(pid: int) -> ProcessStacks | None:
    """Dump stacks with py-spy, also of a stopped process. None if py-spy is missing or fails.

    Takes up to 10 s, so never call it on the reader thread. The process is not paused.
    """
    program = py_spy()
    if program is None:
        return None
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        ended = subprocess.run(
            command, capture_output=True, check=False, timeout=_PY_SPY_SECONDS, text=True
        )
        return _from_py_spy(json.loads(ended.stdout), pid)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
        return None


def _from_py_spy(threads: Iterable[dict[str, Any]], pid: int) -> ProcessStacks | None:
    rows = []
    for thread in threads:
        native_id = int(thread.get("os_thread_id") or 0)
        frames = [
            # py-spy reports Tensor.backward, faulthandler backward: use the same name
            Frame(
                str(frame["filename"]),
                int(frame.get("line") or 0),
                str(frame["name"]).rpartition(".")[2],
            )
            for frame in thread["frames"][:_MAX_FRAMES]
            if not _is_ours(str(frame["filename"]))
        ]
        is_main = native_id == pid or thread.get("thread_name") == "MainThread"
        name = str(thread.get("thread_name") or "")
        rows.append(ThreadStack(name, native_id, is_main, tuple(reversed(frames))))
    rows = [row for row in rows if row.name not in _OUR_THREADS]
    return ProcessStacks("py-spy", None, tuple(rows)) if rows else None


def read_text(path: str, folder: HeldFolder | None = None) -> str:
    """At most 256 KiB of a regular file; "" if it cannot be read."""
    if folder is not None:
        return folder.read_text(os.path.basename(path), _MAX_BYTES)
    try:
        return read_file(path, _MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def stage_of(stacks: ProcessStacks) -> str:
    """The stage that the main thread is in; "" if no frame is recognized."""
    frames = stacks.main.frames if stacks.main else ()
    return _stage(frames)


def _stage(frames: Sequence[Frame]) -> str:
    for stage, path, function in _KNOWN:
        if any(function.match(frame.function) and path.search(frame.file) for frame in frames):
            return stage
    return ""
