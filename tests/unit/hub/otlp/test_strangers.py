"""Who is turned away is told, and told in bounds."""

from __future__ import annotations

from dfx_agent.hub.access import Strangers


def test_an_address_is_shown_with_its_own_name():
    strangers = Strangers()
    strangers.see("10.0.0.2", "")
    strangers.see("10.0.0.2", "node-b")
    (problem,) = strangers.problems()
    assert (problem.path, problem.kind) == ("10.0.0.2", "stranger")
    assert "2 times" in problem.message
    assert "it calls itself node-b" in problem.message


def test_addresses_that_are_too_many_are_counted_together():
    strangers = Strangers()
    for number in range(100):
        strangers.see(f"10.0.0.{number}", "")
    problems = strangers.problems()
    assert len(problems) == 65
    (others,) = [problem for problem in problems if problem.path == "other addresses"]
    assert "36 times" in others.message
