"""What trainers print between everything else: dicts, "Step 3 | Reward: 0.5 | ...", text tables.

Known forms: transformers and TRL (``{'loss': 0.1, 'reward': 0.5}``; newer versions put the numbers
into quotes), ms-swift, OpenRLHF and slime (a dict behind "Global step 3:", "rollout 3:"), prime-rl,
LightRFT's times and memory, and the tables of notebooks as people paste them. A dict is a report
when a framework knows one of its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from dfx_agent.ingest.damaged_reports import is_cut_dict
from dfx_agent.ingest.framework_spelling import is_known_key
from dfx_agent.ingest.key_map import NO_MAP, KeyMap
from dfx_agent.ingest.lightrft_lines import LightRFTLines
from dfx_agent.ingest.lines import read_lines
from dfx_agent.ingest.printed_dicts import cut_dicts, printed_dicts
from dfx_agent.ingest.printed_pairs import has_pairs, means_signal, read_pair_lines
from dfx_agent.ingest.printed_tables import PrintedTable
from dfx_agent.ingest.report_steps import ReportSteps
from dfx_agent.ingest.reporters import Reporters
from dfx_agent.ingest.run import Notes, Record
from dfx_agent.ingest.values import numbers

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PRIME_RL = re.compile(r"\bStep (\d{1,18}) \| (.+)")
# of its pull request 2608: "Step 3 phase breakdown: pretokenize=1.20s, wandb_log=0.05s"
_PRIME_RL_PHASES = re.compile(r"\bStep (\d{1,18}) phase breakdown: (.+)")
_PHASE = re.compile(r"([a-z0-9_]{1,100})=(\d+\.?\d*)s(?=,|\s*$)")
_FIRST_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)")
# prime-rl's words for its own keys; other words of the line have units that it does not tell
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
                yield from steps.of(before, printed)
    yield from steps.rest()


def _of_one_framework(
    line: str, steps: ReportSteps, lightrft: LightRFTLines
) -> Iterator[Record] | None:
    """Records that are due with a line in one framework's own form; None for any other line."""
    if lightrft.takes(line):
        of_step = lightrft.step()
        return iter(()) if of_step is None else steps.of("", of_step)
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
