"""Opens a log of any kind: ``open_logs("metrics.csv.gz")``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from dfx_agent.node.logs.console import read_console
from dfx_agent.node.logs.folders import check_readable
from dfx_agent.node.logs.json_lines import read_json_lines
from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.mlflow_folder import read_mlflow
from dfx_agent.node.logs.native_keys import NativeRows
from dfx_agent.node.logs.notebook import notebook_parts
from dfx_agent.node.logs.parquet import read_parquet
from dfx_agent.node.logs.run import NotALogError, Notes, Part, Record, Row, Run, UnreadableLogError
from dfx_agent.node.logs.sniff import kind_of
from dfx_agent.node.logs.steps import with_steps
from dfx_agent.node.logs.table import table_parts
from dfx_agent.node.logs.tensorboard import read_tensorboard
from dfx_agent.node.logs.trainer_state import read_document, read_trainer_state
from dfx_agent.node.logs.verl_console import read_verl_console

AUTO = "auto"

_Reader = Callable[[Path, Notes], Iterator[Record]]


def _one(reader: _Reader) -> Callable[[Path, KeyMap], list[Part]]:
    """The only run of a file."""
    return lambda path, _map: [Part("", partial(reader, path))]


def _console_parts(path: Path, key_map: KeyMap) -> list[Part]:
    return [Part("", lambda notes: read_console(path, notes, key_map))]


READERS: Mapping[str, Callable[[Path, KeyMap], list[Part]]] = {
    "verl": _one(read_verl_console),
    "console": _console_parts,
    "trl": _one(read_trainer_state),
    "jsonl": _one(read_json_lines),
    "json": _one(read_document),
    "tensorboard": _one(read_tensorboard),
    "csv": table_parts,
    "notebook": notebook_parts,
    "mlflow": _one(read_mlflow),
    "parquet": _one(read_parquet),
}

_CALLED = {
    "verl": "a console log of verl",
    "console": "a console log",
    "trl": "a trainer_state.json",
    "jsonl": "JSON, one object a line",
    "json": "a JSON document of records or columns",
    "tensorboard": "what TensorBoard writes",
    "csv": "a table",
    "notebook": "a notebook",
    "mlflow": "a run of MLflow",
    "parquet": "a Parquet table",
}


class Log:
    """One run of a file. ``rows`` reads it from the beginning, row by row.

    ``name`` is that of the run within its file, "" when it is alone there. ``framework`` and
    ``warnings`` are those of the latest reading: the framework is settled with the first row.
    """

    def __init__(
        self,
        path: Path,
        part: Part,
        key_map: KeyMap = NO_MAP,
        format: str = AUTO,  # noqa: A002 (the word of the command line)
    ) -> None:
        self.path = path
        self._format = format
        self.name = part.name
        self._records = part.records
        self._map = key_map
        self._notes = Notes()
        self._native: NativeRows | None = None

    @property
    def framework(self) -> str:
        return self._native.framework if self._native else ""

    @property
    def framework_name(self) -> str:
        """Name of the framework for people; empty if only common words were recognized."""
        return self.framework if self._native and self._native.is_sure else ""

    def written(self, key: str) -> str:
        """How the file writes a key of ``rows``, where the key was read by its meaning."""
        return self._native.written(key) if self._native else key

    @property
    def num_left_out(self) -> int:
        """Damaged lines and rows that the latest reading left out."""
        return self._notes.num_left_out

    @property
    def warnings(self) -> list[str]:
        return self._notes.lines

    @property
    def is_cut(self) -> bool:
        """Whether the latest reading ended before the end of the file."""
        return self._notes.is_cut

    def rows(self) -> Iterator[Row]:
        """Raises UnreadableLogError if the file is missing, is no log, or holds no report."""
        notes = self._notes = Notes()
        is_empty = True
        try:
            rows = with_steps(self._records(notes), notes, self._map.step)
            self._native = NativeRows(rows, notes, self._map)
            for row in self._native:
                is_empty = False
                yield row
            if is_empty:
                reason = notes.in_brackets or ": name its --format"
                raise NotALogError(f"no step report in {self.path}{reason}")
        except OSError as error:
            raise _unreadable(self.path, error) from None
        except UnreadableLogError as error:
            if not is_empty:
                raise
            raise _with_its_format(error, self.path, self._format, self._map) from None


def open_logs(path: str | Path, format: str = AUTO, key_map: KeyMap = NO_MAP) -> list[Log]:  # noqa: A002 - the word of the command line
    """The runs of a file, at least one; UnreadableLogError when it is missing or is no log."""
    path = Path(path)
    try:
        _check_can_be_read(path)
        kind = kind_of(path, key_map) if format == AUTO else format
        parts = READERS[kind](path, key_map)
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnreadableLogError as error:
        raise _with_its_format(error, path, format, key_map) from None
    return [Log(path, part, key_map, format) for part in parts]


def read(path: str | Path, format: str = AUTO, key_map: KeyMap = NO_MAP) -> Run:  # noqa: A002
    """The first run of a file, whole."""
    log = open_logs(path, format, key_map)[0]
    rows = list(log.rows())
    return Run(log.framework, rows, log.warnings)


def _check_can_be_read(path: Path) -> None:
    """OSError, or UnreadableLogError for what would block or never end."""
    if path.is_dir():
        check_readable(path)
    elif path.exists() and not path.is_file():
        raise UnreadableLogError(f"cannot read {path}: a pipe or device; write it to a file first")
    elif path.is_file() and not path.stat().st_size:
        raise NotALogError(f"{path} is empty")


def _with_its_format(
    error: UnreadableLogError, path: Path, named: str, key_map: KeyMap
) -> UnreadableLogError:
    """The same error; where the user named a wrong format and the right one reads it, that one."""
    if named == AUTO:
        return error
    with suppress(UnreadableLogError, OSError):
        kind = kind_of(path, key_map)
        if next(open_logs(path, AUTO, key_map)[0].rows(), None):
            message = f"no {named} report in {path}: it is {_CALLED[kind]}, use --format {kind}"
            return type(error)(message)
    return error


def _unreadable(path: Path, error: OSError) -> UnreadableLogError:
    return UnreadableLogError(f"cannot read {path}: {error.strerror or error}")
