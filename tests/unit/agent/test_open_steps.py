"""When a step of a role is over: all who live have passed it, or some are far ahead."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dfx_agent.agent.run import RunFold
from dfx_agent.agent.step_rows import _SUPERSEDED_BY, StepRows


def after_close(cells: set[str], *steps: int | None) -> set[int]:
    """The steps that stay open: of step 5, which ``cells`` have closed; ranks are now at these."""
    rows = StepRows()
    processes = {
        ("t", str(rank)): SimpleNamespace(is_living=True, label=str(rank), step=step)
        for rank, step in enumerate(steps)
    }
    rows._open, rows._cells = {("t", 5)}, {("t", 5): dict.fromkeys(cells)}
    rows._row = lambda key, _: key
    rows.close(processes)
    assert ("t", 5) in rows.rows or rows._open
    return {step for _, step in rows._open}


@pytest.mark.parametrize(
    ("cells", "steps", "is_open"),
    [
        ({"0", "1"}, (6, 6), False),
        ({"0"}, (6, 5), True),
        ({"0"}, (6, 6), False),  # it went past without a cell
        ({"0"}, (5 + _SUPERSEDED_BY - 1, 5), True),
        ({"0"}, (5 + _SUPERSEDED_BY, 5), False),
        ({"0"}, (6, None), True),
        ({"0"}, (None, None), True),  # both are new: nobody knows a step yet
        ({"0"}, (), False),
    ],
)
def test_it_stays_open_while_somebody_is_in_it(cells, steps, is_open):
    assert after_close(cells, *steps) == ({5} if is_open else set())


def test_a_run_without_anybody_is_in_its_first_attempt():
    assert RunFold("r").attempt == 0
