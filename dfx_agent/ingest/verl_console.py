"""verl's console log: ``step:12 - actor/entropy:0.31 - critic/score/mean:np.float64(0.4) - ...``.

Trackers cut a line at 4,096 bytes (every validation step is longer): its last value is then not
complete and is left out, and what came after it is missing, not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from dfx_agent.ingest.lines import read_lines
from dfx_agent.ingest.run import Notes, Record
from dfx_agent.ingest.values import numbers

# the step may follow a prefix, such as ray's "(TaskRunner pid=4242)", in colour
STEP = re.compile(r"(?:^|[\s)m])step:(\d{1,18}) - ")

_CUT_AT_BYTES = 4096


def read_verl_console(path: Path, notes: Notes) -> Iterator[Record]:
    for line in read_lines(path, notes):
        record = verl_record(line, notes)
        if record is not None:
            yield record


def verl_record(line: str, notes: Notes) -> Record | None:
    """The report that this line is, with its step; None for any other line."""
    begin = STEP.search(line) if "step:" in line else None
    if begin is None:
        return None
    items = line[begin.end() :].rstrip("\n").split(" - ")
    if len(line.rstrip("\n").encode("utf-8", "replace")) >= _CUT_AT_BYTES - 1:
        cut = items.pop()
        notes.add(
            "was cut by the logger: its last value is left out",
            f"the line of step {begin[1]}, at {cut[:40]!r},",
        )
    record = numbers(_pairs(items))
    if not record:
        notes.left_out("holds no value: left out", f"the line of step {begin[1]}")
    record["step"] = int(begin[1])
    return record


def _pairs(items: list[str]) -> Iterator[tuple[str, str]]:
    for item in items:
        key, _, text = item.rpartition(":")
        if key:
            yield key.strip(), text
