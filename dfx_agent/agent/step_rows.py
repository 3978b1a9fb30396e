"""Closed steps of a run as rows: what each rank did in them, and who never passed them.

A step closes when every living rank of its role has passed it, or when some rank is two steps
ahead: then the ranks that never passed it are named as missing. A cell that comes later still finds
its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dfx_agent.node.process import ClosedStep, Process
from dfx_agent.snapshot import StepCell, StepRow

Processes = Mapping[tuple[str, str], Process]  # (role, label) -> process

_KEEP_STEPS = 200
_SUPERSEDED_BY = 2

_Key = tuple[str, int]  # role, step
_Cells = dict[str, tuple[StepCell, float, float]]  # rank -> (cell, begin, end)


class StepRows:
    """Of one run. ``rows`` are closed; ``add`` what a process has passed, then ``close``."""

    def __init__(self) -> None:
        self.rows: dict[_Key, StepRow] = {}
        self._cells: dict[_Key, _Cells] = {}
        self._open: set[_Key] = set()

    def newest(self, num_steps: int) -> tuple[StepRow, ...]:
        """Closed steps by begin, the newest ``num_steps`` of every role."""
        rows: list[StepRow] = []
        for role in {role for role, _ in self.rows}:
            keys = sorted(k for k in self.rows if k[0] == role)[-num_steps:]
            rows.extend(self.rows[key] for key in keys)
        return tuple(sorted(rows, key=lambda row: row.begin_seconds))

    def let_go(self, role: str, label: str) -> None:
        """It ended long ago."""
        for key in [k for k, cells in self._cells.items() if k[0] == role and label in cells]:
            self._drop(key, label)

    def add(self, process: Process, closed: ClosedStep, processes: Processes) -> None:
        """A step that one process has passed."""
        window = closed.window
        if window.step is None or window.end_ns is None:
            return
        key = process.follower.identity.role, window.step
        seconds = process.follower.epoch_seconds
        cell = StepCell(process.label, window.split.as_seconds(), closed.tokens)
        cells = self._cells.setdefault(key, {})
        cells[process.label] = cell, seconds(window.begin_ns), seconds(window.end_ns)
        if key in self.rows:
            self.rows[key] = self._row(key, processes)
        else:
            self._open.add(key)

    def _row(self, key: _Key, processes: Processes) -> StepRow:
        role, step = key
        rows = [self._cells[key][label] for label in sorted(self._cells[key], key=rank_order)]
        begin = min(begin for _, begin, _ in rows)
        end = max(end for _, _, end in rows)
        active = sum(cell.split.active_seconds for cell, _, _ in rows)
        bubble = 1 - active / (len(rows) * (end - begin)) if end > begin else None
        missing = [
            label
            for (r, label), process in processes.items()
            if r == role and label not in self._cells[key] and process.step == step
        ]
        cells = tuple(cell for cell, _, _ in rows)
        return StepRow(
            step, role, begin, end, tuple(sorted(missing, key=rank_order)), bubble, cells
        )

    def close(self, processes: Processes) -> None:
        """All processes were read."""
        for key in sorted(self._open):
            role, step = key
            living = [p for (r, _), p in processes.items() if r == role and p.is_living]
            newest = max((p.step for p in living if p.step is not None), default=None)
            passed = all(p.label in self._cells[key] or (p.step or 0) > step for p in living)
            if passed or (newest is not None and newest >= step + _SUPERSEDED_BY):
                self._open.discard(key)
                self.rows[key] = self._row(key, processes)
        for role in {role for role, _ in self.rows}:
            for key in sorted(k for k in self.rows if k[0] == role)[:-_KEEP_STEPS]:
                del self.rows[key], self._cells[key]

    def _drop(self, key: _Key, label: str) -> None:
        """The row keeps what was said of the step as a whole."""
        cells, row = self._cells[key], self.rows.get(key)
        del cells[label]
        if not cells:
            self._open.discard(key)
            del self._cells[key]
            self.rows.pop(key, None)
        elif row is not None:
            kept = tuple(cell for cell in row.cells if cell.rank != label)
            self.rows[key] = replace(row, cells=kept)


def rank_order(label: str) -> tuple[int, str]:
    """Sort key: rank 2 before rank 10, processes without a rank last."""
    head = label.partition(".")[0]
    return (int(head), label) if head.isdecimal() else (1 << 31, label)
