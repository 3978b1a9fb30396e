"""Printed reports that are cut or garbled: ``{'loss': 0.1, 'rew``, ``step=7 loss=0.1x3 rew``.

A line is called damaged only where it resembles the reports before it: prose is no damage.
"""

from __future__ import annotations

import re

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.node.logs.printed_steps import second_step, steps_of_line
from dfx_agent.node.logs.run import Record

_FIRST_PAIR = re.compile(r"\{\s*['\"]([^'\"{}]{1,200})['\"]\s*:\s*['\"]?[-+\d.]")
# ends of a line after which a dict continues on the next line
_GOES_ON = (",", "{", "[", "(")
_STRANGE = re.compile(r"[\0\ufffd]")
_LAST_WORD = re.compile(r"(?:^|[\s|,;'\"])([A-Za-z_]{2,60})\s*[=:]?\s*$")
_LAST_LETTERS = re.compile(r"(?:^|[\s|,;'\"])([A-Za-z_]{1,60})$")  # of a file without a line end
# a row of a block as Stable-Baselines prints it: a key and a value between bars
_BLOCK_ROW = re.compile(r"\s*\|[^|]+\|[^|]*\|\s*")
_VALUE = r"[\"']?\s?[=:]\s?(\S*)"
_NO_VALUE = frozenset({"", "-", "--", "none", "null", "n/a", "na", "nan", "no", "true", "false"})
_MAX_LINE_CHARS = 20_000
CUT, JOINED = "is cut or garbled", "holds parts of two reports: left out"


def is_cut_dict(text: str) -> bool:
    """Whether a dict of a report begins in this text and does not end; ``text`` begins with it."""
    first = _FIRST_PAIR.match(text)
    is_cut = first is not None and not text.rstrip().endswith(_GOES_ON)
    return is_cut and first is not None and _is_of_report(text, first[1])


def _is_of_report(text: str, first_key: str) -> bool:
    keys = (first_key, *re.findall(r"['\"]([^'\"{}]{1,200})['\"]\s*:", text[:_MAX_LINE_CHARS]))
    return any(meaning_of(key) is not None for key in keys)


class UsualReport:
    """What the reports of a log look like: a damaged one lacks something of it.

    Keys of the latest intact line, and of the latest block of rows between bars that a line of
    dashes closed.
    """

    def __init__(self) -> None:
        self._keys: frozenset[str] = frozenset()
        self._block_keys: frozenset[str] = frozenset()

    def learn(self, report: Record) -> None:
        if report.keys() != self._keys:
            self._keys = frozenset(report)

    def learn_block(self, block: Record) -> None:
        self._block_keys = frozenset(block)

    def damage(self, line: str, pairs: Record) -> str:
        """What damaged this line; "" if it is intact."""
        if len(line) > _MAX_LINE_CHARS:
            return ""
        if len(pairs) > 1 and _is_joined(line, pairs):
            return JOINED
        return CUT if self._is_cut(line, pairs) or self._is_damaged_row(line) else ""

    def is_cut_block(self, block: Record) -> bool:
        """Whether this unclosed block is the beginning of a usual report."""
        return bool(block) and block.keys() < self._block_keys

    def _is_cut(self, line: str, pairs: Record) -> bool:
        """Whether a usual key has no number, or the line ends within its name."""
        missing = self._keys - pairs.keys() - {"step", "epoch"}
        if not missing:
            return False
        last = _LAST_WORD.search(line) or _LAST_LETTERS.search(line)
        is_cut = last is not None and any(key.startswith(last[1]) for key in missing)
        if self._keys.isdisjoint(pairs):
            return is_cut and bool(self._keys & steps_of_line(line, "")[0].keys())
        is_strange = _STRANGE.search(line) is not None
        return is_cut or is_strange or any(_is_garbled(line, key) for key in missing)

    def _is_damaged_row(self, line: str) -> bool:
        """Whether a row has a usual key or the begin of one, and not one value behind it."""
        if not line.lstrip().startswith("|") or _BLOCK_ROW.fullmatch(line):
            return False
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        is_begin = bool(cells[-1]) and any(key.startswith(cells[-1]) for key in self._block_keys)
        return is_begin or not self._block_keys.isdisjoint(cells)


def _is_joined(line: str, pairs: Record) -> bool:
    """Whether a report is cut and a whole one, with all of its keys, begins on its line."""
    begin, keys = second_step(line), pairs.keys() - {"step", "epoch"}
    return begin is not None and all(
        re.search(rf"(?<![\w./]){re.escape(key)}{_VALUE}", line[begin:]) for key in keys
    )


def _is_garbled(line: str, key: str) -> bool:
    found = re.search(rf"(?<![\w./]){re.escape(key)}{_VALUE}", line)
    return found is not None and found[1].strip(",;|)]}\"'").lower() not in _NO_VALUE
