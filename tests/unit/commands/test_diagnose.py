"""What `diagnose` says of a job that is over."""

from __future__ import annotations

import pytest

from dfx_agent.agent.kept import evidence
from dfx_agent.assembly.observed import Observed
from dfx_agent.commands import diagnose


def seen(directory: str, *, state: str, rank_state: str) -> Observed:
    run = {
        "run": "nightly",
        "ranks": [{"state": rank_state}],
        "standing": {"state": state, "reason": "crash: rank 0 was told to end from outside"},
        "incidents": [],
        "verdicts": [],
    }
    return Observed("segments", directory, {"agent": {"problems": []}, "runs": [run]})


@pytest.mark.parametrize(("rank_state", "is_shown"), [("died", True), ("live", False)])
def test_evidence_of_who_saw_the_end_is_shown_where_what_is_left_does_not_tell(
    tmp_path, monkeypatch, capsys, rank_state, is_shown
):
    """Rank 1 had ended with exit code 3 and left nothing; the launcher ended rank 0."""
    file = tmp_path / "nightly-20261122T125058-crash.json"
    monkeypatch.setattr(evidence, "newest", lambda _directory, _run="", _kind="": [file])
    diagnose._print(seen(str(tmp_path), state="insufficient evidence", rank_state=rank_state), None)
    assert (f"kept: {file}" in capsys.readouterr().out) is is_shown
