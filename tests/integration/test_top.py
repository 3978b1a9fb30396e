"""`dfx-agent top` in a real terminal (a pty): live, resized, without its agent, and gone."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from live_processes import DFX_AGENT, ROOT, job_environment, serving, started, until, unused_port

JOB = (
    "import sys, time, dfx_agent.shim as dfx\n"
    "dfx.init(run='nightly', role='trainer', rank=0)\n"
    "for step in range(1, 100000):\n"
    "    dfx.set_step(step)\n"
    "    with dfx.stage('rollout'): time.sleep(0.2)\n"
)
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A pty with ``dfx-agent top`` in it. ``seen`` is everything that it wrote."""

    def __init__(self, arguments: list[str], **variables: str) -> None:
        self.outer, self.inner = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.inner)
        self.popen = subprocess.Popen(
            [*DFX_AGENT, "top", *arguments],
            stdin=self.inner, stdout=self.inner, stderr=self.inner, start_new_session=True,
            env=job_environment(**{"TERM": "xterm-256color", **variables}),
        )  # fmt: skip
        self.seen = b""

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read(self) -> bytes:
        while select.select([self.outer], [], [], 0.05)[0]:
            self.seen += os.read(self.outer, 65536)
        return self.seen

    def shows(self, text: str) -> None:
        """Wait until a later frame has this text."""
        begin = len(self.read())
        until(lambda: text.encode() in self.read()[begin:], f"{text!r} on the screen", 60)

    def press(self, keys: bytes) -> None:
        os.write(self.outer, keys)

    def ends(self) -> int:
        until(lambda: self.read() is not None and self.popen.poll() is not None, "end of top", 60)
        return int(self.popen.returncode)


@contextmanager
def terminal(arguments: list[str], **variables: str) -> Iterator[Terminal]:
    opened = Terminal(arguments, **variables)
    try:
        yield opened
    finally:
        opened.popen.kill()
        opened.popen.wait()
        os.close(opened.outer)
        os.close(opened.inner)


@pytest.mark.smoke
def test_a_terminal_shows_the_run_answers_keys_and_is_left_as_it_was(dfx_dir, tmp_path):
    env = job_environment(PYTHONPATH=str(ROOT))
    with (
        serving(tmp_path, unused_port()) as agent,
        started([sys.executable, "-c", JOB], tmp_path, env),
        terminal([]) as screen,
    ):
        screen.shows("1 of 1 ranks live")
        screen.shows("rollout")
        screen.resize(120, 30)
        screen.press(b"?")
        screen.shows("the selected rank in full; again: back")
        screen.press(b"?")
        agent.kill()
        screen.shows("No answer since ")
        with serving(tmp_path, agent.port):
            screen.shows("1 of 1 ranks live")
            screen.press(b"q")
            assert screen.ends() == 0
        assert screen.seen.count(ENTER) == screen.seen.count(LEAVE) == 1
        assert b"Traceback" not in screen.seen
        assert termios.tcgetattr(screen.inner) == screen.before


@pytest.mark.parametrize(("key", "code"), [(b"\x03", 0), (b"q", 0)], ids=["ctrl-c", "q"])
def test_without_colour_and_without_an_agent_the_segments_are_shown(dfx_dir, tmp_path, key, code):
    env = job_environment(PYTHONPATH=str(ROOT))
    with (
        started([sys.executable, "-c", JOB], tmp_path, env),
        terminal([], NO_COLOR="1") as screen,
    ):
        screen.shows("RRRR")
        screen.press(key)
        if key == b"\x03":
            screen.popen.send_signal(2)  # the pty is not its controlling terminal
        assert screen.ends() == code
        assert b"\x1b[38" not in screen.seen
        assert b"Traceback" not in screen.seen
        assert termios.tcgetattr(screen.inner) == screen.before


def test_a_dumb_terminal_gets_no_escape_sequences(dfx_dir, tmp_path):
    with terminal(["--dir", str(dfx_dir)], TERM="dumb") as screen:
        screen.shows("No observed process")
        screen.popen.terminate()
        assert screen.ends() == 0
        assert b"\x1b" not in screen.seen


def test_one_frame_has_the_exit_code_of_diagnose(dfx_dir, run_cli):
    result = run_cli("top", "--once", "--dir", str(dfx_dir))
    assert (result.returncode, result.stderr) == (2, "")
    assert "No observed process" in result.stdout
    assert "\x1b" not in result.stdout
    wrong = run_cli("top", "--url", "http://127.0.0.1:9")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert len(wrong.stderr.splitlines()) == 1
