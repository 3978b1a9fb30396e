"""One entrance for every kind of log: ``read("metrics.csv.gz")``."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from dfx_agent.ingest.json_lines import read_json_lines
from dfx_agent.ingest.native_keys import spell_natively
from dfx_agent.ingest.run import Run, UnreadableLogError, read_lines
from dfx_agent.ingest.table import read_table
from dfx_agent.ingest.tensorboard import read_tensorboard
from dfx_agent.ingest.trainer_state import read_trainer_state
from dfx_agent.ingest.verl_console import STEP, read_verl_console

AUTO = "auto"
READERS: Mapping[str, Callable[[Path], Run]] = {
    "verl": read_verl_console,
    "trl": read_trainer_state,
    "jsonl": read_json_lines,
    "tensorboard": read_tensorboard,
    "csv": read_table,
}

_NUM_LINES_SNIFFED = 5000
_HISTORY = '"log_history"'


def read(path: str | Path, format: str = AUTO) -> Run:  # noqa: A002 - the word of the command line
    """Rows in native keys; UnreadableLogError when the file is missing or is no log."""
    path = Path(path)
    try:
        run = READERS[_sniff(path) if format == AUTO else format](path)
    except (OSError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnreadableLogError(f"cannot read {path}: {reason}") from None
    if not run.rows:
        raise UnreadableLogError(f"no step report in {path}: name its --format")
    spell_natively(run)
    return run


def _sniff(path: Path) -> str:
    """By content first: names of logs say little."""
    if path.is_dir() or "tfevents" in path.name:
        return "tensorboard"
    names = {suffix.lower() for suffix in path.suffixes}
    if ".csv" in names:
        return "csv"
    lines = list(itertools.islice(read_lines(path), _NUM_LINES_SNIFFED))
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("{") and first.endswith("}") and _HISTORY not in first:
        return "jsonl"
    if first.startswith(("{", "[")):
        return "trl"
    if any(STEP.search(line) for line in lines):
        return "verl"
    if "," in first:
        return "csv"
    raise UnreadableLogError(f"cannot tell what {path} is: name its --format")
