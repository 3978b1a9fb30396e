"""Judges a run in which nothing moves, although no rank waits for another one.

A notebook between two cells, or a debugger, waits for a person. This is reported, but it is no
finding. If other ranks wait for such a rank, it is an ordinary hang.
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

# innermost frames of pdb and code.interact; IPython is found in any frame
_PROMPT = re.compile(r"/(cmd\.py cmdloop|code\.py raw_input|_pyrepl/\w+\.py \w+)$")
_TERMINAL = re.compile(r"/prompt_toolkit/")
_NOTEBOOK = re.compile(r"/(ipykernel|xpython|IPython/terminal)/")
_CELL = frozenset({"run_cell", "do_execute", "run_code"})


def standstill(
    living: Sequence[RankFacts],
    quiet_seconds: float,
    is_at_fault: Callable[[RankFacts], bool],
) -> tuple[VerdictState, str]:
    """(state, summary) of a role whose processes have not moved for ``quiet_seconds``."""
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
    """(state, summary) if the present step lasts much longer than all earlier ones, else None."""
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
    """Independent processes (as in a sweep) that have been quiet for unusually long."""
    alone = [
        rank for rank in living if rank.world_size == 1 and not rank.reached and not rank.arrivals
    ]
    if len(alone) < 2:
        return []
    return [rank for rank in alone if _is_silent(rank) and not waits_for_a_person(rank.stacks)]


def _is_silent(rank: RankFacts) -> bool:
    if len(rank.step_durations) < 2 or rank.quiet_seconds < _SILENT_SECONDS:
        return False
    usual_seconds = _NO_PROGRESS_STEPS * median(rank.step_durations) / 1e9
    return rank.quiet_seconds >= usual_seconds and bool(excuse(rank, Habits([rank])).fault)


def silent_text(ranks: Sequence[RankFacts]) -> str:
    """The sentence about independent processes that have not moved."""
    first = max(ranks, key=lambda rank: rank.quiet_seconds)
    return sentences.SILENT_ALONE(
        ranks=capitalized(have_text(ranks)),
        duration=seconds_text(first.quiet_seconds),
        place=first.place,
        usual=seconds_text(median(first.step_durations) / 1e9),
    )


def waits_for_a_person(stacks: ProcessStacks | None) -> bool:
    """Whether the main thread waits at a prompt, or in a notebook between two cells."""
    frames = stacks.main.frames if stacks and stacks.main else ()
    if not frames:
        return False
    innermost = frames[-1]
    if _PROMPT.search(f"{innermost.file} {innermost.function}"):
        return True
    if any(_TERMINAL.search(frame.file) for frame in frames):
        return True
    is_in_cell = any(frame.function in _CELL for frame in frames)
    return not is_in_cell and any(_NOTEBOOK.search(frame.file) for frame in frames)
