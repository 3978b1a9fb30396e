"""Printed reports that are cut or garbled: ``{'loss': 0.1, 'rew``, ``step=7 loss=0.1x3 rew``.

A line is called damaged only where it resembles the reports before it: prose is no damage.
"""

from __future__ import annotations

import re

from dfx_agent.catalogue.native.meaning import meaning_of
from dfx_agent.ingest.printed_steps import steps_of_line
from dfx_agent.ingest.run import Record

_FIRST_PAIR = re.compile(r"\{\s*['\"]([^'\"{}]{1,200})['\"]\s*:\s*['\"]?[-+\d.]")
# ends of a line after which a dict continues on the next line
_GOES_ON = (",", "{", "[", "(")
_STRANGE = re.compile(r"[\0\ufffd]")
_LAST_WORD = re.compile(r"(?:^|[\s|,;'\"])([A-Za-z_]{2,60})\s*[=:]?\s*$")
_VALUE = r"[\"']?\s?[=:]\s?(\S*)"
_NO_VALUE = frozenset({"", "-", "--", "none", "null", "n/a", "na", "nan", "no", "true", "false"})
_MAX_LINE_CHARS = 20_000


def is_cut_dict(text: str) -> bool:
    """Whether a dict of a report begins in this text and does not end; ``text`` begins with it."""
    first = _FIRST_PAIR.match(text)
    is_cut = first is not None and not text.rstrip().endswith(_GOES_ON)
    return is_cut and first is not None and _is_of_report(text, first[1])


def _is_of_report(text: str, first_key: str) -> bool:
    keys = (first_key, *re.findall(r"['\"]([^'\"{}]{1,200})['\"]\s*:", text[:_MAX_LINE_CHARS]))
    return any(meaning_of(key) is not None for key in keys)


class UsualReport:
    """Keys of the latest intact report of a log: what a damaged one lacks."""

    def __init__(self) -> None:
        self._keys: frozenset[str] = frozenset()

    def learn(self, report: Record) -> None:
        if report.keys() != self._keys:
            self._keys = frozenset(report)

    def is_damaged(self, line: str, pairs: Record) -> bool:
        """Whether a usual key has no number here, or the line ends within its name."""
        missing = self._keys - pairs.keys() - {"step", "epoch"}
        if not missing or len(line) > _MAX_LINE_CHARS:
            return False
        last = _LAST_WORD.search(line)
        is_cut = last is not None and any(key.startswith(last[1]) for key in missing)
        if self._keys.isdisjoint(pairs):
            return is_cut and bool(self._keys & steps_of_line(line, "")[0].keys())
        is_strange = _STRANGE.search(line) is not None
        return is_cut or is_strange or any(_is_garbled(line, key) for key in missing)


def _is_garbled(line: str, key: str) -> bool:
    found = re.search(rf"(?<![\w./]){re.escape(key)}{_VALUE}", line)
    return found is not None and found[1].strip(",;|)]}\"'").lower() not in _NO_VALUE
