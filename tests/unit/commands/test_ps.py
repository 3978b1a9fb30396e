"""`ps` shows what is wrong first, and of a large job one screen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from alert_scene import AGENT
from prometheus_page import rank_row

from dfx_agent.commands import ps
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.snapshot import Incident, RunRow, Snapshot, Standing


def seen(num_ranks: int) -> Observed:
    """The last rank is blamed, the one before it has died."""
    ranks = [replace(rank_row(), rank=str(number), state="live") for number in range(num_ranks)]
    ranks[-2] = replace(ranks[-2], state="died")
    incident = Incident(
        "a", "hang", "found", "critical", ranks[0].role, (str(num_ranks - 1),), "", "", 0.0, 1,
        None, "It hangs.", "", "Act.", "It hangs. Act.", (), (),
    )  # fmt: skip
    standing = Standing("found", incident.sentence)
    sick = RunRow(
        "sick", "", 0, 0.0, tuple(ranks), (), (), incidents=(incident,), standing=standing
    )
    calm = RunRow("calm", "", 0, 0.0, (), (), (), standing=Standing("clear", "No problem found."))
    return Observed("segments", "/dfx", Snapshot(0.0, AGENT, (calm, sick)))


@pytest.mark.parametrize("is_verbose", [False, True])
def test_the_worst_is_first_and_256_ranks_are_a_screen(capsys, is_verbose):
    ps._print_table(seen(256), is_verbose=is_verbose)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["sick: found: It hangs. Act.", "calm: clear: No problem found."]
    assert lines[2].startswith("RUN")
    assert [line.split()[2] for line in lines[3:6]] == ["255", "254", "0"]
    if is_verbose:
        assert len(lines) == 3 + 256
    else:
        assert lines[-1] == "and 237 more ranks (237 live): see --verbose"
        assert len(lines) == 3 + 19 + 1


def test_no_colour_where_stdout_is_no_terminal(capsys):
    ps._print_table(seen(4), is_verbose=False)
    assert "\x1b" not in capsys.readouterr().out
