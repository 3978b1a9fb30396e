"""Which code the guest's samples name, and that marked code is told from unmarked."""

from __future__ import annotations

import contextlib
import threading

import pytest

from dfx_agent.shim import code_samples
from dfx_agent.shim.code_samples import CodeSampler
from dfx_agent.shim.frames import lines_of
from dfx_agent.wire.records import STAGE, WAIT


class Writer:
    """What the sampler needs of a recorder."""

    def __init__(self) -> None:
        self.open: list[tuple[int, str]] = []
        self.counted: list[str] = []

    def open_rows(self):
        return [(0,) * 8 + (kind, number) for number, (kind, _) in enumerate(self.open)]

    def name_of(self, number):
        return self.open[number][1]

    def count(self, name, value):
        assert value == 1.0
        self.counted.append(name)


@pytest.fixture
def sampled(monkeypatch):
    """Samples a thread that is inside ``train > load_batch`` in place of the main thread."""
    is_there, may_end = threading.Event(), threading.Event()

    def load_batch():
        is_there.set()
        return [may_end.wait() for _ in range(1)]

    def train():
        load_batch()

    thread = threading.Thread(target=train)
    thread.start()
    is_there.wait()
    monkeypatch.setattr(code_samples.threading, "main_thread", lambda: thread)
    yield
    may_end.set()
    thread.join()


@pytest.mark.parametrize(
    ("is_open", "state"),
    [
        ([], "unmarked"),
        ([(STAGE, "step")], "unmarked"),
        ([(STAGE, "step"), (STAGE, "rollout")], "marked"),
        ([(WAIT, "collector")], "marked"),
    ],
)
def test_a_sample_names_the_calls_of_the_job_outermost_first(sampled, is_open, state):
    writer = Writer()
    writer.open = is_open
    CodeSampler().sample(writer)
    (name,) = writer.counted
    kind, library, calls = name.split("|")
    assert (kind, library) == (f"code/{state}", "")
    functions = [call.split()[0] for call in calls.split(">")]
    assert functions == ["train", "load_batch"]
    assert all("test_code_samples.py:" in call for call in calls.split(">"))


def test_places_are_bounded(sampled, monkeypatch):
    writer, sampler = Writer(), CodeSampler()
    numbers = iter(range(1000))
    monkeypatch.setattr(
        code_samples, "_calls", lambda _lines: ([f"f train.py:{next(numbers)}"], "")
    )
    for _ in range(200):
        sampler.sample(writer)
    assert len(writer.counted) == len(set(writer.counted)) == 48


def test_lines_are_those_that_run_now():
    frames = lines_of(threading.get_ident())
    names = [code.co_name for code, _ in frames]
    assert "test_lines_are_those_that_run_now" in names
    assert all(line is None or line > 0 for _, line in frames)
    with contextlib.suppress(KeyError):
        assert lines_of(-1) == []
