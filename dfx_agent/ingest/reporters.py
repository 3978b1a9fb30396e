"""Of several processes that print the same reports into one file, one is followed."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from dfx_agent.ingest.run import Notes, Record

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


@dataclass
class _Followed:
    """``others``: reports of each other process since its own newest."""

    process: str
    others: Counter[str] = field(default_factory=Counter)


class Reporters:
    """Who reports which keys; what others report of the same keys is left out, and told."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._followed: OrderedDict[frozenset[str], _Followed] = OrderedDict()
        self._newest_texts: deque[str] = deque(maxlen=_NUM_COMPARED)

    def is_wanted(self, before: str, text: str, record: Record) -> bool:
        if text in self._newest_texts and any(key in record for key in _COUNTING):
            self._notes.add("a report that was there just before: taken as another process's")
            return False
        self._newest_texts.append(text)
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
