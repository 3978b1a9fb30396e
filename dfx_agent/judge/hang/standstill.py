"""A run in which nothing moves anywhere, and no rank waits for another one.

A notebook between two cells and a debugger stand for as long as their person thinks: what waits for
one is told, and nobody is paged. Where others wait for such a rank it is a hang like any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import median

from dfx_agent.base.text import capitalized, seconds_text
from dfx_agent.facts.rank import RankFacts
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.limits import Habits, excuse
from dfx_agent.judge.words import have_text, ranks_text
from dfx_agent.snapshot import VerdictState

NO_PROGRESS_SECONDS = 120.0
_NO_PROGRESS_STEPS = 10
_SILENT_SECONDS = 60.0
_LONG_STEP_SECONDS, _ENOUGH_STEPS = 60.0, 3

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
    calm = _long_step(living) or ("clear", sentences.NOBODY_WAITS())
    if not living or quiet_seconds < NO_PROGRESS_SECONDS:
        return calm
    quiet = seconds_text(quiet_seconds)
    if len(steps) < 2:
        return "insufficient evidence", sentences.NO_KNOWN_PACE(duration=quiet)
    is_long = quiet_seconds >= _NO_PROGRESS_STEPS * median(steps) / 1e9
    if not is_long or any(rank.arrivals for rank in living) or not all(map(is_at_fault, living)):
        return calm
    asking = [rank for rank in living if waits_for_a_person(rank.stacks)]
    if asking:
        verb = "waits" if len(asking) == 1 else "wait"
        text = sentences.FOR_A_PERSON(duration=quiet, ranks=f"{ranks_text(asking)} {verb}")
        return "insufficient evidence", text
    places = ", ".join(dict.fromkeys(rank.place for rank in living))
    usual = seconds_text(median(steps) / 1e9)
    return "found", sentences.NO_PROGRESS(duration=quiet, usual=usual, place=places)


def _long_step(living: Sequence[RankFacts]) -> tuple[VerdictState, str] | None:
    """A step that lasts much longer than every one before is not clear, whatever holds it up."""
    steps = [ns / 1e9 for rank in living for ns in rank.step_durations]
    longest = [rank for rank in living if rank.step_seconds is not None]
    if len(steps) < _ENOUGH_STEPS or not longest:
        return None
    rank = max(longest, key=lambda rank: rank.step_seconds or 0.0)
    seconds, usual = rank.step_seconds or 0.0, median(steps)
    if seconds < max(_LONG_STEP_SECONDS, _NO_PROGRESS_STEPS * usual, 2 * max(steps)):
        return None
    return "insufficient evidence", sentences.LONG_STEP(
        duration=seconds_text(seconds),
        usual=seconds_text(usual),
        ranks=capitalized(f"{ranks_text([rank])} is"),
        place=rank.place,
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
    """Who has not moved, and for how long the first of them has not."""
    first = max(ranks, key=lambda rank: rank.quiet_seconds)
    return sentences.SILENT_ALONE(
        ranks=capitalized(have_text(ranks)),
        duration=seconds_text(first.quiet_seconds),
        place=first.place,
        usual=seconds_text(median(first.step_durations) / 1e9),
    )


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
