"""A run in which nothing moves anywhere, and no rank waits for another one.

A notebook between two cells and a debugger stand for as long as their person thinks: what waits for
one is told, and nobody is paged. Where others wait for such a rank it is a hang like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from dfx_agent.durations import seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.judge.hang.limits import Habits, excuse
from dfx_agent.judge.words import ranks_text
from dfx_agent.snapshot import VerdictState

NO_PROGRESS_SECONDS = 120.0
_NO_PROGRESS_STEPS = 10
_SILENT_SECONDS = 60.0
_MAX_TOLD = 4

# of pdb, of code.interact and of what is built on them, innermost; of IPython, anywhere
_PROMPT = re.compile(r"/(cmd\.py cmdloop|code\.py raw_input|_pyrepl/\w+\.py \w+)$")
_TERMINAL = re.compile(r"/prompt_toolkit/")
_NOTEBOOK = re.compile(r"/(ipykernel|xpython|IPython/terminal)/")
_CELL = frozenset({"run_cell", "do_execute", "run_code"})


def standstill(
    living: Sequence[RankFacts],
    quiet_seconds: float,
    is_at_fault: Callable[[RankFacts], bool],
) -> tuple[VerdictState, str]:
    """(state, summary) of a role whose processes have not moved for so long."""
    steps = [ns for rank in living for ns in rank.step_durations]
    calm: tuple[VerdictState, str] = "clear", "no rank waits for another one for long"
    if not living or quiet_seconds < NO_PROGRESS_SECONDS:
        return calm
    quiet = seconds_text(quiet_seconds)
    if len(steps) < 2:
        text = f"nothing has moved for {quiet}, and no step says how long it may take"
        return "insufficient evidence", text
    is_long = quiet_seconds >= _NO_PROGRESS_STEPS * median(steps) / 1e9
    if not is_long or any(rank.arrivals for rank in living) or not all(map(is_at_fault, living)):
        return calm
    asking = [rank for rank in living if waits_for_a_person(rank.stacks)]
    if asking:
        verb = "waits" if len(asking) == 1 else "wait"
        text = f"nothing has moved for {quiet}: {ranks_text(asking)} {verb} for a person"
        return "insufficient evidence", f"{text} (a notebook between two cells, or a debugger)"
    places = ", ".join(dict.fromkeys(rank.place for rank in living))
    return "found", (
        f"nothing has moved in the whole run for {quiet}, "
        f"a step takes {seconds_text(median(steps) / 1e9)}; all ranks are {places}"
    )


def silent_alone(living: Sequence[RankFacts]) -> list[RankFacts]:
    """Of processes that nobody waits for, as in a sweep: those quiet beyond their own habit."""
    alone = [r for r in living if r.world_size == 1 and not r.reached and not r.arrivals]
    if len(alone) < 2:
        return []
    return [rank for rank in alone if _is_silent(rank) and not waits_for_a_person(rank.stacks)]


def _is_silent(rank: RankFacts) -> bool:
    if len(rank.step_durations) < 2 or rank.quiet_seconds < _SILENT_SECONDS:
        return False
    usual_seconds = _NO_PROGRESS_STEPS * median(rank.step_durations) / 1e9
    return rank.quiet_seconds >= usual_seconds and bool(excuse(rank, Habits([rank])).fault)


def silent_text(ranks: Sequence[RankFacts]) -> str:
    """As in "rank 2 has not moved for 75 s, outside all stages (a step takes 0.1 s)"."""
    told = [
        f"{ranks_text([rank])} has not moved for {seconds_text(rank.quiet_seconds)}, {rank.place} "
        f"(a step takes {seconds_text(median(rank.step_durations) / 1e9)})"
        for rank in ranks[:_MAX_TOLD]
    ]
    more = [f"{len(ranks) - _MAX_TOLD} more"] if len(ranks) > _MAX_TOLD else []
    return f"{', '.join(told + more)}; nobody waits for it, not known whether it is stuck"


def waits_for_a_person(stacks: ProcessStacks | None) -> bool:
    """Whether its main thread is a notebook's between two cells, or stands at a prompt."""
    frames = stacks.main.frames if stacks and stacks.main else ()
    if not frames:
        return False
    newest = frames[-1]
    if _PROMPT.search(f"{newest.file} {newest.function}"):
        return True
    if any(_TERMINAL.search(frame.file) for frame in frames):
        return True
    is_in_cell = any(frame.function in _CELL for frame in frames)
    return not is_in_cell and any(_NOTEBOOK.search(frame.file) for frame in frames)
