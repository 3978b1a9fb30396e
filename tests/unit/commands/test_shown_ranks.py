"""Rows of ranks that a page shows are requested from their nodes, not more often than needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scripted_source import ScriptedSource

from dfx_agent.commands.hub import shown_ranks
from dfx_agent.commands.hub.shown_ranks import ShownRanks
from dfx_agent.snapshot import RankRow


class Node:
    """Answers with ``rows``; its requests are noted."""

    def __init__(self, rows: tuple[RankRow, ...]) -> None:
        self.rows, self.requests = rows, []

    def __call__(self, run, ranks):
        self.requests.append(sorted(ranks))
        return [row for row in self.rows if (row.role, row.rank) in ranks]


@pytest.fixture
def full() -> RankRow:
    """As the node has it."""
    row = ScriptedSource(num_ranks=1).snapshot().runs[0].ranks[0]
    return replace(row, gauges={"guest/overhead_ratio": 0.5}, node="host")


@pytest.fixture
def brief(full) -> RankRow:
    """As the hub has it."""
    return replace(full, gauges={}, node="node-a", place={"data": 1})


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(shown_ranks.time, "monotonic", lambda: now[0])
    return now


def test_a_shown_rank_is_the_one_of_its_node_at_the_place_of_the_job(full, brief):
    shown = ShownRanks(Node((full,)))
    assert shown.full("r", [brief]) == (replace(full, node="node-a", place={"data": 1}),)
    shown.close()


def test_a_node_is_asked_once_in_a_second(full, brief, clock):
    node = Node((full,))
    shown = ShownRanks(node)
    for _ in range(3):
        shown.full("r", [brief])
    assert len(node.requests) == 1
    clock[0] += 1.5
    shown.full("r", [brief])
    shown._pool.shutdown(wait=True)
    assert len(node.requests) == 2


def test_a_row_of_a_node_that_does_not_answer_is_dropped(full, brief, clock):
    node = Node((full,))
    shown = ShownRanks(node)
    assert shown.full("r", [brief])[0].gauges
    node.rows = ()
    for _ in range(6):
        clock[0] += 2
        shown._is_refreshing = True  # nobody else asks meanwhile
        shown._refresh("r", [("actor", "0")])
    assert shown.full("r", [brief]) == (brief,)
    shown.close()


def test_another_process_of_the_rank_and_a_lost_node_are_not_shown_as_this_one(full, brief):
    shown = ShownRanks(Node((full,)))
    for other in (replace(brief, pid=full.pid + 1), replace(brief, state="unknown")):
        assert shown.full("r", [other]) == (other,)
    shown.close()


def test_ranks_that_nobody_looks_at_are_forgotten(full, brief, clock):
    shown = ShownRanks(Node((full,)))
    shown.full("r", [brief])
    clock[0] += 60
    shown.full("other", [brief])
    assert list(shown._cache) == [("other", ("actor", "0"))]
    shown.close()


def test_an_unknown_run_has_no_full_rows(brief):
    def unknown(run, ranks):
        raise KeyError(run)

    shown = ShownRanks(unknown)
    assert shown.full("r", [brief]) == (brief,)
    shown.close()
