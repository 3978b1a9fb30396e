"""Lines of a custom trainer: ``step=3 reward=0.5``, ``iter 3/500 | rew 0.33 ± 0.2 | kl 1.2e-3``.

Also ``key: value`` on lines of their own, such as YAML and the tables of Stable-Baselines3. What
stands in front (a time, a level, a progress bar) is passed over. A line is a report when a key
means a signal and a step or a second number is with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from statistics import fmean

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.node.logs.damaged_reports import JOINED, UsualReport
from dfx_agent.node.logs.json_lines import parse_object
from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.printed_steps import step_of_heading, step_word_of, steps_of_line
from dfx_agent.node.logs.report_steps import ReportSteps
from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.values import numbers

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?:nan|NaN|inf|Infinity)\b)"
# behind a number: its end, or a unit
_END = r"(?=$|[\s,;|)\]}%±±~(]|[a-zA-Z]{1,6}(?:$|[\s,;|)\]}/]))"
_TIME = re.compile(
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
)
_SEPARATORS = re.compile(r"\s*[|;\t]\s*|,\s+|\s+[-–·•]\s+|\s{2,}|(?<!=)[\[\]{}]")
# from the beginning of a word: a line of one long word is tried once
_KEY = r"(?<![\w./@%()-])[A-Za-z_][\w./@%()-]{0,199}"
_EQUALS = re.compile(rf"(?P<key>{_KEY})\s?=\s?[\"'\[]?(?P<number>{_NUMBER}){_END}", re.IGNORECASE)
_COLON = re.compile(
    rf"(?P<key>{_KEY}(?: [A-Za-z_(][\w./@%()-]{{0,199}}){{0,3}})[\"']?\s?:\s?"
    rf"(?P<number>{_NUMBER}){_END}"
)
_BLANK = re.compile(
    rf"(?:\S*[:>] )?(?P<key>{_KEY}(?: [A-Za-z_(][\w./@%()-]*){{0,2}})\s+(?P<number>{_NUMBER})"
    rf"(?:\s*(?:±|\+/-|\+-|\(|/|%|[a-zA-Z]).{{0,30}})?"
)
# a line that holds one pair and nothing else: its report has several lines
_ALONE = re.compile(
    r"(?:\|\s*|-\s+|[\"'])?(?P<key>[A-Za-z_][\w./@%() -]*?)[\"']?\s*[:=|]\s*"
    rf"(?P<number>{_NUMBER})(?:\s*\||,)?"
)
# "Mean reward ...... 0.5"
_LEADERS = re.compile(r"(?<=\w) ?\.{3,} ?(?=[-+\d])")
# "250 train 3.5128", as nanoGPT's successor and others write a loss
_STEP_AND_SPLIT = re.compile(
    rf"\s*(?P<step>\d{{1,12}})\s+(?P<split>train|val|valid|test)\s+(?P<number>{_NUMBER})\s*"
)
# the end of a table
_RULE = re.compile(r"\s*[-=+|]{3,}\s*")
_MAY_HAVE_PAIRS = re.compile(r"[=:|,\t]|  | - ")
_MAX_LINE_CHARS = 20_000
# an episode's return and length, with the step
_MAX_VALUES_OF_EPISODE, _MAX_EPISODES_OF_STEP = 3, 64
# so many reports make a log of lines that may also be prose
_LEAST_REPORTS = 2


def read_pair_lines(
    lines: Iterable[str], notes: Notes, key_map: KeyMap = NO_MAP
) -> Iterator[Record]:
    """Records of the reports in these lines, in their order, each with its step."""
    steps = ReportSteps(notes)
    for report in _means(_reports(map(message_of, lines), notes, key_map), notes):
        yield from steps.add("", report)
    yield from steps.rest()


def _means(reports: Iterable[Record], notes: Notes) -> Iterator[Record]:
    """One report of a step for several directly behind one another: episodes that end with it."""
    held: list[Record] = []
    for report in reports:
        is_full = len(held) > _MAX_EPISODES_OF_STEP
        if held and (is_full or not _is_of_same_step(held[0], report)):
            yield from _mean(held, notes)
            held = []
        held.append(report)
    yield from _mean(held, notes)


def _is_of_same_step(one: Record, other: Record) -> bool:
    is_episode = len(one) <= _MAX_VALUES_OF_EPISODE and "step" in one
    return is_episode and one.keys() == other.keys() and one["step"] == other["step"]


def _mean(reports: list[Record], notes: Notes) -> list[Record]:
    """All of them where they are so many that their step counts something else."""
    if not 1 < len(reports) <= _MAX_EPISODES_OF_STEP:
        return reports
    where = f"step {reports[0]['step']:.0f}"
    notes.add("is reported several times in a row: the mean is read", where)
    return [{key: fmean(report[key] for report in reports) for key in reports[0]}]


def _reports(lines: Iterable[str], notes: Notes, key_map: KeyMap) -> Iterator[Record]:
    """``above``: a line with the step of those below it."""
    above, usual, damage = dict[str, float](), UsualReport(), ""
    block = _Block(usual, key_map)
    for i, line in enumerate(lines, start=1):
        pairs = pairs_of(line)
        damage = usual.damage(line, pairs)
        if damage:
            notes.left_out(damage, f"line {i}")
        is_alone = len(pairs) == 1 and ("step" in pairs or _is_alone(line))
        if is_alone and not pairs.keys() <= block.pairs.keys():
            block.pairs.update(pairs)
            continue
        yield from block.ended_by(line, pairs, is_alone=is_alone)
        if is_alone or damage == JOINED:
            continue
        if "step" in pairs:
            above = {} if means_signal(pairs, key_map) else pairs
        if _is_report(report := {**above, **pairs}, key_map):
            usual.learn(pairs)
            yield report
    if not damage and usual.is_cut_block(block.pairs):
        notes.left_out("ends within a block of lines", "the file")
    yield from block.ended_by("", {}, is_alone=False, is_last=True)


class _Block:
    """``pairs`` of lines of their own, until a line ends them."""

    def __init__(self, usual: UsualReport, key_map: KeyMap) -> None:
        self.pairs: Record = {}
        self._usual, self._map = usual, key_map

    def ended_by(
        self, line: str, pairs: Record, *, is_alone: bool, is_last: bool = False
    ) -> Iterator[Record]:
        """The block as a report, where this line ends it; the line may begin the next one."""
        is_closed = _RULE.fullmatch(line) is not None
        may_end = bool(pairs) or is_closed or is_last
        is_ended = may_end and _is_report(_with_step(self.pairs), self._map)
        if is_ended:
            if is_closed:
                self._usual.learn_block(self.pairs)
            yield self.pairs
        if pairs or is_ended:
            self.pairs = pairs if is_alone else {}


def has_pairs(lines: Iterable[str], key_map: KeyMap = NO_MAP) -> bool:
    """Whether several of these lines are reports."""
    records = read_pair_lines(lines, Notes(), key_map)
    return sum(1 for _ in zip(range(_LEAST_REPORTS), records, strict=False)) == _LEAST_REPORTS


def pairs_of(line: str) -> Record:
    """The numbers of a line by their names, the step as "step"; {} of a line without any."""
    if len(line) > _MAX_LINE_CHARS:
        return {}
    clean = _COLOUR.sub("", line) if "\x1b" in line else line
    if "..." in clean:
        clean = _LEADERS.sub(": ", clean)
    if (heading := step_of_heading(clean)) is not None:
        return {"step": heading}
    if (row := _STEP_AND_SPLIT.fullmatch(clean)) is not None:
        return numbers([("step", row["step"]), (f"{row['split']}_loss", row["number"])])
    if not _MAY_HAVE_PAIRS.search(clean):
        return {}
    alone = _ALONE.fullmatch(clean.strip())
    if alone:
        return numbers([(alone["key"].strip(), alone["number"])])
    text = _TIME.sub(" ", clean).strip().strip("|").strip()
    steps, rest = steps_of_line(text, clean)
    record = _pairs(rest)
    return {**record, **steps} if record else {}


def _is_alone(line: str) -> bool:
    return _ALONE.fullmatch(_LEADERS.sub(": ", line.strip())) is not None


def _pairs(text: str) -> Record:
    found: list[tuple[str, str]] = []
    segments = [segment for segment in _SEPARATORS.split(text) if segment]
    for segment in segments:
        equal = _EQUALS.findall(segment)
        pairs = equal or _COLON.findall(segment)
        if not pairs and len(segments) > 1 and (blank := _BLANK.fullmatch(segment)):
            pairs = [(blank["key"], blank["number"])]
        found += [(key.strip(), number) for key, number in pairs]
    return numbers(found)


def _with_step(record: Record) -> Record:
    """A block of lines names its step as its other numbers."""
    key = step_word_of(record)
    if key and "step" not in record:
        record["step"] = record[key]
    return record


def _is_report(pairs: Record, key_map: KeyMap) -> bool:
    return len(pairs) > 1 and means_signal(pairs, key_map)


def means_signal(record: Record, key_map: KeyMap) -> bool:
    """Whether a key of the record means a signal, by its words or by --map."""
    return any(key in key_map.spellings or meaning_of(key) is not None for key in record)


def message_of(line: str) -> str:
    """The text of a line of JSON whose fields hold no number of a report; the line otherwise."""
    record = parse_object(line) if line.startswith("{") else None
    texts = (record.get(name) for name in ("message", "msg", "text", "event")) if record else ()
    return next((text for text in texts if isinstance(text, str)), line)
