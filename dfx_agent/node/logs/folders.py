"""What of a folder may not be read, or holds no steps: said with its reason, never empty."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from stat import S_ISREG

_SUMMARY = "wandb-summary.json"
_BINARY = ".wandb"
_NO_FILE = "a link to nothing, a pipe or a device"


def check_readable(folder: Path) -> None:
    """OSError when its names may not be listed or its files not be opened."""
    os.scandir(folder).close()
    os.stat(os.path.join(folder, "."))  # a Path has no "." at its end


def files_below(folder: Path, passed_over: Callable[[str, str], None]) -> Iterator[Path]:
    """In no order. ``passed_over`` is called with the path and the reason of what is not read."""
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
    """None for a file and for a link to one."""
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
    """None for a file that may be a log."""
    if path.name == _SUMMARY:
        return "holds the last values of a W&B run and no steps: export its history as CSV"
    if path.suffix == _BINARY:
        return "is W&B's own binary form, which is not read: export the history as CSV"
    return None
