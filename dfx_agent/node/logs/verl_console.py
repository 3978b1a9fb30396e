"""verl's console log: ``step:12 - actor/entropy:0.31 - critic/score/mean:np.float64(0.4) - ...``.

Trackers cut a line at 4,096 bytes (every validation step is longer): its last value is then not
complete and is left out, and what came after it is missing, not zero.

A line that a crash cut lacks keys at its end that all lines before it have; one that was cut within
a write continues with the next report. Both are counted as damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from dfx_agent.node.logs.lines import read_lines
from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.values import numbers

# the step may follow a prefix, such as ray's "(TaskRunner pid=4242)", in colour
STEP = re.compile(r"(?:^|[\s)m])step:(\d{1,18}) - ")

_CUT_AT_BYTES = 4096
# fewer reports do not say which keys all of them have
_LEAST_REPORTS = 8


def read_verl_console(path: Path, notes: Notes) -> Iterator[Record]:
    return VerlLines(notes).records(read_lines(path, notes))


class VerlLines:
    """Reads the reports of one run, and learns which keys all reports have, and in which order."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._usual: list[str] | None = None
        self._num_reports = 0

    def records(self, lines: Iterable[str]) -> Iterator[Record]:
        """The record of each line that is a report, with its step."""
        for line in lines:
            begins = list(STEP.finditer(line)) if "step:" in line else []
            ends = [*(begin.start() for begin in begins[1:]), len(line)]
            for begin, end in zip(begins, ends, strict=False):
                is_joined = end < len(line)
                items = line[begin.end() : end].rstrip("\n").split(" - ")
                yield self._record(begin[1], items, is_joined=is_joined, line=line)

    def _record(self, step: str, items: list[str], *, is_joined: bool, line: str) -> Record:
        where = f"the line of step {step}"
        if len(line.rstrip("\n").encode("utf-8", "replace")) >= _CUT_AT_BYTES - 1:
            cut = items.pop()
            what = "was cut by the logger: its last value is left out"
            self._notes.add(what, f"{where}, at {cut[:40]!r},")
        elif is_joined or self._is_cut(items):
            cut = items.pop()
            what = "is cut: its last value is left out"
            self._notes.left_out(what, f"{where}, at {cut[:40]!r},")
        else:
            self._learn([key for key, _ in _pairs(items)])
        record = numbers(_pairs(items))
        if not record:
            self._notes.left_out("holds no value: left out", where)
        record["step"] = int(step)
        return record

    def _learn(self, keys: list[str]) -> None:
        if keys[:1] != (self._usual or keys)[:1]:
            return  # a report of another kind: a validation on a line of its own
        present = set(keys)
        self._usual = [key for key in self._usual or keys if key in present]
        self._num_reports += 1

    def _is_cut(self, items: list[str]) -> bool:
        """Whether the report begins like all others and ends before they do."""
        # what another process prints may stand right behind the last value
        keys = [item.partition(":")[0].strip() for item in items]
        usual = self._usual or []
        if self._num_reports < _LEAST_REPORTS or keys[0] != usual[0] or usual[-1] in keys:
            return False
        present = set(keys)
        num_shared = sum(key in present for key in usual)
        return present.isdisjoint(usual[num_shared:]) and present.issuperset(usual[:num_shared])


def _pairs(items: list[str]) -> Iterator[tuple[str, str]]:
    for item in items:
        key, _, text = item.rpartition(":")
        if key:
            yield key.strip(), text
