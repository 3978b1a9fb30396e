"""Facts that came as JSON lead to the very verdicts that facts at hand lead to."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hang_scene import SECOND, Scene, hold_in, staged

from bench.simulated_steps import Job, same_tokens, slower
from dfx_agent.facts.document import dumped, loaded
from dfx_agent.facts.run import RunFacts
from dfx_agent.facts.steps import RoleSteps
from dfx_agent.judge.hang.judge import HangJudge
from dfx_agent.judge.part_of_job import only_what_is_seen
from dfx_agent.judge.straggler.judge import StragglerJudge
from dfx_agent.snapshot import Verdict
from dfx_agent.snapshot.faults import Faults


@pytest.fixture
def scene(dfx_dir) -> Iterator[Scene]:
    with staged(dfx_dir) as scene:
        yield scene


def judged(facts: RunFacts) -> list[Verdict]:
    waits = HangJudge(Faults(), "r").verdicts(facts.ranks, facts.quiet_seconds, 1.0)
    stragglers = StragglerJudge()
    found = [*waits, *(v for steps in facts.steps if (v := stragglers.verdict(steps)))]
    return list(only_what_is_seen(found, facts.seats))


def test_a_hang_and_a_straggler_are_the_same_from_json(scene):
    ranks = scene.warm_up()
    ranks[2].enters("backward")
    hold_in([ranks[0], ranks[1], ranks[3]], "all_reduce@0", 5)
    scene.look(15)
    processes, now_ns = scene.agent._runs["r"].processes, time.monotonic_ns() + 15 * SECOND
    for _ in range(3):
        scene.watch.tracks.observe(processes, now_ns)
    known = scene.watch.tracks.facts(now_ns)
    steps = tuple(Job(slow=slower(1, 1.3), tokens=same_tokens).steps(8))
    facts = RunFacts(
        run="r", node="here", now_seconds=1.0,
        seats=tuple(process.seat for process in processes.values()),
        ranks={role: reported for role, reported in known.items() if reported is not None},
        steps=(RoleSteps("trainer", steps, 1.0, 4, 4),),
    )  # fmt: skip
    verdicts = judged(facts)
    assert {(v.kind, v.state, v.ranks) for v in verdicts} >= {
        ("hang", "found", ("2",)), ("straggler", "found", ("1",)),
    }  # fmt: skip
    assert judged(loaded(dumped(facts))) == verdicts
