"""One real job seen by one agent as a whole, and by a hub from two halves: the same verdicts."""

from __future__ import annotations

import os
import signal

import pytest
from two_nodes import TwoNodes, two_nodes

from dfx_agent.snapshot import Verdict

Known = dict[str, Verdict]


def told(verdict: Verdict) -> tuple[object, ...]:
    return verdict.state, verdict.ranks, verdict.cause


def agree(kind: str, one: Known, hub: Known) -> bool:
    """Whether both have found it, and the same."""
    return (
        kind in one
        and kind in hub
        and one[kind].state == "found"
        and told(one[kind]) == told(hub[kind])
    )


def run_in(nodes: TwoNodes) -> None:
    """Until both know what is normal."""
    nodes.until(lambda *known: all(map(bool, known)) and nodes.num_steps() >= 6, 120)


def test_a_stopped_rank_on_the_second_node(tmp_path):
    with two_nodes(tmp_path, "none", 1) as nodes:
        run_in(nodes)
        os.kill(nodes.ranks[3].pid, signal.SIGSTOP)
        one, hub = nodes.until(lambda one, hub: agree("hang", one, hub), 60)
        assert told(hub["hang"]) == ("found", ("3",), "stopped")
        assert hub["hang"].summary.startswith("Rank 3 on node-b has been suspended (state T) for ")
        assert told(one["crash"])[:2] == told(hub["crash"])[:2] == ("clear", ())


@pytest.mark.smoke
def test_a_rank_that_is_killed_on_the_second_node(tmp_path):
    with two_nodes(tmp_path, "none", 1) as nodes:
        run_in(nodes)
        os.kill(nodes.ranks[3].pid, signal.SIGKILL)
        _, hub = nodes.until(lambda one, hub: agree("crash", one, hub), 60)
        assert told(hub["crash"]) == ("found", ("3",), "died")
        assert hub["crash"].summary.startswith("Rank 3 on node-b was killed by signal 9")


def test_a_collective_that_does_not_match_on_the_second_node(tmp_path):
    with two_nodes(tmp_path, "mismatch", 8) as nodes:
        _, hub = nodes.until(lambda one, hub: agree("hang", one, hub), 150)
        assert told(hub["hang"]) == ("found", ("3",), "mismatched collectives")
        assert "rank 3 on node-b" in hub["hang"].summary


def test_a_slow_rank_on_the_second_node(tmp_path):
    """On a host that is busy with others both abstain, and neither names anybody else."""

    def both_judge_alike(one: Known, hub: Known) -> bool:
        if not {"straggler"} <= one.keys() & hub.keys():
            return False
        for verdict in (one["straggler"], hub["straggler"]):
            assert verdict.state != "found" or verdict.ranks == ("3",), verdict
        is_judged = one["straggler"].state == "found" or one["straggler"].cause == "busy host"
        return is_judged and told(one["straggler"]) == told(hub["straggler"])

    with two_nodes(tmp_path, "slow", 3) as nodes:
        run_in(nodes)
        one, hub = nodes.until(both_judge_alike, 120)
        if hub["straggler"].state == "found":
            begin = "Rank 3 on node-b makes other ranks wait"
            assert hub["straggler"].summary.startswith(begin)
            assert hub["straggler"].lost_seconds == pytest.approx(
                one["straggler"].lost_seconds, rel=0.5
            )


def test_facts_sent_again_give_a_new_hub_the_same_state(tmp_path):
    with two_nodes(tmp_path, "none", 1) as nodes:
        run_in(nodes)
        os.kill(nodes.ranks[3].pid, signal.SIGSTOP)
        nodes.until(lambda one, hub: agree("hang", one, hub), 60)
        nodes.restart_hub()
        assert not nodes.look(), "what is new alone is not enough for a new hub"
        nodes.look(is_full=True)
        hang = next(v for v in nodes.seen_by_hub().verdicts if v.kind == "hang")
        assert told(hang) == ("found", ("3",), "stopped")
