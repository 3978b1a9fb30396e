"""Reads verdict scenes: who is where since when, and which verdict is expected at which second.

The form is described in docs/how-to/send-us-a-scene.md. A line that cannot be read raises
SceneError with its file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

KINDS = ("hang", "crash", "straggler", "memory")
STATES = ("found", "clear", "insufficient evidence")

_NUMBER = r"(\d+(?:\.\d+)?)"
_RANKS = r"ranks? (\d[\d ,and-]*)"
_SCENE = re.compile(r"scene (.+)")
_JOB = re.compile(r"job: (\d+) ranks(?: of (\d+))?")
_STAGE = re.compile(rf"(\w+) usually takes {_NUMBER} s(?:, at most {_NUMBER} s)?")
_HOST = re.compile(rf"each host has {_NUMBER} GiB of {_NUMBER} GiB free")
_STEP = re.compile(rf"a step takes {_NUMBER} s")
_WHO = re.compile(rf"{_RANKS}: (.+?)(?: since {_NUMBER} s)?")
_EXPECTED = re.compile(rf"at {_NUMBER} s: ({'|'.join(KINDS)}) ({'|'.join(STATES)})(?:, (.+))?")
_SENTENCE = re.compile(r'(evidence )?"(.+)"')


class SceneError(ValueError):
    """A line that is not part of the form."""


@dataclass(frozen=True)
class Act:
    """What some ranks do from a second on: ``clauses`` such as "waits in all_reduce"."""

    ranks: tuple[int, ...]
    clauses: tuple[str, ...]
    since: float
    place: str


@dataclass
class Expected:
    """``ranks`` and ``cause`` are None where the scene does not name them."""

    at: float
    kind: str
    state: str
    place: str
    ranks: tuple[str, ...] | None = None
    cause: str | None = None
    sentence: str = ""
    evidence: list[str] = field(default_factory=list)


@dataclass
class Scene:
    """One scene; ``stages``: how many seconds a stage takes, usually and at most."""

    name: str
    num_ranks: int = 4
    world_size: int = 4
    step_seconds: float = 1.0
    free_gib: float = 900.0
    total_gib: float = 1000.0
    stages: dict[str, tuple[float, float]] = field(default_factory=lambda: {"backward": (1.0, 1.0)})
    acts: list[Act] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)


def read_scenes(path: Path) -> list[Scene]:
    """All scenes of a file, in order."""
    scenes: list[Scene] = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line, place = text.strip(), f"{path.name}:{number}"
        if not line or line.startswith("#"):
            continue
        if found := _SCENE.fullmatch(line):
            scenes.append(Scene(found[1]))
        elif not scenes:
            raise SceneError(f"{place}: a scene begins with: scene NAME")
        else:
            _read_line(scenes[-1], line, place)
    return scenes


def _read_line(scene: Scene, line: str, place: str) -> None:
    if found := _EXPECTED.fullmatch(line):
        at, kind, state, rest = found.groups()
        scene.expected.append(_expected(Expected(float(at), kind, state, place), rest))
    elif found := _SENTENCE.fullmatch(line):
        if not scene.expected:
            raise SceneError(f"{place}: a sentence stands below its expectation")
        if found[1]:
            scene.expected[-1].evidence.append(found[2])
        else:
            scene.expected[-1].sentence = found[2]
    elif found := _WHO.fullmatch(line):
        ranks, clauses, since = found.groups()
        acts = tuple(_singular(clause.strip()) for clause in clauses.split(","))
        scene.acts.append(Act(tuple(rank_numbers(ranks)), acts, float(since or 0), place))
    elif found := _JOB.fullmatch(line):
        scene.num_ranks = int(found[1])
        scene.world_size = int(found[2] or found[1])
    elif found := _STAGE.fullmatch(line):
        scene.stages[found[1]] = float(found[2]), float(found[3] or found[2])
    elif found := _HOST.fullmatch(line):
        scene.free_gib, scene.total_gib = float(found[1]), float(found[2])
    elif found := _STEP.fullmatch(line):
        scene.step_seconds = float(found[1])
    else:
        raise SceneError(f"{place}: cannot read: {line}")


def _singular(clause: str) -> str:
    """Clauses of several ranks are read as those of one."""
    return re.sub(
        r"^(wait|compute|receive|send|exit|grow|get)\b", r"\1s", re.sub("^are ", "is ", clause)
    )


def _expected(expected: Expected, rest: str | None) -> Expected:
    """Behind the state: ranks, "nobody", and the cause."""
    for part in (rest or "").split(", because "):
        if found := re.fullmatch(_RANKS, part):
            expected.ranks = tuple(str(rank) for rank in rank_numbers(found[1]))
        elif part == "nobody":
            expected.ranks = ()
        elif part:
            expected.cause = part.removeprefix("because ")
    return expected


def rank_numbers(text: str) -> Iterator[int]:
    """As in "0-2, 5"."""
    for part in re.split(r"(?:,| and )\s*", text.strip()):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def clause_values(pattern: str, clause: str) -> Mapping[str, str] | None:
    """The named groups of a clause; None where it is another one."""
    found = re.fullmatch(pattern, clause)
    return None if found is None else {k: v for k, v in found.groupdict().items() if v is not None}
