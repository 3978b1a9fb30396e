"""Finds files of a folder that cannot be read or hold no steps, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISREG

_SUMMARY = "wandb-summary.json"
_BINARY = ".wandb"
_NO_FILE = "a link to nothing, a pipe or a device"


def check_readable(folder: Path) -> None:
    """Raises OSError if the folder cannot be listed or its files cannot be opened."""
    os.scandir(folder).close()
    os.stat(os.path.join(folder, "."))  # a Path has no "." at its end


def files_below(folder: Path, passed_over: Callable[[str, str], None]) -> Iterator[Path]:
    """Files in no particular order. ``passed_over``: called with path and reason of other files."""
    for where, folders, names in os.walk(folder, onerror=lambda e: passed_over(*describe(e))):
        try:
            check_readable(Path(where))
        except OSError as error:
            folders.clear()
            passed_over(where, why_unread(error))
            continue
        for path in (Path(where, name) for name in names):
            if (why := why_no_file(path)) is None:
                yield path
            else:
                passed_over(str(path), why)


def why_no_file(path: Path) -> str | None:
    """Why the path is no file; None for a file and for a link to a file."""
    try:
        return None if S_ISREG(path.stat().st_mode) else _NO_FILE
    except FileNotFoundError:
        return _NO_FILE
    except OSError as error:
        return why_unread(error)


def describe(error: OSError) -> tuple[str, str]:
    """(path, why it cannot be read)."""
    return str(error.filename), why_unread(error)


def why_unread(error: OSError) -> str:
    return f"cannot be read: {error.strerror}"


def why_no_steps(path: Path) -> str | None:
    """Why the file cannot be a log; None if it may be one."""
    if path.name == _SUMMARY:
        return "holds the last values of a W&B run and no steps: export its history as CSV"
    if path.suffix == _BINARY:
        return "is W&B's own binary form, which is not read: export the history as CSV"
    return None
