"""What trainers print between everything else: dicts, "Step 3 | Reward: 0.5 | ...", text tables.

Known forms: transformers and TRL (``{'loss': 0.1, 'reward': 0.5}``; newer versions put the numbers
into quotes), ms-swift, OpenRLHF and slime (a dict behind "Global step 3:", "rollout 3:"), prime-rl,
LightRFT's times and memory, and the tables of notebooks as people paste them. A dict is a report
when a framework knows one of its keys.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dfx_agent.node.logs.damaged_reports import is_cut_dict
from dfx_agent.node.logs.framework_spelling import is_known_key
from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.lines import read_lines
from dfx_agent.node.logs.printed_dicts import cut_dicts, printed_dicts
from dfx_agent.node.logs.printed_pairs import has_pairs, means_signal, read_pair_lines
from dfx_agent.node.logs.printed_tables import PrintedTable
from dfx_agent.node.logs.report_steps import ReportSteps
from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.values import numbers

# as ray, torchrun and pdsh mark lines: (Trainer pid=7, ip=10.0.0.1) or [rank3]: or a number
_PROCESS = re.compile(
    r"\(\w+ pid=\d+[^)]*\)|\[(?:rank|default|local_rank)? ?\d{1,5}\]:?|^\d{1,5}: "
)
# so many reports of one other without any of the one followed: it has ended
_NUM_ALONE = 3
# one that prints the same may lag by a report; further back it is a job that was resumed
_NUM_COMPARED = 2
_MAX_KINDS = 1_000
# values that differ between two reports of one process
_COUNTING = ("learning_rate", "epoch", "num_tokens", "step", "lr")
_NUMBER = r"(\d+\.?\d*(?:e[-+]?\d+)?)"
_TIMES = re.compile(
    r"(PPO Train TIMECOST|Rollout engine generation time \(global max\)"
    rf"|Finished \w+ wakeup, TIMECOST):? {_NUMBER}"
)
_MEMORY = re.compile(
    rf"MEMORY STATUS: (.{{1,100}}?) ?, DRIVER_USED={_NUMBER} GB, ALLOCATED={_NUMBER} GB"
)
_LAST = "PPO Train TIMECOST"
_WORDS = ("TIMECOST", "generation time (global max)", "MEMORY STATUS: ")
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRIME_RL = re.compile(r"\bStep (\d{1,18}) \| (.+)")
# of its pull request 2608: "Step 3 phase breakdown: pretokenize=1.20s, wandb_log=0.05s"
_PRIME_RL_PHASES = re.compile(r"\bStep (\d{1,18}) phase breakdown: (.+)")
_PHASE = re.compile(r"([a-z0-9_]{1,100})=(\d+\.?\d*)s(?=,|\s*$)")
_FIRST_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)")
# prime-rl's words for its own keys; the units of other words on the line are unknown
_PRIME_RL_KEYS = {
    "Reward": "reward/all/mean",
    "Loss": "loss/mean",
    "Entropy": "entropy/all/mean",
    "Mismatch KL": "mismatch_kl/all/mean",
    "Grad. Norm": "optim/grad_norm",
    "Seq. Length": "seq_len/all/mean",
}


def read_console(path: Path, notes: Notes, key_map: KeyMap = NO_MAP) -> Iterator[Record]:
    """Reports in a framework's form; of a log without any, the lines of ``key=value`` pairs."""
    reports = read_console_lines(read_lines(path, Notes()), Notes(), key_map)
    # settings that are printed as a dict have keys of a framework too
    has_signal = any(means_signal(report, key_map) for report in reports)
    if has_signal or not has_pairs(read_lines(path, Notes()), key_map):
        return read_console_lines(read_lines(path, notes), notes, key_map)
    return read_pair_lines(read_lines(path, notes), notes, key_map)


def read_console_lines(
    lines: Iterable[str], notes: Notes, key_map: KeyMap = NO_MAP
) -> Iterator[Record]:
    """Records of the reports in these lines, in their order, each with its step."""
    steps, reporters, table = ReportSteps(notes), Reporters(notes), PrintedTable(notes)
    lightrft = LightRFTLines()
    for i, line in enumerate(lines, start=1):
        clean = _COLOUR.sub("", line) if "\x1b" in line else line
        if any(map(is_cut_dict, cut_dicts(clean))):
            notes.left_out("ends within a report: left out", f"line {i}")
        row = table.record(clean)
        if row is not None:
            yield from steps.rest()
            yield row
            continue
        found = _of_one_framework(clean, steps, lightrft)
        if found is not None:
            yield from found
            continue
        for before, text, printed in printed_dicts(clean):
            if not _is_report(printed, key_map):
                if printed:
                    notes.add("dicts hold no key that is known: left out")
            elif reporters.is_wanted(before, text, printed):
                yield from steps.add(before, printed)
    yield from steps.rest()


def _of_one_framework(
    line: str, steps: ReportSteps, lightrft: LightRFTLines
) -> Iterator[Record] | None:
    """Records that are due with a line in one framework's own form; None for any other line."""
    if lightrft.takes(line):
        of_step = lightrft.step()
        return iter(()) if of_step is None else steps.add("", of_step)
    if "phase breakdown" in line and (found := _PRIME_RL_PHASES.search(line)):
        return steps.placed("Step", int(found[1]), _prime_rl_phases(found[2]))
    if " | " in line and (found := _PRIME_RL.search(line)):
        return steps.placed("Step", int(found[1]), _prime_rl(found[2]))
    return None


def has_report(lines: Iterable[str], key_map: KeyMap = NO_MAP) -> bool:
    return next(iter(read_console_lines(lines, Notes(), key_map)), None) is not None


def _is_report(record: Record, key_map: KeyMap) -> bool:
    return any(key in key_map.spellings or _is_known(key) for key in record)


@lru_cache(maxsize=10_000)
def _is_known(key: str) -> bool:
    return is_known_key(key)


def _prime_rl(text: str) -> Record:
    items = (item.partition(":") for item in text.split(" | "))
    named = ((_PRIME_RL_KEYS.get(label.strip()), value) for label, _, value in items)
    found = ((key, _FIRST_NUMBER.match(value.strip())) for key, value in named if key)
    return numbers((key, value[0]) for key, value in found if value)


def _prime_rl_phases(text: str) -> Record:
    return numbers((f"time/{name}", seconds) for name, seconds in _PHASE.findall(text))


class LightRFTLines:
    """Collects the values on the lines of one step; the last value of a key counts."""

    def __init__(self) -> None:
        self._found: Record = {}

    def takes(self, line: str) -> bool:
        """Whether this line is one of them."""
        if not any(word in line for word in _WORDS):
            return False
        if time := _TIMES.search(line):
            self._found.update(numbers([(time[1], time[2])]))
        elif memory := _MEMORY.search(line):
            place = f"MEMORY STATUS: {memory[1].strip()}"
            used = [(f"{place}, DRIVER_USED", memory[2]), (f"{place}, ALLOCATED", memory[3])]
            self._found.update(numbers(used))
        else:
            return False
        return True

    def step(self) -> Record | None:
        """All values of a step, after its last line."""
        if _LAST not in self._found:
            return None
        found, self._found = self._found, {}
        return found


@dataclass
class _Followed:
    """``others``: reports of each other process since the latest report of this one."""

    process: str
    others: Counter[str] = field(default_factory=Counter)


class Reporters:
    """Tracks which process reports which keys; other reports of these are left out and noted."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._followed: OrderedDict[frozenset[str], _Followed] = OrderedDict()
        self._latest_texts: deque[str] = deque(maxlen=_NUM_COMPARED)

    def is_wanted(self, before: str, text: str, record: Record) -> bool:
        if text in self._latest_texts and any(key in record for key in _COUNTING):
            self._notes.add("a report that was there just before: taken as another process's")
            return False
        self._latest_texts.append(text)
        process = _PROCESS.search(before)
        return self._is_followed(process[0] if process else "", frozenset(record))

    def _is_followed(self, process: str, keys: frozenset[str]) -> bool:
        followed = self._followed.get(keys)
        if followed is None:
            if len(self._followed) >= _MAX_KINDS:
                self._followed.popitem(last=False)
            self._followed[keys] = _Followed(process)
            return True
        if followed.process == process:
            followed.others.clear()
            return True
        if len(followed.others) >= _MAX_KINDS:
            followed.others.clear()
        followed.others[process] += 1
        if followed.others[process] < _NUM_ALONE:
            self._notes.add("reports the same keys as another process: left out", process)
            return False
        self._followed[keys] = _Followed(process)
        self._notes.add(f"{process} reports on for {followed.process}: followed from there")
        return True
