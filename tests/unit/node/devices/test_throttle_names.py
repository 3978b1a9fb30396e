"""Reasons for slow clocks that drivers report, and the remedies that the straggler names."""

from dfx_agent.judge.straggler import judge
from dfx_agent.node.devices import nvml_words
from dfx_agent.node.devices.backends import amd


def test_every_reason_that_a_backend_gives_has_a_remedy():
    given = {name for bit in range(8) for name in nvml_words.throttle_names(1 << bit)}
    assert given | set(amd._THROTTLES.values()) == set(judge._REMEDIES)
