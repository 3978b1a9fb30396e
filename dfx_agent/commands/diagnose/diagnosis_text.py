"""A diagnosis of the runs that are seen, as text and as JSON: what `diagnose` prints.

A serving agent makes it itself (``route``), so that the command needs no imports to show it.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from dfx_agent.agent.stored.findings import findings
from dfx_agent.base.text import seconds_text, whole_number
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.judge.memory.judge import heap_text
from dfx_agent.snapshot import (
    UNJUDGED,
    Blindness,
    Bottleneck,
    EngineNote,
    EventLoopRow,
    Incident,
    LoopPhase,
    LoopStep,
    RankRow,
    RunRow,
    RunVerdicts,
    Snapshot,
    SpansRow,
    StageDevice,
    Standing,
    Verdict,
)
from dfx_agent.snapshot.bottleneck import bound_text, is_breakdown
from dfx_agent.snapshot.devices import device_text, stage_text
from dfx_agent.snapshot.document import Document

PATH = "/api/v1/diagnosis"
EXIT_CODE_HEADER, PIDS_HEADER = "Dfx-Exit-Code", "Dfx-Pids"

DEFAULT_WIDTH = 100
_WIDTHS = 40, 400
_NUM_HOLDERS, _NUM_PHASES, _NUM_STAGES, _NUM_PAST = 5, 12, 6, 8
# without ``is_verbose``: together about one screen
_MAX_RUNS, _MAX_NOTES, _MAX_EVIDENCE, _MAX_UNSURE, _MAX_RANKS = 3, 3, 8, 8, 2
_WORST = ("found", "warning", "insufficient evidence", "clear")
_LEAST_LATE_SECONDS = 0.01


@dataclass(frozen=True)
class DiagnosedLoop:
    """The event loop of one process."""

    role: str
    rank: str
    event_loop: EventLoopRow


@dataclass(frozen=True)
class DiagnosedRun:
    """What is said of one run."""

    run: str
    standing: Standing
    incidents: tuple[Incident, ...]
    verdicts: tuple[Verdict, ...]
    engine_notes: tuple[EngineNote, ...]
    bottleneck: Bottleneck | None = None
    event_loops: tuple[DiagnosedLoop, ...] = ()
    past_incidents: tuple[Incident, ...] = ()
    ending: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What ``--json`` prints; ``source`` is the address of an agent, or "segments"."""

    source: str
    blind: Blindness | None
    runs: tuple[DiagnosedRun, ...]
    finished: tuple[RunVerdicts, ...] = ()


DOCUMENT = Document[Diagnosis](Diagnosis)


def diagnosis(seen: Observed, run: str | None) -> Diagnosis:
    runs = (
        DiagnosedRun(
            run=row.run,
            standing=row.standing,
            incidents=row.incidents,
            verdicts=row.verdicts,
            engine_notes=_engine_notes(row),
            bottleneck=row.bottleneck,
            event_loops=_loops(row),
            past_incidents=row.past_incidents,
            ending=row.ending,
        )
        for row in seen.runs
    )
    return Diagnosis(seen.source, _blind(seen, run), tuple(runs), seen.finished)


def _loops(run: RunRow) -> tuple[DiagnosedLoop, ...]:
    loops = ((rank.role, rank.rank, rank.event_loop) for rank in run.ranks)
    return tuple(DiagnosedLoop(role, rank, loop) for role, rank, loop in loops if loop is not None)


def exit_code(seen: Observed, run: str | None) -> int:
    """Of what is not seen nothing is known: that is no 0."""
    if finds_something(seen):
        return 1
    is_unseen = not (seen.runs or seen.finished)
    is_unjudged = bool(seen.runs) and all(row.standing == UNJUDGED for row in seen.runs)
    return 2 if _blind(seen, run) or is_unseen or is_unjudged else 0


def _blind(seen: Observed, run: str | None) -> Blindness | None:
    """Since when and why something is not seen; with ``run`` something of that run."""
    rows = [row.blind for row in seen.runs] if run else [seen.snapshot.agent.blind]
    return next(filter(None, rows), None)


def finds_something(seen: Observed) -> bool:
    standings = [run.standing for run in seen.runs] or [run.standing for run in seen.finished]
    return any(standing.state == "found" for standing in standings)


def text(
    seen: Observed, run: str | None, *, width: int = DEFAULT_WIDTH, is_verbose: bool = False
) -> str:
    """For people; the worst first. ``is_verbose``: all ranks and all that was found healthy."""
    lines = _lines(seen, _blind(seen, run), is_verbose=is_verbose)
    return "".join(f"{_folded(line, width)}\n" for line in lines)


def _folded(line: str, width: int) -> str:
    """Commands to copy stay on one line, and so do rows of a table, which have wide gaps."""
    lead = len(line) - len(line.lstrip())
    if len(line) <= width or "  " in line.strip() or " --evidence " in line:
        return line
    return textwrap.fill(line, width, subsequent_indent=" " * (lead + 2), break_on_hyphens=False)


def _lines(seen: Observed, blind: Blindness | None, *, is_verbose: bool) -> Iterator[str]:
    if blind:
        since = time.strftime("%H:%M:%S", time.localtime(blind.since_seconds))
        yield f"blind since {since}: {blind.reason}"
    problems = [problem.line for problem in seen.snapshot.agent.problems]
    yield from _first(problems, _MAX_NOTES, "problems", is_verbose=is_verbose)
    yield from _spans_lines(seen.snapshot.agent.spans)
    runs = sorted(seen.runs, key=lambda run: _WORST.index(run.standing.state))
    for number, run in enumerate(runs):
        if is_verbose or number < _MAX_RUNS:
            yield from _run_lines(seen, run, is_verbose=is_verbose)
        else:
            yield f"run {run.run}: {run.standing.state}: {run.standing.reason}"
    if not seen.runs:
        yield from _nobody_lines(seen)


def _first(lines: Sequence[str], most: int, what: str, *, is_verbose: bool) -> Iterator[str]:
    """The first lines; the rest is counted, unless everything is wanted."""
    shown = lines if is_verbose or len(lines) <= most + 1 else lines[:most]
    yield from shown
    if len(shown) < len(lines):
        lead = " " * (len(lines[0]) - len(lines[0].lstrip()))
        yield f"{lead}and {len(lines) - len(shown)} more {what}: see --verbose"


def _nobody_lines(seen: Observed) -> Iterator[str]:
    """Nothing runs: what is known of runs that have ended."""
    if not seen.is_of_hub and not seen.finished:
        yield from _last_finding_lines(seen.directory)
    for run in seen.finished:
        yield f"run {run.run}, which has ended:"
        yield f"  {run.standing.state}: {run.standing.reason}"
        yield from _past_lines(run)
    yield f"no observed process {seen.place}; {_what_to_do(seen)}"


def _past_lines(run: RunRow | RunVerdicts) -> Iterator[str]:
    """Incidents that are over, but for the one that the state of the run already says."""
    for incident in run.past_incidents[:_NUM_PAST]:
        if not run.standing.reason.startswith(incident.sentence):
            yield f"  earlier: {incident.sentence}"


def _spans_lines(spans: SpansRow | None) -> Iterator[str]:
    if spans is not None and spans.num_left_out:
        yield f"spans: {spans.num_left_out} left out, the first: {spans.first}"


def _run_lines(seen: Observed, run: RunRow, *, is_verbose: bool) -> Iterator[str]:
    states = [rank.state for rank in run.ranks]
    num_live, num_unknown = states.count("live"), states.count("unknown")
    unknown = f", the state of {num_unknown} is unknown" if num_unknown else ""
    yield f"run {run.run}: {num_live} of {len(states)} processes live{unknown}, from {seen.source}"
    if run.part:
        yield f"  {run.part} {_whole_job(seen)}"
    if run.step_origin:
        yield f"  {run.step_origin}"
    has_own_findings = not seen.is_of_hub
    if not num_live + num_unknown and run.standing.state != "found" and has_own_findings:
        # an agent that saw the end knew more than what is left
        yield from _last_finding_lines(seen.directory, run.run)
    yield from _standing_lines(run)
    yield from _bottleneck_lines(run)
    notes = [f"  engine: {note.sentence}" for note in _engine_notes(run)]
    yield from _first(notes, _MAX_NOTES, "notes on engines", is_verbose=is_verbose)
    yield from _verdicts_lines(seen, run, is_verbose=is_verbose)
    yield from _ranks_lines(run, is_verbose=is_verbose)
    if not run.verdicts:
        yield "  look longer with --watch"


def _whole_job(seen: Observed) -> str:
    """Who knows all of it."""
    hub = seen.snapshot.agent.hub
    if hub is None:
        return "To judge the whole job, join a hub on all of its nodes (--join URL)."
    if hub.state == "joined":
        return f"The hub {hub.url} judges the whole job."
    return f"This node has not joined the hub {hub.url} ({hub.message or hub.state})."


def _what_to_do(seen: Observed) -> str:
    if seen.is_of_hub:
        return "no node has reported a run yet"
    if seen.source == "segments":
        return "start one: dfx-agent run -- CMD ..."
    return (
        f"the agent at {seen.source} is there: the job has not trained, called a collective or "
        "marked a stage yet (it may wait in init_process_group: py-spy dump --pid PID)"
    )


def _standing_lines(run: RunRow) -> Iterator[str]:
    """The state of the run, and each incident in the words that the page and the pager use."""
    if all(incident.state == "noted" for incident in run.incidents):
        yield f"  {run.standing.state}: {run.standing.reason}"
    for incident in run.incidents:
        yield f"  {incident.state}: {incident.sentence}"
    yield from _past_lines(run)
    if run.ending and run.ending not in run.standing.reason:
        yield f"  {run.ending}"


def _bottleneck_lines(run: RunRow) -> Iterator[str]:
    """Where a step goes; or what bounds a pipeline, and because of what. Neither is a fault."""
    verdict = run.bottleneck
    if verdict is None:
        return
    if is_breakdown(verdict):
        yield f"  step: {verdict.summary}"
        for sentence in filter(None, (*verdict.chain[1:], verdict.balance)):
            yield f"    {sentence}"
        return
    if verdict.state != "found":
        unsure = "" if verdict.state == "clear" else f"{verdict.state}: "
        yield f"  pipeline: {unsure}{verdict.summary}"
        return
    steps = "" if verdict.first_step is None else (
        f", steps {verdict.first_step} to {verdict.last_step} of {verdict.role}"
    )  # fmt: skip
    yield f"  pipeline: {bound_text(verdict)}{steps}"
    for number, sentence in enumerate(verdict.chain):
        yield f"    {'because: ' if number else ''}{sentence}"
    if verdict.balance:
        yield f"    {verdict.balance}"


def _engine_notes(run: RunRow) -> tuple[EngineNote, ...]:
    return run.engines.notes if run.engines else ()


def _verdicts_lines(seen: Observed, run: RunRow, *, is_verbose: bool) -> Iterator[str]:
    """What was found, then what could not be judged, then what is clear."""
    verdicts = sorted(run.verdicts, key=lambda verdict: _WORST.index(verdict.state))
    rest = []
    for verdict in verdicts:
        head = f"  {verdict.subject}: {verdict.state}: {verdict.summary}"
        if verdict.state != "found" and not is_verbose:
            rest.append(head)
            continue
        yield head
        if verdict.state == "found":
            yield f"    {_facts(verdict)}"
        evidence = [f"    - {line}" for line in verdict.evidence]
        yield from _first(evidence, _MAX_EVIDENCE, "lines of evidence", is_verbose=is_verbose)
        if verdict.state == "found" and not seen.is_of_hub:
            yield from _finding_lines(seen.directory, run.run, verdict.kind)
    yield from _first(rest, _MAX_UNSURE, "verdicts without a finding", is_verbose=is_verbose)


def _ranks_lines(run: RunRow, *, is_verbose: bool) -> Iterator[str]:
    """Lines on single ranks: event loops and heaps, worst first; devices with ``is_verbose``."""
    late = [rank for rank in run.ranks if rank.event_loop and rank.event_loop.holders]
    late.sort(key=lambda rank: -rank.event_loop.late_seconds if rank.event_loop else 0.0)
    for rank in late if is_verbose else late[:_MAX_RANKS]:
        yield from _loop_lines(rank)
    if len(late) > _MAX_RANKS and not is_verbose:
        yield f"  and {len(late) - _MAX_RANKS} more event loops were late: see --verbose"
    heaps = [line for rank in run.ranks for line in _heap_lines(run, rank)]
    yield from _first(heaps, _MAX_RANKS, "ranks like this", is_verbose=is_verbose)
    if is_verbose:
        yield from _devices_lines(run)


def _heap_lines(run: RunRow, rank: RankRow) -> Iterator[str]:
    """Lines for a heap in which glibc retains much memory, unless a verdict has reported it."""
    memory, verdicts = rank.host_memory, [v for v in run.verdicts if v.kind == "memory"]
    if memory is None or memory.heap is None:
        return
    text = heap_text(memory.heap, memory.anonymous_bytes)
    if text and not any(v.role == rank.role and rank.rank in v.ranks for v in verdicts):
        yield f"  memory of {rank.role} {rank.rank}: {text}"


def _devices_lines(run: RunRow) -> Iterator[str]:
    """What the devices of each rank did in its longest stages, in the order of its steps."""
    for rank in run.ranks:
        if not rank.device_stages:
            continue
        names = ", ".join(map(device_text, rank.device_names))
        stages = "; ".join(filter(None, map(stage_text, _longest(rank.device_stages))))
        yield f"  devices of {rank.role} {rank.rank} ({names}): {stages}"


def _longest(stages: Sequence[StageDevice]) -> list[StageDevice]:
    """In their order."""
    longest = sorted(stages, key=lambda stage: -stage.seconds)[:_NUM_STAGES]
    return [stage for stage in stages if stage in longest]


def _loop_lines(rank: RankRow) -> Iterator[str]:
    """Of an event loop that was held up in the last minute."""
    loop = rank.event_loop
    if loop is None or not loop.holders:
        return
    late, window = seconds_text(loop.late_seconds), seconds_text(loop.window_seconds)
    head = f"  event loop of {rank.role} {rank.rank}: late for {late} of the last {window}"
    yield f"{head}, 1 % of the time by {seconds_text(loop.window.p99_seconds)} or more"
    for held in loop.holders[:_NUM_HOLDERS]:
        times = "once" if held.num_times == 1 else f"{held.num_times} times"
        longest = f"longest {seconds_text(held.longest_seconds)}"
        yield f"    - {seconds_text(held.seconds)}, {times}, {longest}: {held.name}"
    if loop.last_step is not None and any(p.late_seconds for p in loop.last_step.phases):
        yield from _phases_lines(rank, loop.last_step)


def _phases_lines(rank: RankRow, step: LoopStep) -> Iterator[str]:
    """The longest, and those in which the loop was held; both are costs of the step."""
    phases = [p for n, p in enumerate(step.phases) if n < _NUM_PHASES or _is_late(p)]
    yield f"  step {step.step} of {rank.role} {rank.rank} took {seconds_text(step.seconds)}:"
    width = max(len(_phase_name(phase)) for phase in phases)
    yield f"    {'PHASE':{width}}  {'TOOK':>8}  {'LOOP HELD':>9}  BY"
    for phase in phases:
        late = "-" if not _is_late(phase) else seconds_text(phase.late_seconds or 0.0)
        by = "; ".join(f"{seconds_text(h.seconds)} {h.name}" for h in phase.holders[:2])
        name, took = _phase_name(phase), seconds_text(phase.seconds)
        yield f"    {name:{width}}  {took:>8}  {late:>9}  {by if _is_late(phase) else ''}".rstrip()
    if len(phases) < len(step.phases) + step.num_omitted_phases:
        rest = len(step.phases) + step.num_omitted_phases - len(phases)
        yield f"    and {rest} shorter phases"


def _is_late(phase: LoopPhase) -> bool:
    return (phase.late_seconds or 0.0) >= _LEAST_LATE_SECONDS


def _phase_name(phase: LoopPhase) -> str:
    return phase.name or "(not inside any stage)"


def _facts(verdict: Verdict) -> str:
    """Cause, ranks, stage and cost on one line; what is not known is left out."""
    facts = [f"cause: {verdict.cause}"]
    if verdict.ranks:
        facts.append(f"to blame: {', '.join(verdict.ranks)}")
    if verdict.stage:
        facts.append(f"stage: {verdict.stage_text}")
    if verdict.lost_seconds is not None:
        facts.append(f"lost: {verdict.lost_seconds:.3g} s a step")
    return "; ".join(facts)


def _last_finding_lines(directory: str, run: str = "") -> Iterator[str]:
    """What was found last, in the words of who saw it."""
    for found in findings(directory, run)[:1]:
        if found.sentence:
            yield f"  {found.kind} found before: {found.sentence}"
        yield f"    {found.how_to_read}"


def _finding_lines(directory: str, run: str, kind: str) -> Iterator[str]:
    for found in findings(directory, run, kind)[:1]:
        yield f"    {found.how_to_read}"


def route(snapshot: Callable[[], Snapshot], directory: str) -> Route:
    """``GET /api/v1/diagnosis?run=NAME&width=N&verbose=1``: the text, or JSON if it is accepted."""

    def answer(request: Request) -> Response:
        run = request.query_params.get("run")
        url = f"{request.url.scheme}://{request.headers.get('host', '')}"
        seen = Observed(url, directory, snapshot()).of_run(run)
        width = whole_number(request.query_params.get("width", ""), _WIDTHS[1])
        is_verbose = request.query_params.get("verbose") == "1"
        if seen is None:
            return PlainTextResponse(f"no run named {run}\n", 404)
        agent = seen.snapshot.agent
        headers = {
            EXIT_CODE_HEADER: str(exit_code(seen, run)),
            PIDS_HEADER: f"{agent.pid},{agent.other_agent_pid or ''}",
            "Cache-Control": "no-store",
        }
        if "json" in request.headers.get("accept", ""):
            body = DOCUMENT.dumped(diagnosis(seen, run))
            return Response(body, 200, headers, "application/json")
        page = text(seen, run, width=max(width or DEFAULT_WIDTH, _WIDTHS[0]), is_verbose=is_verbose)
        return PlainTextResponse(page, 200, headers)

    return Route(PATH, answer)
