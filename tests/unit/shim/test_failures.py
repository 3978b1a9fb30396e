"""Uncaught exceptions are written down, and the job's own hooks see the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import failures, patches, recorder
from dfx_agent.shim.lifecycle import guest
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.failure import Failure, failure_location, parse_failure
from dfx_agent.wire.layout import MAIN_FAILURE, THREAD_FAILURE

FAILS = """
def step():
    raise RuntimeError("injected\\nin two lines")
"""
CALL = "import dfx_agent.shim as dfx\ndfx.init(run='r', rank=0)\n"
WORKER_ERROR = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/job/dataset.py", line 12, in __getitem__
    raise ValueError("bad: sample")
ValueError: bad: sample
"""  # noqa: E501


def ended(folder: Path, text: str, *, observed: bool = True) -> subprocess.CompletedProcess[str]:
    path = folder / "train.py"
    path.write_text(text if observed else text.replace(CALL, "\n\n"))
    env = {**os.environ, "DFX_DISABLE_HOOKS": ""}
    return subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=env,
    )


def written(folder: Path, place: int = MAIN_FAILURE) -> list[Failure | None]:
    """By every process that left a segment."""
    found = []
    for path in sorted(folder.glob("*.seg")):
        with closing(SegmentReader(str(path))) as reader:
            found.append(parse_failure(reader.read(*failure_location(place))))
    return found


def test_an_exception_is_readable_after_the_death_and_printed_as_ever(dfx_dir, tmp_path):
    text = f"{CALL}{FAILS}\nstep()\n"
    with_guest, alone = ended(tmp_path, text), ended(tmp_path, text, observed=False)
    assert (with_guest.returncode, with_guest.stderr) == (1, alone.stderr)
    (failure,) = written(dfx_dir)
    assert failure is not None
    assert (failure.type, failure.message) == ("RuntimeError", "injected in two lines")
    assert (Path(failure.file).name, failure.line, failure.function) == ("train.py", 5, "step")


def test_the_place_is_the_jobs_own_code_and_not_the_library_below_it(dfx_dir, tmp_path):
    ended(tmp_path, f"{CALL}import json\n\njson.loads('[')\n")
    (failure,) = written(dfx_dir)
    assert failure is not None
    assert (Path(failure.file).name, failure.line, failure.type) == (
        "train.py", 5, "JSONDecodeError",
    )  # fmt: skip


def test_a_thread_that_failed_is_named_and_the_process_continues(dfx_dir, tmp_path):
    text = f"{CALL}{FAILS}\nimport threading\n"
    text += "t = threading.Thread(target=step, name='loader')\nt.start()\nt.join()\n"
    assert ended(tmp_path, text).returncode == 0
    (failure,) = written(dfx_dir, THREAD_FAILURE)
    assert failure is not None
    assert (failure.type, failure.thread) == ("RuntimeError", "loader")
    assert written(dfx_dir) == [None]


def test_a_child_of_multiprocessing_says_what_it_ends_with(dfx_dir, tmp_path):
    """Its exception never reaches a hook: it is printed by the library."""
    text = "import multiprocessing\n" + FAILS
    text += "def child():\n    import dfx_agent.shim as dfx\n    dfx.init(run='r', rank=1)\n"
    text += "    step()\n\nif __name__ == '__main__':\n"
    text += "    p = multiprocessing.get_context('spawn').Process(target=child)\n"
    text += "    p.start()\n    p.join()\n    raise SystemExit(p.exitcode)\n"
    assert ended(tmp_path, text).returncode == 1
    (failure,) = written(dfx_dir)
    assert failure is not None
    assert (failure.type, failure.function) == ("RuntimeError", "step")


def test_leaving_by_a_code_is_no_exception(dfx_dir, tmp_path):
    assert ended(tmp_path, f"{CALL}raise SystemExit(3)\n").returncode == 3
    assert written(dfx_dir) == [None]


@pytest.fixture
def reader(dfx_dir, monkeypatch):
    """Of this process with a guest that has these hooks alone."""
    guest.stop()
    monkeypatch.setattr(patches, "disabled", lambda: patches.registry.keys() - {"exceptions"})
    guest._is_refused = False
    assert dfx.init(run="r", role="trainer", rank=0)
    with closing(SegmentReader(recorder.current.path)) as segment:
        yield segment
    guest.stop()


def noted(reader: SegmentReader, place: int = MAIN_FAILURE) -> Failure | None:
    return parse_failure(reader.read(*failure_location(place)))


def raised(error: BaseException) -> tuple[type, BaseException, object]:
    try:
        raise error  # noqa: TRY301
    except BaseException as caught:  # noqa: BLE001
        return type(caught), caught, caught.__traceback__


def test_the_hook_of_the_job_is_called_with_the_same_and_comes_back(reader, monkeypatch):
    calls = []

    def own(*given: object) -> str:
        calls.append(given)
        return "own"

    guest.stop()
    monkeypatch.setattr(sys, "excepthook", own)
    thread_hook = threading.excepthook
    guest._is_refused = False
    assert dfx.init(run="r", role="trainer", rank=0)
    given = raised(ValueError("bad"))
    assert sys.excepthook is not own
    assert sys.excepthook(*given) == "own"
    assert calls == [given]
    guest.stop()
    assert (sys.excepthook, threading.excepthook) == (own, thread_hook)


def test_a_hook_that_was_set_later_stays_and_ours_below_it_is_off(reader, monkeypatch):
    ours = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", partial(ours))
    later = sys.excepthook
    guest.stop()
    assert sys.excepthook is later
    assert not failures.PATCHES.is_active


def test_a_traceback_inside_a_message_says_where(reader, monkeypatch):
    """As a DataLoader tells of its worker, and Ray of an actor."""
    failures._note(*raised(ValueError(WORKER_ERROR)), MAIN_FAILURE)
    failure = noted(reader)
    assert failure is not None
    assert failure[1:6] == ("ValueError", "bad: sample", "/job/dataset.py", 12, "__getitem__")


@pytest.mark.parametrize(
    ("last", "named"),
    [("zmq.error.Again: later\n\tip: 10.0.0.1", ("Again", "later")), ("Stop", ("Stop", ""))],
)
def test_the_last_line_that_can_name_an_exception_does(reader, last, named):
    """Ray adds lines such as "ip: 10.0.0.1" to the text of a remote traceback."""
    text = f'Traceback:\n  File "/job/a.py", line 3, in f\n    f()\n{last}'
    failures._note(*raised(ValueError(text)), MAIN_FAILURE)
    failure = noted(reader)
    assert failure is not None
    assert (failure.type, failure.message) == named


def test_an_exception_that_cannot_be_printed_does_no_harm(reader):
    class BadError(Exception):
        def __str__(self) -> str:
            raise SystemExit(9)

    failures._note(*raised(BadError()), MAIN_FAILURE)
    failure = noted(reader)
    assert failure is not None
    assert (failure.type, failure.message) == ("BadError", "<exception str() failed>")


def test_a_long_message_is_bounded_and_the_names_are_whole(reader):
    failures._note(*raised(RuntimeError("ü" * 10**6)), MAIN_FAILURE)
    failure = noted(reader)
    assert failure is not None
    assert len(failure.message.encode()) <= 402
    assert failure.function == "raised"


def test_the_first_failed_thread_is_stored(reader):
    for number in range(2):
        args = SimpleNamespace(thread=threading.current_thread())
        args.exc_type, args.exc_value, args.exc_traceback = raised(ValueError(str(number)))
        failures._noting_thread(lambda _: None, failures.PATCHES.switch)(args)
    failure = noted(reader, THREAD_FAILURE)
    assert failure is not None
    assert failure.message == "0"


@pytest.mark.parametrize(
    "file", ["/src/dfx_agent/shim/torch/step_hooks.py", "<attached>/dfx_agent/shim/spans.py"]
)
def test_a_frame_of_the_guest_is_no_code_of_the_job(file):
    frames = [("/job/train.py", 42, "update"), (file, 289, "backward")]
    assert failures._innermost(frames) == ("/job/train.py", 42, "update")
