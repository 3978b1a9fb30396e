"""What the guest says of one batch at one boundary of the ledger, as it is read."""

from __future__ import annotations

from typing import NamedTuple


class LedgerRecord(NamedTuple):
    """One number about a batch; ``name`` is "boundary/column", ``field`` as in LEDGER_FIELDS.

    ``crossing`` numbers the batches of a process, each has ``num_records``.
    """

    name: str
    field: int
    value: float
    step: int
    crossing: int
    num_records: int
    time_ns: int
