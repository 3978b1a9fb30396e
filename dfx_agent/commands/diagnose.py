"""Verdicts now, each with its evidence, or "insufficient evidence"."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dfx_agent.agent.kept.findings import findings
from dfx_agent.assembly.observed import Observed, add_observing_arguments, observe
from dfx_agent.durations import seconds_text
from dfx_agent.judge.memory.judge import heap_text
from dfx_agent.snapshot import (
    Blindness,
    Bottleneck,
    EngineNote,
    EventLoopRow,
    Incident,
    LoopPhase,
    LoopStep,
    RankRow,
    RunRow,
    SpansRow,
    StageDevice,
    Standing,
    Verdict,
)
from dfx_agent.snapshot.bottleneck import bound_text
from dfx_agent.snapshot.devices import device_text, stage_text
from dfx_agent.snapshot.document import Document

HELP = "say what is wrong now: hang, crash, straggler, divergence, data, each with its evidence"
EXAMPLE = """dfx-agent diagnose --watch 60
  dfx-agent diagnose --json --run nightly

exit code by the state of the worst run: 0 nothing was found (clear, insufficient evidence, or a
warning), 1 something was found, 2 wrong use, no observed process, or the agent is blind: something
was not read or judged for three periods. Nothing is clear while an alert fires or a judge lacks
evidence. An agent that follows the folder is asked, since it has seen more; without one the
segments are read for 3 s. A hang shows 10 to 15 s after a rank stops taking part; a straggler
takes some steps: --watch looks longer, and ends as soon as something is found. Divergence needs the
baselines of 14 steps, which an agent keeps; data needs batches that cross two boundaries of the
ledger."""

_WATCH_SECONDS = 3.0
_WIDTH = 100
_HOLDERS_TOLD, _PHASES_TOLD, _STAGES_TOLD = 5, 12, 6
_LEAST_LATE_SECONDS = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_observing_arguments(parser)
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="look this long, or until something is found"
    )
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")


def execute(args: argparse.Namespace) -> int:
    """1 when something was found."""
    seconds = _WATCH_SECONDS if args.watch is None else args.watch
    seen = observe(args, seconds, _finds_something, asks_again=args.watch is not None)
    if args.json:
        print(Document[Diagnosis](Diagnosis).dumped(_diagnosis(seen, args.run)).decode())
    else:
        _print(seen, _blind(seen, args.run))
    return _exit_code(seen, _blind(seen, args.run))


@dataclass(frozen=True)
class ToldLoop:
    """The event loop of one process."""

    role: str
    rank: str
    event_loop: EventLoopRow


@dataclass(frozen=True)
class ToldRun:
    """What is said of one run."""

    run: str
    standing: Standing
    incidents: tuple[Incident, ...]
    verdicts: tuple[Verdict, ...]
    engine_notes: tuple[EngineNote, ...]
    bottleneck: Bottleneck | None = None
    event_loops: tuple[ToldLoop, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """What ``--json`` prints; ``source`` is the address of an agent, or "segments"."""

    source: str
    blind: Blindness | None
    runs: tuple[ToldRun, ...]


def _diagnosis(seen: Observed, run: str | None) -> Diagnosis:
    told = (
        ToldRun(
            run=row.run,
            standing=row.standing,
            incidents=row.incidents,
            verdicts=row.verdicts,
            engine_notes=_engine_notes(row),
            bottleneck=row.bottleneck,
            event_loops=_loops(row),
        )
        for row in seen.runs
    )
    return Diagnosis(seen.source, _blind(seen, run), tuple(told))


def _loops(run: RunRow) -> tuple[ToldLoop, ...]:
    told = ((rank.role, rank.rank, rank.event_loop) for rank in run.ranks)
    return tuple(ToldLoop(role, rank, loop) for role, rank, loop in told if loop is not None)


def _exit_code(seen: Observed, blind: Blindness | None) -> int:
    """Of what is not seen nothing is known: that is no 0."""
    if _finds_something(seen):
        return 1
    return 2 if blind or not seen.runs else 0


def _blind(seen: Observed, run: str | None) -> Blindness | None:
    """Since when and why something is not seen; with ``run`` something of that run."""
    rows = [row.blind for row in seen.runs] if run else [seen.snapshot.agent.blind]
    return next(filter(None, rows), None)


def _finds_something(seen: Observed) -> bool:
    return any(run.standing.state == "found" for run in seen.runs)


def _print(seen: Observed, blind: Blindness | None) -> None:
    if blind:
        since = time.strftime("%H:%M:%S", time.localtime(blind.since_seconds))
        print(f"blind since {since}: {blind.reason}")
    for problem in seen.snapshot.agent.problems:
        print(f"refused: {problem.message}")
    _print_spans(seen.snapshot.agent.spans)
    if not seen.runs:
        if not seen.is_of_hub:
            _print_last_kept(seen.directory)
        print(f"no observed process {seen.place}; {_what_to_do(seen)}")
    for run in seen.runs:
        _print_run(seen, run)


def _print_spans(spans: SpansRow | None) -> None:
    if spans is not None and spans.num_left_out:
        _print_filled(f"spans: {spans.num_left_out} left out, the first: {spans.first}")


def _print_run(seen: Observed, run: RunRow) -> None:
    states = [rank.state for rank in run.ranks]
    living = sum(state in {"live", "unknown"} for state in states)
    print(f"run {run.run}: {living} of {len(states)} processes live, from {seen.source}")
    if run.part:
        _print_filled(f"  {run.part}{_whole_job(seen)}")
    keeps = not seen.is_of_hub
    if not living and run.standing.state != "found" and keeps:
        _print_last_kept(seen.directory, run.run)  # who saw it end knew more than what is left
    _print_standing(run)
    _print_bottleneck(run)
    _print_engines(run)
    for verdict in run.verdicts:
        _print_verdict(verdict)
        if verdict.state == "found" and keeps:
            _print_kept(seen.directory, run.run, verdict.kind)
    for rank in run.ranks:
        _print_loop(rank)
        _print_heap(run, rank)
    _print_devices(run)
    if not run.verdicts:
        print("  look longer with --watch")


def _whole_job(seen: Observed) -> str:
    """Who knows all of it."""
    hub = seen.snapshot.agent.hub
    if hub is None:
        return "; to judge the whole job, join a hub on all of its nodes (--join URL)"
    if hub.state == "joined":
        return f"; the whole job is judged by the hub {hub.url}"
    return f"; the hub {hub.url} is not joined ({hub.message or hub.state})"


def _what_to_do(seen: Observed) -> str:
    if seen.is_of_hub:
        return "no node has told of a run yet"
    if seen.source == "segments":
        return "start one: dfx-agent run -- CMD ..."
    return (
        f"the agent at {seen.source} is there: the job has not trained, called a collective or "
        "marked a stage yet (it may wait in init_process_group: py-spy dump --pid PID)"
    )


def _print_standing(run: RunRow) -> None:
    """The state of the run, and each incident in the words that the page and the pager use."""
    if all(incident.state == "noted" for incident in run.incidents):
        _print_filled(f"  {run.standing.state}: {run.standing.reason}")
    for incident in run.incidents:
        _print_filled(f"  {incident.state}: {incident.sentence}")


def _print_bottleneck(run: RunRow) -> None:
    """What the pipeline waits for: what is felt, and below it because of what. It is no fault."""
    verdict = run.bottleneck
    if verdict is None:
        return
    if verdict.state != "found":
        unsure = "" if verdict.state == "clear" else f"{verdict.state}: "
        _print_filled(f"  pipeline: {unsure}{verdict.summary}")
        return
    steps = "" if verdict.first_step is None else (
        f", steps {verdict.first_step} to {verdict.last_step} of {verdict.role}"
    )  # fmt: skip
    print(f"  pipeline: {bound_text(verdict)}{steps}")
    for number, sentence in enumerate(verdict.chain):
        _print_filled(f"    {'because ' if number else ''}{sentence}")
    if verdict.balance:
        _print_filled(f"    {verdict.balance}")


def _print_engines(run: RunRow) -> None:
    """Who is not up, stands out or contradicts: evidence, no verdict."""
    for note in _engine_notes(run):
        _print_filled(f"  engine: {note.sentence}")


def _engine_notes(run: RunRow) -> tuple[EngineNote, ...]:
    return run.engines.notes if run.engines else ()


def _print_filled(text: str) -> None:
    print(textwrap.fill(text, _WIDTH, subsequent_indent="    "))


def _print_verdict(verdict: Verdict) -> None:
    head = f"  {verdict.subject}: {verdict.state}"
    _print_filled(f"{head}: {verdict.summary}")
    if verdict.state == "found":
        print(f"    {_facts(verdict)}")
    for line in verdict.evidence:
        print(textwrap.fill(line, _WIDTH, initial_indent="    - ", subsequent_indent="      "))


def _print_heap(run: RunRow, rank: RankRow) -> None:
    """Where glibc keeps much memory, and no verdict has said so."""
    memory, told = rank.host_memory, [v for v in run.verdicts if v.kind == "memory"]
    if memory is None or memory.heap is None:
        return
    text = heap_text(memory.heap, memory.anonymous_bytes)
    if text and not any(v.role == rank.role and rank.rank in v.ranks for v in told):
        _print_filled(f"  memory of {rank.role} {rank.rank}: {text}")


def _print_devices(run: RunRow) -> None:
    """What the devices of each rank did in its longest stages, in the order of its steps."""
    for rank in run.ranks:
        if not rank.device_stages:
            continue
        names = ", ".join(map(device_text, rank.device_names))
        told = "; ".join(filter(None, map(stage_text, _longest(rank.device_stages))))
        _print_filled(f"  devices of {rank.role} {rank.rank} ({names}): {told}")


def _longest(stages: Sequence[StageDevice]) -> list[StageDevice]:
    """In their order."""
    longest = sorted(stages, key=lambda stage: -stage.seconds)[:_STAGES_TOLD]
    return [stage for stage in stages if stage in longest]


def _print_loop(rank: RankRow) -> None:
    """Of an event loop that was held up in the last minute."""
    loop = rank.event_loop
    if loop is None or not loop.holders:
        return
    late, of = seconds_text(loop.late_seconds), seconds_text(loop.window_seconds)
    head = f"  event loop of {rank.role} {rank.rank}: late for {late} of the last {of}"
    _print_filled(f"{head}, 1 % of the time by {seconds_text(loop.window.p99_seconds)} or more")
    for held in loop.holders[:_HOLDERS_TOLD]:
        times = "once" if held.num_times == 1 else f"{held.num_times} times"
        longest = f"longest {seconds_text(held.longest_seconds)}"
        _print_filled(f"    - {seconds_text(held.seconds)}, {times}, {longest}: {held.name}")
    if loop.last_step is not None and any(p.late_seconds for p in loop.last_step.phases):
        _print_phases(rank, loop.last_step)


def _print_phases(rank: RankRow, step: LoopStep) -> None:
    """The longest, and those in which the loop was held; both are costs of the step."""
    told = [p for n, p in enumerate(step.phases) if n < _PHASES_TOLD or _is_late(p)]
    print(f"  step {step.step} of {rank.role} {rank.rank} took {seconds_text(step.seconds)}:")
    width = max(len(_phase_name(phase)) for phase in told)
    print(f"    {'PHASE':{width}}  {'TOOK':>8}  {'LOOP HELD':>9}  BY")
    for phase in told:
        late = "-" if not _is_late(phase) else seconds_text(phase.late_seconds or 0.0)
        by = "; ".join(f"{seconds_text(h.seconds)} {h.name}" for h in phase.holders[:2])
        name, took = _phase_name(phase), seconds_text(phase.seconds)
        print(f"    {name:{width}}  {took:>8}  {late:>9}  {by if _is_late(phase) else ''}".rstrip())
    if len(told) < len(step.phases) + step.num_omitted_phases:
        rest = len(step.phases) + step.num_omitted_phases - len(told)
        print(f"    and {rest} shorter phases")


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
        facts.append(f"stage: {verdict.stage}")
    if verdict.lost_seconds is not None:
        facts.append(f"lost: {verdict.lost_seconds:.3g} s a step")
    return "; ".join(facts)


def _print_last_kept(directory: str, run: str = "") -> None:
    """What was found last, in the words of who saw it."""
    for found in findings(directory, run)[:1]:
        if found.sentence:
            _print_filled(f"  {found.kind} found before: {found.sentence}")
        print(f"    {found.how_to_read}")


def _print_kept(directory: str, run: str, kind: str) -> None:
    for found in findings(directory, run, kind)[:1]:
        print(f"    {found.how_to_read}")
