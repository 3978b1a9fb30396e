"""A rank that computes and is hardly let run is not stuck."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hang_scene import SECOND, Scene, hold_in, staged

from dfx_agent.facts.steps import ThreadTimes
from dfx_agent.node import kernel_look as progress


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def counted(monkeypatch, ran: float, delayed: float) -> None:
    """At each look the main thread of every rank has had that much more of 5 s."""
    seen: dict[int, int] = {}

    def main_thread(pid: int) -> progress._MainThread:
        seen[pid] = n = seen.get(pid, 0) + 1
        now = time.monotonic_ns() + n * 5 * SECOND
        return progress._MainThread(now, n * 5 * ran, n * 5 * delayed, 0)

    monkeypatch.setattr(progress, "_main_thread", main_thread)
    monkeypatch.setattr(progress, "_LOOK_EVERY_NS", -(10**12))


@pytest.mark.parametrize("stage", ["backward", None])
@pytest.mark.parametrize(
    ("ran", "delayed", "factor"),
    [(0.2, 0.7, 4.5), (0.01, 0.99, 50), (0.6, 0.4, 1), (0.1, 0.3, 1), (0.0, 0.0, 1)],
)
def test_who_computes_with_little_of_a_processor_has_as_much_longer(
    scene, monkeypatch, stage, ran, delayed, factor
):
    """The kernel's figures: on a processor, and runnable without one, of each second."""
    counted(monkeypatch, ran, delayed)
    ranks = scene.warm_up()
    if stage:
        ranks[2].enters(stage)
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    ranks[2].writes_stacks("main", "train", "compute")
    scene.look(4)
    limit = (10 if stage else 60) * factor
    if not stage and ran + delayed >= 0.5:
        limit = max(limit, 300)
    assert scene.look(limit - 3).state == ("clear" if stage else "insufficient evidence")
    verdict = scene.look(limit + 3)
    assert verdict.ranks == ("2",)
    assert ("of a CPU" in verdict.evidence[0]) == (factor > 1)


@pytest.mark.parametrize(("turns_per_second", "limit"), [(20, 100), (1000, 10)])
def test_who_waits_for_its_own_starved_threads_has_longer_too(
    scene, monkeypatch, turns_per_second, limit
):
    """Its main thread sleeps; another one got a tenth of a processor, and computes or polls."""
    counted(monkeypatch, 0.01, 0.0)
    main_thread = progress._main_thread

    def with_others(pid: int) -> progress._MainThread:
        seen = main_thread(pid)
        num_seconds = seen.cpu_seconds / 0.01
        ran_ns, delayed_ns = int(num_seconds * 0.1 * SECOND), int(num_seconds * 0.9 * SECOND)
        other = ThreadTimes(ran_ns, delayed_ns, int(num_seconds * turns_per_second))
        return seen._replace(threads={7: other})

    monkeypatch.setattr(progress, "_main_thread", with_others)
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    ranks[2].writes_stacks("main", "train", "compute")
    scene.look(4)
    assert scene.look(limit - 3).state == "clear"
    assert scene.look(limit + 3).ranks == ("2",)
