"""Kinds of devices are found by their folder, and a strange one costs itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest
from prometheus_page import samples

from dfx_agent.agent import agent as agent_module
from dfx_agent.agent import device_watch
from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.exporters.prometheus.exporter import PrometheusExporter
from dfx_agent.node.devices import backends, registry
from dfx_agent.node.devices.registry import DeviceReader, LateDeviceError
from dfx_agent.snapshot import DeviceRow, Snapshot

DEADLINE_SECONDS = 60.0
ROW = DeviceRow("cuda:0", 80 << 30, 7 << 30)


class Scripted:
    """Gives its rows, and does first what the test wants."""

    def __init__(self, before: Callable[[], object] = lambda: None, *, is_here: bool = True):
        self.before, self.is_here = before, is_here
        self.is_closed = threading.Event()

    def probe(self) -> bool:
        return self.is_here

    def read(self) -> tuple[DeviceRow, ...]:
        self.before()
        return (ROW,)

    def close(self) -> None:
        self.is_closed.set()


def until(look: Callable[[], object]) -> object:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return seen


@pytest.fixture
def started():
    readers: list[DeviceReader] = []

    def start(make: Callable[[], object]) -> DeviceReader:
        readers.append(DeviceReader("scripted", make))
        readers[-1].start()
        return readers[-1]

    yield start
    for reader in readers:
        reader.stop()


def fail() -> None:
    raise OSError("driver/library version mismatch")


def test_what_lies_in_the_folder_is_found_and_nothing_else_names_it(tmp_path, monkeypatch):
    kinds = ["amd", "ascend", "host", "nvidia"]
    assert [reader.name for reader in registry.find_readers()] == kinds
    (tmp_path / "tpu.py").write_text("class Backend:\n    probe = lambda self: False\n")
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    assert [reader.name for reader in registry.find_readers()] == [*kinds, "tpu"]


def test_rows_are_what_was_read_last_and_a_stop_closes(started):
    backend = Scripted()
    reader = started(lambda: backend)
    assert until(reader.latest) == (ROW,)
    reader.stop()
    assert backend.is_closed.wait(DEADLINE_SECONDS)


def test_a_kind_that_is_not_here_has_no_rows_and_no_fault(started):
    reader = started(lambda: Scripted(fail, is_here=False))
    reader._thread.join(DEADLINE_SECONDS)
    assert reader.latest() == ()


def raised(reader: DeviceReader) -> Exception | None:
    try:
        reader.latest()
    except Exception as error:  # noqa: BLE001 (whatever it is)
        return error
    return None


@pytest.mark.parametrize("make", [fail, lambda: Scripted(fail)])
def test_what_fails_is_raised_to_who_asks_and_has_no_old_rows(started, make):
    reader = started(make)
    error = until(lambda: raised(reader))
    assert str(error) == "driver/library version mismatch"

    def depth() -> int:
        trace, number = raised(reader).__traceback__, 0
        while trace is not None:
            trace, number = trace.tb_next, number + 1
        return number

    assert depth() == depth(), "it does not grow with each look"


def test_a_backend_that_works_again_is_reported_again(started, monkeypatch):
    monkeypatch.setattr(registry, "READ_EVERY_SECONDS", 0.01)
    outcomes = [fail, fail]
    reader = started(lambda: Scripted(lambda: outcomes.pop()() if outcomes else None))
    assert until(lambda: not raised(reader) and reader.latest()) == (ROW,)


def test_a_driver_that_never_answers_is_late(started, monkeypatch):
    monkeypatch.setattr(registry, "LATE_SECONDS", 0.05)
    gate = threading.Event()
    reader = started(lambda: Scripted(gate.wait))
    try:
        assert isinstance(until(lambda: raised(reader)), LateDeviceError)
    finally:
        gate.set()
    assert until(lambda: not raised(reader) and reader.latest()) == (ROW,)


def test_an_unusable_backend_is_tried_again(started, monkeypatch):
    monkeypatch.setattr(registry, "RETRY_SECONDS", 0.01)
    failures = [fail, fail]

    def make() -> Scripted:
        if failures:
            failures.pop()()
        return Scripted()

    reader = started(make)
    assert until(lambda: not raised(reader) and reader.latest()) == (ROW,)


def test_a_reading_says_over_which_time_it_is(started, monkeypatch):
    monkeypatch.setattr(registry, "READ_EVERY_SECONDS", 0.01)
    reader = started(Scripted)
    first = until(lambda: reader.latest_reading() if reader.num_results else None)
    later = until(lambda: r if (r := reader.latest_reading()).end_ns > first.end_ns else None)
    assert first.begin_ns <= first.end_ns <= later.begin_ns < later.end_ns


@pytest.fixture
def agent(dfx_dir, monkeypatch):
    """An agent of three kinds: one fails, one hangs, one is well."""
    gate = threading.Event()
    monkeypatch.setattr(registry, "LATE_SECONDS", 0.05)
    monkeypatch.setattr(device_watch, "READ_EVERY_SECONDS", 0.0)
    readers = (
        DeviceReader("broken", lambda: Scripted(fail)),
        DeviceReader("hanging", lambda: Scripted(gate.wait)),
        DeviceReader("well", Scripted),
    )
    monkeypatch.setattr(agent_module, "device_readers", lambda: readers)
    agent = Agent(Config(str(dfx_dir), poll_seconds=0.02))
    agent.start()
    yield agent
    gate.set()
    agent.stop()


def test_a_failing_kind_costs_itself_and_is_shown(agent, caplog):
    caplog.set_level(logging.CRITICAL)

    def seen() -> Snapshot | None:
        snapshot = agent.snapshot()
        whats = {fault.what for fault in snapshot.agent.faults}
        return snapshot if snapshot.agent.devices and whats == {"broken", "hanging"} else None

    snapshot = until(seen)
    assert snapshot.agent.devices == (ROW,)
    assert snapshot.agent.num_faults["device"] >= 2
    broken, hanging = sorted(snapshot.agent.faults, key=lambda fault: fault.what)
    assert broken.part == "device"
    assert "driver/library version mismatch" in broken.message
    assert "no answer for more than" in hanging.message
    until(lambda: agent.snapshot().agent.faults[0].num_times > 3)
    assert agent.snapshot().agent.blind is None, "what is said of runs is as good as before"


def test_it_has_series(agent):
    until(lambda: agent.snapshot().agent.devices)
    shown = samples(PrometheusExporter(agent))
    assert shown["dfx_device_memory_total_bytes"] == [({"device": "cuda:0"}, float(80 << 30))]
    assert shown["dfx_device_memory_available_bytes"] == [({"device": "cuda:0"}, float(7 << 30))]
