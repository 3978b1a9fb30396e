"""A host that keeps the agent from reading makes it unsure, not wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace

import hang_scene
import pytest
from hang_scene import SECOND, Scene, hold_in, staged

from dfx_agent.node.process import Process


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


@pytest.fixture
def stuck(scene) -> Scene:
    """Rank 2 is in backward, the others wait for it; the agent has looked at them."""
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    ranks[2].writes_stacks("main", "train", "compute")
    scene.agent.poll()
    return scene


def hang(scene: Scene) -> str:
    (run,) = scene.agent.snapshot().runs
    (verdict,) = (v for v in run.verdicts if v.kind == "hang")
    return verdict.state


def test_a_reading_that_takes_long_is_judged_as_of_its_begin(stuck, monkeypatch):
    """While one rank is read for a minute, the others go on and are not seen to."""
    passed, monotonic_ns, poll = [0], time.monotonic_ns, Process.poll

    def slow_poll(process: Process, **options):
        read = poll(process, **options)
        passed[0] += 60 * SECOND
        return read

    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic_ns", lambda: monotonic_ns() + passed[0])
        slow.setattr(Process, "poll", slow_poll)
        stuck.agent.poll()
        assert hang(stuck) != "found"
        stuck.agent.poll()
        assert hang(stuck) == "found", "a minute later nothing has moved"


def readings(scene: Scene, monkeypatch, gap_seconds: float) -> list[str]:
    """States of the verdict at readings this far apart, all of them after its limit."""
    begin, numbers = time.monotonic(), itertools.count(1)
    clock = SimpleNamespace(time=time.time, monotonic=lambda: begin + next(numbers) * gap_seconds)
    monkeypatch.setattr(hang_scene, "time", clock)
    states = []
    for _ in range(4):
        verdicts = scene.watch.observe(
            scene.agent._runs["r"].processes, time.monotonic_ns() + 14 * SECOND
        )
        states += [v for v in verdicts if v.kind == "hang"]
    return states


def test_who_was_seen_too_seldom_is_not_accused(stuck, monkeypatch):
    reported = readings(stuck, monkeypatch, gap_seconds=12)
    assert [verdict.state for verdict in reported][-1] == "found", "it stands at each of them"
    assert reported[1].state == "insufficient evidence"
    assert reported[1].summary.startswith("This agent could not read for 12 s and is not sure")
    assert (reported[1].cause, reported[1].ranks) == ("", ())


def test_readings_that_come_in_time_are_believed(stuck, monkeypatch):
    assert readings(stuck, monkeypatch, gap_seconds=1)[1].state == "found"
