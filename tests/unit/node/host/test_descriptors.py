"""Descriptors that are kept for ranks are counted, over all threads."""

import resource

from dfx_agent.node.host import processes
from dfx_agent.node.host.processes import Allowance, process_allowance


def test_all_are_granted_or_none():
    allowance = Allowance(5)
    assert [allowance.take(2) for _ in range(3)] == [True, True, False]
    allowance.give_back(2)
    assert allowance.take(3)


def test_half_of_the_limit_is_left_for_the_rest(monkeypatch):
    for soft, allowed in ((256, 128), (1024, 512), (1 << 20, 1024), (resource.RLIM_INFINITY, 1024)):
        monkeypatch.setattr(
            processes.resource, "getrlimit", lambda _, soft=soft: (soft, resource.RLIM_INFINITY)
        )
        allowance = process_allowance()
        assert allowance.take(allowed)
        assert not allowance.take(1)
