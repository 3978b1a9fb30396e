"""Who stands because a person thinks: a notebook between two cells, a debugger."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hang_scene import Scene, hold_in, staged

from dfx_agent.facts.stacks import Frame, ProcessStacks, ThreadStack
from dfx_agent.judge.hang.standstill import waits_for_a_person

KERNEL = "/lib/python3.11/site-packages/ipykernel/kernelapp.py start"
SELECT = "/lib/python3.11/selectors.py select"
IN_CELL = "/lib/python3.11/site-packages/IPython/core/interactiveshell.py run_cell"
AT_PROMPT = "/lib/python3.11/pdb.py interaction", "/lib/python3.11/cmd.py cmdloop"


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def stack(*places: str) -> ProcessStacks:
    """Outermost call first, each as "FILE FUNCTION"."""
    frames = [place.rpartition(" ") for place in places]
    main = ThreadStack(
        "MainThread", 1, is_main=True, frames=tuple(Frame(f, 7, name) for f, _, name in frames)
    )
    return ProcessStacks("guest", None, (main,))


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ((KERNEL, SELECT), True),
        ((KERNEL, IN_CELL, "/home/me/train.py step"), False),
        (("/home/me/train.py main", *AT_PROMPT), True),
        ((*AT_PROMPT, "/home/me/train.py step"), False),  # a command that it was given
        (("/x/site-packages/prompt_toolkit/application/application.py run", SELECT), True),
        (("/home/me/train.py main",), False),
        (("/home/me/cmd.py loop",), False),
        ((), False),
    ],
)
def test_by_where_the_main_thread_stands(places, expected):
    assert waits_for_a_person(stack(*places)) is expected


def test_without_stacks_nobody_is_said_to_wait():
    assert not waits_for_a_person(None)
    assert not waits_for_a_person(ProcessStacks("guest", None, ()))


@pytest.mark.parametrize(
    ("line", "prompt"),
    [("import pdb; pdb.set_trace(); x = 1", b"(Pdb) "), ("import code; code.interact()", b">>> ")],
)
def test_real_prompts_are_known(line, prompt):
    head = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen([sys.executable, "-uc", f"{head}\n{line}"], bufsize=0, **pipes)
    try:
        reported = b""
        while prompt not in reported:
            reported += os.read(process.stdout.fileno(), 4096)
        process.send_signal(signal.SIGUSR1)
        while b"in <module>" not in reported.partition(b"most recent call first")[2]:
            reported += os.read(process.stdout.fileno(), 4096)
    finally:
        process.kill()
        process.communicate()
    dumped = reported.decode().partition("most recent call first")[2]
    frames = re.findall(r'File "(.*)", line \d+ in (.*)', dumped)
    places = [" ".join(frame) for frame in reversed(frames)]
    assert waits_for_a_person(stack(*places)), places


def test_a_notebook_between_two_cells_pages_nobody(scene):
    for rank in scene.warm_up():
        rank.writes_stacks(KERNEL, SELECT)
    verdict = scene.look(130)
    assert verdict.state == "insufficient evidence"
    assert "wait for a person, in a notebook or a debugger." in verdict.summary


def test_who_is_awaited_at_a_prompt_is_found(scene):
    ranks = scene.warm_up()
    ranks[0].writes_stacks("main", *AT_PROMPT)
    hold_in(ranks[1:], "all_reduce@0", 5)
    assert scene.look(90).ranks == ("0",)
