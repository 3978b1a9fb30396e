"""Names the code in which a job spends its unmarked time, from stack samples of the guest.

The guest samples the stack of the main thread about once a second, and counts samples by place:
``STATE|LIBRARY|CALL>CALL``, where a call is ``FUNCTION FILE:LINE``, the outermost first.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dfx_agent.judge.bottleneck.pipeline_facts import ProcessTime

LEAST_SAMPLES = 8
_LEAST_RATIO = 0.3
_SHARED_RATIO = 0.9
_MOST_SECONDS = 120.0
# words of a function or library -> the stage that its caller should mark
_STAGES = tuple(
    (stage, re.compile(pattern))
    for stage, pattern in (
        ("data", r"data|load|batch|collate|fetch|token|prepro|augment"),
        ("rollout", r"roll|collect|gener|sampl|play|act|env|episode|simul"),
        ("reward", r"reward|score|grade|judge|verify"),
        ("validation", r"eval|valid|test"),
        ("advantage", r"advantage|gae|returns"),
        ("checkpoint", r"save|checkpoint"),
    )
)
_DEFAULT_STAGE = "NAME"
# between "NAME FILE:LINE" and the next: not the end of "<module>"
_BETWEEN = re.compile(r"(?<=\d)>")
_MODULE = "<module>"


class CodePlace(NamedTuple):
    """A function of the job that spends much unmarked time."""

    function: str
    file_line: str
    """As in "train.py:88"."""
    library: str
    """Library that it was in, as "data" for a DataLoader; "" for code of the job."""
    ratio: float
    """Its share of the samples in unmarked code."""
    num_samples: int
    """All samples in unmarked code."""

    @property
    def name(self) -> str:
        return "module-level code" if self.function == _MODULE else f"`{self.function}`"

    @property
    def text(self) -> str:
        """As in "`load_batch` (train.py:88)"."""
        more = ", waiting for its DataLoader" if self.library == "data" else ""
        return f"{self.name} ({self.file_line}){more}"

    @property
    def stage(self) -> str:
        """A name for ``dfx.stage``, guessed from the function."""
        if self.library:
            return self.library
        words = self.function.lower()
        return next((stage for stage, word in _STAGES if word.search(words)), _DEFAULT_STAGE)


class CodeSamples:
    """Stack samples of the training role over the last two minutes."""

    def __init__(self) -> None:
        self._polls: deque[tuple[float, Counter[str]]] = deque()

    def add(self, now_seconds: float, processes: Iterable[ProcessTime]) -> None:
        """Add the running totals of all ranks at one poll."""
        total: Counter[str] = Counter()
        for process in processes:
            total.update({name: int(count) for name, count in process.code_samples.items()})
        self._polls.append((now_seconds, total))
        while now_seconds - self._polls[0][0] > _MOST_SECONDS:
            self._polls.popleft()

    def place(self) -> CodePlace | None:
        """The function with most samples; None below 8 samples or 30 % of them."""
        if not self._polls:
            return None
        first, last = self._polls[0][1], self._polls[-1][1]
        latest = last - first
        return place_of(latest if latest.total() >= LEAST_SAMPLES else last)


class _Call(NamedTuple):
    function: str
    file_line: str


class _Sample(NamedTuple):
    is_marked: bool
    library: str
    calls: tuple[_Call, ...]

    @classmethod
    def parse(cls, name: str) -> _Sample:
        state, library, calls = [*name.split("|", 2), "", ""][:3]
        pairs = (call.rpartition(" ") for call in _BETWEEN.split(calls) if call)
        return cls(state == "marked", library, tuple(_Call(pair[0], pair[2]) for pair in pairs))


def place_of(samples: Mapping[str, int]) -> CodePlace | None:
    """The function that is called by the training loop and has most unmarked samples.

    Calls that are on nearly every stack are the training loop itself. Code in the loop is named by
    its line.
    """
    parsed = {_Sample.parse(name): count for name, count in samples.items()}
    unmarked = {sample: count for sample, count in parsed.items() if not sample.is_marked}
    total = sum(unmarked.values())
    if total < LEAST_SAMPLES:
        return None
    depth = _loop_depth(parsed)
    by_place: Counter[tuple[str, str]] = Counter()
    lines: dict[tuple[str, str], Counter[str]] = {}
    for sample, count in unmarked.items():
        key, line = _key(sample, depth)
        by_place[key] += count
        lines.setdefault(key, Counter())[line] += count
    key, count = by_place.most_common(1)[0]
    if count < _LEAST_RATIO * total:
        return None
    line = lines[key].most_common(1)[0][0]
    return CodePlace(key[0], line, key[1], count / total, total)


def _loop_depth(samples: Mapping[_Sample, int]) -> int:
    """Number of outermost calls that nearly all stacks share."""
    depth, current = 0, dict(samples)
    while True:
        by_function: Counter[str] = Counter()
        for sample, count in current.items():
            if len(sample.calls) > depth:
                by_function[sample.calls[depth].function] += count
        most = by_function.most_common(1)
        if not most or most[0][1] < _SHARED_RATIO * sum(samples.values()):
            return depth
        current = {
            sample: count
            for sample, count in current.items()
            if _calls_at(sample, depth) == most[0][0]
        }
        depth += 1


def _calls_at(sample: _Sample, depth: int) -> str:
    return sample.calls[depth].function if len(sample.calls) > depth else ""


def _key(sample: _Sample, depth: int) -> tuple[tuple[str, str], str]:
    """((function, library), line of its call); for code in the loop, its own line."""
    calls = sample.calls
    if len(calls) > depth:
        caller = calls[depth - 1] if depth else calls[depth]
        return (calls[depth].function, sample.library), caller.file_line
    loop = calls[-1] if calls else _Call("", "")
    return (loop.function, sample.library), loop.file_line
