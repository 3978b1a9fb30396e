"""A recorder for the shape ledger that stores what it receives."""

from __future__ import annotations

from dfx_agent.wire.records import LEDGER_FIELDS

Fields = dict[tuple[str, str], float]


class Notebook:
    """Stands where the recorder stands; a device tensor arrives when ``flush`` is called."""

    def __init__(self) -> None:
        self.names = [""]  # the id 0 means that there is no room
        self.ledger_names: dict[tuple[str, str], int] = {}
        self.records: list[tuple] = []
        self.pending: list = []
        self.num_errors = 0
        self.score_boundary, self.score_sources = "", frozenset()
        self.counts: dict[str, float] = {}
        self.sent: dict[str, float] = {}

    def count(self, name: str, value: float) -> None:
        self.counts[name] = self.counts.get(name, 0.0) + value

    def scalars(self, values, _step) -> None:
        self.sent.update(values)

    def at_step_end(self, act) -> None:
        act()

    def step_now(self) -> int:
        return 7

    def inspects_batches(self, _step: int) -> bool:
        return True

    def name_id(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    def emit(self, *record) -> None:
        self.records.append(record)

    def fetch(self, value, take) -> None:
        self.pending.append((value, take))

    def count_error(self) -> None:
        self.num_errors += 1

    def fields(self) -> Fields:
        return {
            (LEDGER_FIELDS[code], self.names[name].partition("/")[2]): value
            for _, _, value, _, _, _, code, _, name in self.records
        }
