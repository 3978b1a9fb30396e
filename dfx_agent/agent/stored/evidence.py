"""What was seen of a hang or a crash, as a file that outlives the job and the agent.

``evidence/<run>-<time>-<kind>.json`` in the agent's own folder (``owned_files``: DFX_DIR where it
is ours), one per incident: written when it is found, again when the waiting ranks have had time to
write their stacks, and at its end. A thread of its own writes: asking py-spy takes seconds.
"""

from __future__ import annotations

import dataclasses
import queue
import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from dfx_agent import __version__
from dfx_agent.agent import render as view
from dfx_agent.agent.local_run import LocalRun
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.stacks import ProcessStacks, ThreadStack, merge
from dfx_agent.node.segments.flight import read_flight
from dfx_agent.node.segments.owned_files import (
    HeldFolder,
    open_existing,
    open_state,
    state_directory,
)
from dfx_agent.node.segments.stacks import dump_with_py_spy, read_stacks
from dfx_agent.node.track import Track
from dfx_agent.snapshot import (
    EvidenceOutcome,
    IncidentEvidence,
    RankEvidence,
    RecordedCollective,
    RecordedThread,
    RunRow,
    SameStack,
    SegmentProblem,
    Verdict,
)
from dfx_agent.snapshot.document import Document, reason
from dfx_agent.wire.segment import SegmentError

FOLDER = "evidence"
MAX_FILES = 20
DOCUMENT = Document[IncidentEvidence](IncidentEvidence)

_SETTLED_SECONDS = 5.0
_CLOSE_SECONDS = 15.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class EvidenceRank:
    """Position of one rank, and the data that the writer needs to request its stacks."""

    role: str
    rank: str
    pid: int
    segment: str
    folder: HeldFolder | None
    is_local: bool
    moved_ns: int
    quiet_seconds: float
    reached: Mapping[str, int]

    @classmethod
    def from_track(cls, role: str, track: Track, now_ns: int) -> EvidenceRank:
        process = track.process
        follower = process.follower
        return cls(
            role, process.label, process.pid, follower.path, follower.folder,
            process.state == "live",
            track.moved_ns, track.quiet_seconds(now_ns), dict(track.reached),
        )  # fmt: skip


@dataclass
class RecordedIncident:
    """One hang or crash of one role, from when it was found."""

    run: str
    verdict: Verdict
    begin_seconds: float
    rows: RunRow
    places: list[EvidenceRank]
    outcome: EvidenceOutcome = "open"
    end_seconds: float | None = None
    is_settled: bool = False
    name: str = ""
    stacks: dict[str, ProcessStacks] = field(default_factory=dict)
    flights: dict[str, FlightRecord] = field(default_factory=dict)

    @property
    def is_due(self) -> bool:
        """Whether the blocked ranks have had time to write their stacks."""
        # abs: a clock that was set back must not put it off
        is_old = abs(time.time() - self.begin_seconds) > _SETTLED_SECONDS
        return not self.is_settled and is_old


class EvidenceFiles:
    """The incidents of one agent. Nothing here raises; what cannot be written is a problem."""

    def __init__(self, directory: str) -> None:
        self.problem: SegmentProblem | None = None
        self._directory = directory
        self._incidents: dict[tuple[str, str, str], RecordedIncident] = {}
        self._queue: queue.SimpleQueue[RecordedIncident | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def observe(self, fold: LocalRun) -> None:
        """After each reading of a run."""
        verdicts = [v for v in fold.judge.waits if v.state == "found"]
        found: dict[tuple[str, str, str], Verdict] = {
            (fold.run, v.role, v.kind): v for v in verdicts
        }
        for key, verdict in found.items():
            incident = self._incidents.get(key)
            if incident is None:
                self._begin(key, fold, verdict)
            elif not any(track.process.is_living for track in fold.tracks):
                self._end(incident, "job ended")
            elif incident.is_due:
                incident.verdict, incident.is_settled = verdict, True
                self._queue.put(incident)
        for key in [k for k in self._incidents if k[0] == fold.run and k not in found]:
            self._end(self._incidents.pop(key), "over")

    def close(self) -> None:
        """Write what is not over, and wait for the writer."""
        for incident in self._incidents.values():
            self._end(incident, "agent ended")
        self._incidents.clear()
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_CLOSE_SECONDS)

    def _begin(self, key: tuple[str, str, str], fold: LocalRun, verdict: Verdict) -> None:
        now_ns = time.monotonic_ns()
        places = [
            EvidenceRank.from_track(t.process.follower.identity.role, t, now_ns)
            for t in fold.tracks
        ]
        places.sort(key=lambda place: (place.role, len(place.rank), place.rank))
        incident = RecordedIncident(fold.run, verdict, time.time(), view.run_row(fold), places)
        self._incidents[key] = incident
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._write_all, name="dfx-evidence", daemon=True
            )
            self._thread.start()
        self._queue.put(incident)

    def _end(self, incident: RecordedIncident, outcome: EvidenceOutcome) -> None:
        if incident.outcome == "open":
            incident.outcome, incident.end_seconds = outcome, time.time()
            self._queue.put(incident)

    def _write_all(self) -> None:
        while (incident := self._queue.get()) is not None:
            try:
                self._write(incident)
                self.problem = None
            except (OSError, SegmentError) as error:
                self._note(incident, error)

    def _write(self, incident: RecordedIncident) -> None:
        with self._held() as folder:
            incident.name = incident.name or _new_name(folder, incident)
            folder.write(incident.name, DOCUMENT.dumped(_document(incident), indent=1))
            for _, name in folder.list_latest_first(".json")[MAX_FILES:]:
                folder.remove(name)

    def _note(self, incident: RecordedIncident, error: Exception) -> None:
        path = f"{state_directory(self._directory)}/{FOLDER}"
        kind, run, why = incident.verdict.kind, incident.run, reason(error)[:120]
        message = f"cannot write the evidence of a {kind} of {run} into {path}: {why}"
        self.problem = SegmentProblem(path, "evidence", message)

    def _held(self) -> closing[HeldFolder]:
        with closing(open_state(self._directory)) as state:
            return closing(state.own_folder(FOLDER))


def latest_files(directory: str, run: str = "", kind: str = "") -> list[Path]:
    """Evidence files of DFX_DIR, latest first; of one run and kind if these are given."""
    prefix = f"{_file_name(run)}-" if run else ""
    path = Path(state_directory(directory), FOLDER)
    try:
        with closing(open_existing(str(path))) as folder:
            found = folder.list_latest_first(".json")
    except OSError:
        return []
    return [
        path / name
        for _, name in found
        if name.startswith(prefix) and kind in name.removeprefix(prefix)
    ]


def _document(incident: RecordedIncident) -> IncidentEvidence:
    _take_stacks(incident)
    rows = dataclasses.replace(
        incident.rows,
        ranks=tuple(dataclasses.replace(r, scalars=(), stamps=()) for r in incident.rows.ranks),
        verdicts=(incident.verdict,),
    )
    same_role = {
        place.rank: incident.stacks[place.segment]
        for place in incident.places
        if place.role == incident.verdict.role and place.segment in incident.stacks
    }
    return IncidentEvidence(
        format=1,
        agent_version=__version__,
        node=socket.gethostname(),
        begin_seconds=incident.begin_seconds,
        end_seconds=incident.end_seconds,
        outcome=incident.outcome,
        verdict=incident.verdict,
        run=rows,
        places=tuple(_place(place, incident) for place in incident.places),
        stacks=tuple(
            SameStack(tuple(group.ranks), tuple(map(str, group.frames)))
            for group in merge(same_role)
        ),
    )


def _take_stacks(incident: RecordedIncident) -> None:
    """What the guests wrote since their ranks last moved; py-spy for ranks without stacks."""
    is_open = incident.outcome == "open"
    for place in incident.places:
        flight = read_flight(place.segment, place.moved_ns, place.folder) if is_open else None
        if flight:
            incident.flights[place.segment] = flight
        earlier = incident.stacks.get(place.segment)
        stacks = (
            read_stacks(place.segment, place.moved_ns, place.folder)
            if is_open or not earlier
            else earlier
        )
        if not (stacks or earlier) and is_open and incident.is_settled and place.is_local:
            stacks = dump_with_py_spy(place.pid)
        if stacks:
            incident.stacks[place.segment] = stacks


def _place(place: EvidenceRank, incident: RecordedIncident) -> RankEvidence:
    stacks = incident.stacks.get(place.segment)
    return RankEvidence(
        role=place.role,
        rank=place.rank,
        pid=place.pid,
        quiet_seconds=place.quiet_seconds,
        last_collective=dict(place.reached),
        recorded_collectives=_recorded(incident.flights.get(place.segment)),
        stacks_from=stacks.source if stacks else "no stacks",
        threads=tuple(map(_thread, stacks.threads if stacks else ())),
    )


def _thread(thread: ThreadStack) -> RecordedThread:
    frames = tuple(f"{f.function} ({f.file}:{f.line})" for f in thread.frames)
    return RecordedThread(thread.name, thread.native_id, thread.is_main, frames)


def _recorded(flight: FlightRecord | None) -> tuple[RecordedCollective, ...]:
    """The last collectives of torch's flight recorder, latest first."""
    issued = [
        (entry, key, group)
        for key, group in (flight.groups.items() if flight else ())
        for entry in group.entries
    ]
    issued.sort(key=lambda item: item[0].created_ns, reverse=True)
    return tuple(
        RecordedCollective(
            operation=entry.operation,
            tensors=entry.tensors.strip(),
            num_elements=entry.num_elements,
            sequence=None if entry.is_p2p else entry.sequence,
            group=key.name,
            group_description=group.description,
            backend=key.backend,
            issued_seconds=entry.created_ns / 1e9,
            is_finished=entry.is_finished,
        )
        for entry, key, group in issued
    )


def _file_name(run: str) -> str:
    return _UNSAFE.sub("_", run)[:80].lstrip(".") or "run"


def _new_name(folder: HeldFolder, incident: RecordedIncident) -> str:
    """A name that nobody has; two roles of a run may hang in the same second."""
    run = _file_name(incident.run)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.localtime(incident.begin_seconds))
    stem = f"{run}-{stamp}-{incident.verdict.kind}"
    number = 2
    name = f"{stem}.json"
    while folder.status(name) is not None:
        name, number = f"{stem}-{number}.json", number + 1
    return name
