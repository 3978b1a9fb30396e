"""Parquet tables, such as the history of a W&B artifact ("wandb-history"), with pyarrow."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from dfx_agent.node.logs.run import Notes, Record, UnreadableLogError
from dfx_agent.node.logs.steps import step_name
from dfx_agent.node.logs.values import numbers

MAGIC = b"PAR1"
_ROWS_AT_ONCE = 1_000


def read_parquet(path: Path, _notes: Notes) -> Iterator[Record]:
    """Raises UnreadableLogError without pyarrow, or if the file is no complete Parquet file."""
    try:
        arrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UnreadableLogError(
            f"{path} is Parquet: pip install 'dfx-agent[parquet]' (pyarrow), or write it as CSV"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE):
                names = [step_name(name) for name in batch.schema.names]
                columns = [column.to_pylist() for column in batch.columns]
                for cells in zip(*columns, strict=True):
                    yield numbers(zip(names, cells, strict=True))
    except (arrow.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UnreadableLogError(f"cannot read {path}: {reason}") from None
