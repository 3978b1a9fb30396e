"""Assigns a step to each printed report: from its line, from its dict, or by counting reports."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator

from dfx_agent.node.logs.run import Notes, Record
from dfx_agent.node.logs.step_window import StepWindow
from dfx_agent.node.logs.steps import STEP_KEYS

_SAID = re.compile(
    r"\b(perf|rollout|global[ _]step|step|iteration|iter|it|update|upd|episode|ep)"
    r"[\s#=:\[(]{1,4}(\d{1,18}|\d{1,3}(?:,\d{3})+)(?:\s*/\s*[\d,]+)?[\s:|>,\])-]*$",
    re.IGNORECASE,
)
# slime counts rollouts and, apart from them, optimizer steps of the trainer
_ROLLOUT_WORDS = frozenset({"perf", "rollout"})
# writers of one run are not so far apart; a step further back is a job that was resumed
_MAX_STEPS_APART = 8
_MAX_VALUES_HELD = 200_000
# keys of transformers' evaluations and of its summary
_EXTRA_PREFIXES = ("eval_", "train_", "epoch")


class ReportSteps:
    """Assigns steps to reports. A report without a step counts as a step of its own, from 0."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._window = StepWindow(notes, _MAX_VALUES_HELD, _MAX_STEPS_APART)
        self._latest_step: int | None = None
        self._rollout: int | None = None
        self._count = -1
        self._epochs = array("d")
        self._held: Record | None = None
        self._latest: Record = {}  # the latest report that says its step
        self._early: Record = {}  # of the next report that does
        self._num_ahead = 0  # reports that say their step, less those that do not

    def add(self, before: str, record: Record) -> Iterator[Record]:
        """Reports that are complete now. ``before``: the text in front of the dict."""
        found = _SAID.search(before)
        if found:
            yield from self.placed(found[1].lower(), int(found[2].replace(",", "")), record)
        elif any(key in record for key in STEP_KEYS):
            yield from self.rest()
            yield self._with_own_step(record)
        elif self._num_ahead > 0:
            yield from self._without_step(record)
        else:
            yield from self._counted(record)

    def _with_own_step(self, record: Record) -> Record:
        record = {**self._early, **record}
        self._early, self._latest = {}, record.copy()
        self._num_ahead += 1
        return record

    def _without_step(self, record: Record) -> Iterator[Record]:
        """An evaluation between reports that say their step: part of the latest or of the next."""
        self._num_ahead -= 1
        if record.keys() & self._latest.keys():
            self._early.update(record)
        else:
            yield record | {key: self._latest[key] for key in STEP_KEYS if key in self._latest}

    def placed(self, word: str, step: int, record: Record) -> Iterator[Record]:
        """A report whose line names the step; parts of one step may arrive in any order."""
        if word in _ROLLOUT_WORDS:
            self._rollout = step
        elif self._rollout is not None:
            step = self._rollout
        if self._latest_step is not None and step < self._latest_step - _MAX_STEPS_APART:
            yield from self._window.rest()
            self._latest_step = None
        self._latest_step = max(step, self._latest_step or step)
        yield from self._window.add(step, record)

    def rest(self) -> Iterator[Record]:
        yield from self._window.rest()
        if self._held is not None:
            yield self._held
            self._held = None

    def _counted(self, record: Record) -> Iterator[Record]:
        """Evaluations and the summary at the end belong to the report before them."""
        if self._count < 0:
            self._notes.add("no step in the lines: reports are counted from 0")
        if self._held is not None and all(key.startswith(_EXTRA_PREFIXES) for key in record):
            self._held.update((key, value) for key, value in record.items() if key != "epoch")
            return
        yield from self.rest()
        self._count += 1
        self._go_back(record.get("epoch"))
        record["step"] = self._count
        self._held = record

    def _go_back(self, epoch: float | None) -> None:
        """Count from the checkpoint again if the epoch is smaller: the job was resumed."""
        if epoch is None or epoch != epoch:  # noqa: PLR0124 - NaN
            epoch = self._epochs[-1] if self._epochs else 0.0
        if self._epochs and epoch < self._epochs[-1]:
            self._count = bisect_left(self._epochs, epoch)
            del self._epochs[self._count :]
            self._notes.add("the epoch goes back: taken as a resumed job", f"report {self._count}:")
        self._epochs.append(epoch)
