"""verl's console log: ``step:12 - actor/entropy:0.31 - critic/score/mean:np.float64(0.4) - ...``.

Trackers cut a line at 4,096 bytes (every validation step is longer): its last value is then not
complete and is left out, and what came after it is missing, not zero.
"""

from __future__ import annotations

import re
from pathlib import Path

from dfx_agent.ingest.run import Run, read_lines
from dfx_agent.ingest.values import number

# the step may follow a prefix, such as ray's "(TaskRunner pid=4242)", in colour
STEP = re.compile(r"(?:^|[\s)m])step:(\d+) - ")

_CUT_AT_BYTES = 4096


def read_verl_console(path: Path) -> Run:
    run = Run()
    for line in read_lines(path):
        if "step:" not in line:
            continue
        begin = STEP.search(line)
        if begin:
            items = line[begin.end() :].rstrip("\n").split(" - ")
            if len(line.rstrip("\n").encode()) >= _CUT_AT_BYTES - 1:
                cut = items.pop()
                run.warn(f"step {begin[1]}: line cut by the logger at {cut[:40]!r}")
            run.add(int(begin[1]), _values(items))
    return run


def _values(items: list[str]) -> dict[str, float]:
    values = {}
    for item in items:
        key, _, text = item.rpartition(":")
        value = number(text)
        if key and value is not None:
            values[key.strip()] = value
    return values
