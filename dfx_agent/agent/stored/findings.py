"""Hangs and crashes that an agent stored as evidence, as sentences for the job's operator."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dfx_agent.agent.stored import evidence
from dfx_agent.base.text import plain
from dfx_agent.snapshot import IncidentEvidence


class StoredFinding(NamedTuple):
    """One evidence file. Of an unreadable file only the name is available.

    ``begin_seconds``: Unix time; ``is_over``: the job continued after it.
    """

    file: Path
    run: str = ""
    kind: str = ""
    sentence: str = ""
    begin_seconds: float = 0.0
    is_over: bool = False

    @property
    def how_to_read(self) -> str:
        return f"Evidence: dfx-agent report FILE.html --evidence {self.file}"


def findings(directory: str, run: str = "", kind: str = "") -> list[StoredFinding]:
    """Stored findings, latest first; of one run and kind if these are given."""
    return [_finding(file) for file in evidence.latest_files(directory, run, kind)]


def _finding(file: Path) -> StoredFinding:
    try:
        document = evidence.DOCUMENT.read(file.read_bytes())
    except (OSError, ValueError):
        return StoredFinding(file)
    return StoredFinding(
        file,
        document.run.run,
        document.verdict.kind,
        plain(_sentence(document)),
        document.begin_seconds,
        document.outcome == "over",
    )


def _sentence(document: IncidentEvidence) -> str:
    """As the page and the pager said it when it was found."""
    verdict = document.verdict
    same = (i for i in document.run.incidents if (i.kind, i.role) == (verdict.kind, verdict.role))
    return next((incident.sentence for incident in same), verdict.summary)
