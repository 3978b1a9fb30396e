"""Stacks of strangers' processes: read with bounds, and ranks at one place put together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack, merge, own_wait_of
from dfx_agent.node.segments.stacks import _from_py_spy, dump_with_py_spy, parse, read_stacks

PACKAGES = "/venv/lib/python3.11/site-packages"
GUEST = """\
dfx-stacks 1 42 7000 0xaa
name 0xaa 42 MainThread
name 0xbb 43 loader of 0xcc
name 0xdd 44 dfx-watch

Current thread 0x00000000000000dd [dfx-watch] (most recent call first):
  File "/site/dfx_agent/shim/stacks.py", line 57 in write_stacks

Thread 0x00000000000000bb (most recent call first):
  File "/job/data "x", line 3 in next.py", line 9 in read
  File "/job/data.py", line ??? in loop

Thread 0x00000000000000aa [python3.14] (most recent call first):
  File "/job/train.py", line 55 in <listcomp>
  File "/job/train.py", line 12 in main
"""


def process(*functions: str, file: str = "/job/train.py") -> ProcessStacks:
    frames = tuple(Frame(file, 7, name) for name in functions)
    return ProcessStacks("guest", 1, (ThreadStack("MainThread", 1, is_main=True, frames=frames),))


@pytest.mark.parametrize(
    "ours",
    [
        "/venv/site-packages/dfx_agent/shim/torch/collectives.py",
        "<attached>/dfx_agent/shim/spans.py",
    ],
)
def test_frames_of_the_guest_are_left_out(ours):
    """Two ranks in one call, one with our wrapper around it, stand at one place."""
    theirs = [("/torch/distributed_c10d.py", 9, "wait"), ("/job/train.py", 12, "main")]
    frames = [theirs[0], (ours, 212, "wait"), theirs[1]]
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    head = "dfx-stacks 1 42 7000 0xaa\n\nThread 0x00000000000000aa (most recent call first):\n"
    rows = [{"filename": f, "line": n, "name": name} for f, n, name in frames]
    thread = {"os_thread_id": 42, "thread_name": "MainThread", "frames": rows}
    wanted = tuple(Frame(*frame) for frame in reversed(theirs))
    for stacks in (parse(head + "\n".join(lines)), _from_py_spy([thread], 42)):
        assert stacks is not None
        assert stacks.main is not None
        assert stacks.main.frames == wanted


def test_the_guests_file_reads_and_our_own_thread_is_left_out():
    stacks = parse(GUEST)
    assert stacks is not None
    assert (stacks.source, stacks.time_ns) == ("guest", 7000)
    assert [(t.name, t.native_id, t.is_main) for t in stacks.threads] == [
        ("loader of 0xcc", 43, False),
        ("MainThread", 42, True),
    ]
    assert stacks.main.frames == (
        Frame("/job/train.py", 12, "main"),
        Frame("/job/train.py", 55, "<listcomp>"),
    )
    assert stacks.threads[0].frames[0].line == 0


@pytest.mark.parametrize("text", ["", "\n", "dfx-stacks 2 1 1 0x1\n", "Thread 0x1", "\0" * 50])
def test_what_is_no_such_file_is_none(text):
    assert parse(text) is None


@given(st.text(alphabet='dfx-stacks 10xaTheramonci"\n\0 File,linCu()', max_size=300))
def test_no_text_breaks_it(text):
    parse("dfx-stacks 1 42 7000 0xaa\n" + text)


def test_size_is_bounded():
    frames = '  File "a.py", line 1 in f\n' * 1000
    threads = "".join(f"Thread {i:#018x} (most recent call first):\n{frames}" for i in range(300))
    stacks = parse("dfx-stacks 1 42 7000 0x1\n" + threads)
    assert len(stacks.threads) == 200
    assert max(len(thread.frames) for thread in stacks.threads) == 64


def test_stacks_from_before_the_last_move_say_nothing(tmp_path):
    (tmp_path / "1-a.stacks").write_text(GUEST)
    segment = str(tmp_path / "1-a.seg")
    assert read_stacks(segment, 7000) is not None
    assert read_stacks(segment, 7001) is None


def test_links_pipes_and_bytes_are_not_followed(tmp_path):
    (tmp_path / "real").write_text(GUEST)
    (tmp_path / "1-a.stacks").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "2-a.stacks")
    (tmp_path / "3-a.stacks").write_bytes(b"\xff\xfe" * 1000)
    for name in ("1-a", "2-a", "3-a", "4-a"):
        assert read_stacks(str(tmp_path / f"{name}.seg"), 0) is None


def test_ranks_at_one_place_are_one_group_and_the_largest_comes_first():
    stacks = {str(rank): process("main", "all_reduce") for rank in (0, 1, 3)}
    stacks = {"2": process("main", "step", "sleep"), **stacks}
    groups = merge(stacks)
    assert [group.ranks for group in groups] == [("0", "1", "3"), ("2",)]
    assert groups[1].innermost(2) == "step (train.py:7) > sleep (train.py:7)"


@pytest.mark.parametrize(
    ("stacks", "is_long"),
    [
        (process("main", "train", "save_checkpoint", "write"), True),
        (process("main", "_save"), True),
        (process("main", "evaluate", "forward"), True),
        (process("main", "generate_sequences"), True),
        (process("saveState"), True),
        (process("saved_tensors_counter"), False),
        (process("checkpoint", file=f"{PACKAGES}/torch/utils/checkpoint.py"), False),
        (process("compile_wrapper", "f", file=f"{PACKAGES}/torch/_dynamo/eval_frame.py"), False),
        (process("run", file=f"{PACKAGES}/torch/_inductor/compile_fx.py"), False),
        (process("run", file=f"{PACKAGES}/triton/runtime/jit.py"), False),
        (process("_compile", file=f"{PACKAGES}/torch/_dynamo/convert_frame.py"), True),
        (process("compile_fx_inner", file=f"{PACKAGES}/torch/_inductor/compile_fx.py"), True),
        (process("f", file=f"{PACKAGES}/triton/compiler/compiler.py"), True),
        (process("f", file="/site/torch/serialization.py"), True),
        (process("main", "train", "maybe_save", "backward"), False),
        (process("main", "unsaved", "next_batch"), False),
        (process("evaluate", *["f"] * 20), False),
    ],
)
def test_long_work_is_recognised_by_function_and_file(stacks, is_long):
    assert stacks.is_long_function() is is_long


@pytest.mark.parametrize(
    ("stacks", "awaited"),
    [
        (process("run", "wait", file="/usr/lib/python3.11/subprocess.py"), "a child process"),
        (process("get", file="/usr/lib/python3.11/queue.py"), "a queue or a pipe"),
        (process("_recv", file="/usr/lib/python3.11/multiprocessing/connection.py"),
         "a queue or a pipe"),
        (process("copyfileobj", file="/usr/lib/python3.11/shutil.py"), "files"),
        (process("sleep", file=f"{PACKAGES}/tenacity/nap.py"), "its next try"),
        (process("fetch_with", "retry"), "its next try"),
        (process("main", "train"), ""),
        (process("wait", file="/usr/lib/python3.11/threading.py"), ""),
    ],
)  # fmt: skip
def test_a_wait_is_recognised_by_the_innermost_file(stacks, awaited):
    assert own_wait_of(stacks) == awaited
    under = replace(stacks.main, frames=(*stacks.main.frames, Frame("train.py", 9, "burn")))
    assert not own_wait_of(replace(stacks, threads=(under,)))


def test_how_a_queue_waits_inside_is_seen_through():
    frames = [("/lib/queue.py", "get"), ("/lib/threading.py", "wait")]
    stack = tuple(Frame(file, 1, function) for file, function in frames)
    main = ThreadStack("MainThread", 1, is_main=True, frames=stack)
    assert own_wait_of(ProcessStacks("guest", 0, (main,))) == "a queue or a pipe"


PY_SPY = [
    {
        "thread_name": "MainThread",
        "os_thread_id": 42,
        "frames": [
            {"name": "Job.outer.<locals>.inner", "filename": "/job/a.py", "line": 2},
            {"name": "<module>", "filename": "/job/a.py", "line": 5},
        ],
    },
    {"thread_name": "dfx-watch", "os_thread_id": 43, "frames": []},
]


def test_py_spys_dump_reads():
    stacks = _from_py_spy(json.loads(json.dumps(PY_SPY)), 42)
    assert [thread.name for thread in stacks.threads] == ["MainThread"]
    assert [frame.function for frame in stacks.main.frames] == ["<module>", "inner"]


def test_without_py_spy_there_are_no_stacks(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dump_with_py_spy(os.getpid()) is None


def test_a_py_spy_that_fails_gives_no_stacks(monkeypatch, tmp_path):
    (tmp_path / "py-spy").write_text("#!/bin/sh\necho 'Permission Denied' >&2; exit 1\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert dump_with_py_spy(os.getpid()) is None


def test_py_spy_reads_a_process_that_is_stopped():
    if shutil.which("py-spy") is None:
        pytest.skip("no py-spy on PATH; pip install py-spy")
    code = "import time\ndef stuck(): time.sleep(60)\nstuck()"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(1)
        child.send_signal(signal.SIGSTOP)
        stacks = dump_with_py_spy(child.pid)
        assert stacks.main.frames[-1].function == "stuck"
    finally:
        child.kill()
        child.wait()
