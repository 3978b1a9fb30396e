"""What devices reported, beside a hang or a crash that was found."""

from __future__ import annotations

from dfx_agent.facts.run import Reported
from dfx_agent.judge.reported import with_reported
from dfx_agent.snapshot import Verdict

XID = Reported(
    "nvidia:3", "XID 79", "GPU has fallen off the bus", 1000.0, "node-b", (("trainer", "5"),)
)
CRASH = Verdict(
    "crash", "found", "trainer", "rank 5 was killed", ranks=("5",), since_seconds=1010.0
)


def told(verdict: Verdict, *events: Reported) -> Verdict:
    (found,) = with_reported([verdict], events)
    return found


def test_a_crash_names_what_the_device_of_its_rank_said():
    found = told(CRASH, XID)
    assert found.summary == "Rank 5 was killed. The device reported XID 79 on node-b GPU 3."
    assert found.evidence == (
        "XID 79 on node-b GPU 3 (GPU has fallen off the bus), used by rank 5",
    )


def test_what_a_device_of_somebody_else_said_is_evidence_alone():
    other = Reported("nvidia:1", "XID 31", "", 1000.0, "node-b", (("trainer", "2"),))
    found = told(CRASH, other)
    assert found.summary == "Rank 5 was killed."
    assert found.evidence == ("XID 31 on node-b GPU 1, used by rank 2",)


def test_a_hang_that_blames_nobody_names_it():
    hang = Verdict("hang", "found", "trainer", "nothing moves", since_seconds=1010.0)
    assert told(hang, XID).summary == "Nothing moves. The device reported XID 79 on node-b GPU 3."


def test_what_was_said_long_before_has_nothing_to_do_with_it():
    old = Verdict("crash", "found", "trainer", "x", ranks=("5",), since_seconds=2000.0)
    assert told(old, XID) == old


def test_what_is_clear_stays_as_it_is():
    clear = Verdict("hang", "clear", "trainer", "all move")
    assert told(clear, XID) == clear
