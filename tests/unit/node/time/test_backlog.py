"""Who fell behind reads hundreds of steps at once: that costs as much as the steps one by one.

Counted, not timed: how often times are compared.
"""

from __future__ import annotations

import pytest

from dfx_agent.node.collectives.matching import _MatchedRank
from dfx_agent.node.time.account import TimeAccount
from dfx_agent.wire.records import STAGE

SPANS, STEP_NS = 10, 1000
# four times the steps: four times the work and a little for sorting; 16 times if each looks at all
FEW, MANY, MOST = 100, 400, 6.0


class Ns(int):
    """A time that counts who compares it."""

    num = 0


def counted(name: str):
    compare = getattr(int, name)

    def count(self, other):
        Ns.num += 1
        return compare(self, other)

    return count


for comparison in ("__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Ns, comparison, counted(comparison))


def account_steps(num_steps: int) -> None:
    account, rows = TimeAccount(0), {}
    for step in range(num_steps):
        account.begin_step(step * STEP_NS, step)
        for number in range(SPANS):
            begin = step * STEP_NS + number * 90
            span = step * SPANS + number + 1
            # the last one lies across the begin of the next step
            rows[span] = (Ns(begin), span, Ns(begin + 80 + number * 12), 0, STAGE, "rollout")
    account.add_new(rows)
    account.advance(num_steps * STEP_NS)
    assert len(account.finished) == num_steps
    assert account.current.split.stages_ns["rollout"] > 0


def pop_transfers(num_steps: int) -> None:
    rank = _MatchedRank(None, 1)
    rank.transfers += [(Ns(ns), 7) for ns in range(0, num_steps * STEP_NS, STEP_NS // SPANS)]
    begins = range(0, num_steps * STEP_NS, STEP_NS)
    taken = [rank.pop_transfers(begin, begin + STEP_NS) for begin in begins]
    assert taken == [7 * SPANS] * num_steps


@pytest.mark.parametrize("work", [account_steps, pop_transfers])
def test_a_backlog_costs_as_much_as_its_steps(work):
    counts = []
    for num_steps in (FEW, MANY):
        Ns.num = 0
        work(num_steps)
        counts.append(Ns.num)
    few, many = counts
    assert few > FEW
    assert many < MOST * few


def test_transfers_that_come_late_are_taken_in_their_time():
    rank = _MatchedRank(None, 1)
    rank.transfers += [(30, 1), (10, 2)]
    assert rank.pop_transfers(5, 20) == 2
    rank.transfers += [(25, 4), (3, 8)]
    assert rank.pop_transfers(20, 40) == 5
    rank.transfers += [(41, 16)]
    rank.clear_transfers()
    assert rank.pop_transfers(40, 60) == 0
