"""Samples which code of the job its main thread runs, to name code that is in no stage.

The guest's watch thread takes about one sample a second and counts samples by code location. It
installs nothing in the job's thread.
"""

from __future__ import annotations

import os
import threading
from types import CodeType
from typing import Any

from dfx_agent.shim.frames import lines_of
from dfx_agent.wire.records import CODE_COUNTER, KIND_MASK, STAGE

_MAX_PLACES, _MAX_CALLS, _MAX_CHARS = 48, 4, 24
_STDLIB = os.path.dirname(os.__file__)
_FOREIGN = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# the code of an attached guest has file names "<attached>/..."
_GUEST = os.path.dirname((lambda: None).__code__.co_filename)
_DATA_LOADER = f"torch{os.sep}utils{os.sep}data{os.sep}"
_WHOLE_STEP = "step"  # a stage around everything does not show where the time goes


class CodeSampler:
    """Counts samples by location, ``code/STATE|LIBRARY|CALL>CALL``, for at most 48 locations.

    STATE is "marked" inside a stage or a wait, else "unmarked". LIBRARY is "data" inside a
    DataLoader, else empty. Calls are functions of the job, outermost first, as ``NAME FILE:LINE``.
    """

    def __init__(self) -> None:
        self._places: set[str] = set()

    def sample(self, writer: Any) -> None:
        """One sample of the main thread."""
        ident = threading.main_thread().ident
        calls, library = _calls(lines_of(ident)) if ident is not None else ([], "")
        if not calls:
            return
        state = "marked" if _is_marked(writer) else "unmarked"
        place = f"{state}|{library}|{'>'.join(calls)}"
        if place in self._places or len(self._places) < _MAX_PLACES:
            self._places.add(place)
            writer.count(CODE_COUNTER + place, 1.0)


def _is_marked(writer: Any) -> bool:
    """Whether a stage or a wait is open in any thread."""
    rows = writer.open_rows()
    return any(row[8] & KIND_MASK != STAGE or writer.name_of(row[9]) != _WHOLE_STEP for row in rows)


def _calls(lines: list[tuple[CodeType, int | None]]) -> tuple[list[str], str]:
    """The outermost functions of the job, and "data" if a DataLoader is on the stack."""
    is_loading = any(_DATA_LOADER in code.co_filename for code, _ in lines)
    own = [(code, line) for code, line in reversed(lines) if _is_own(code)]
    calls = [
        f"{code.co_name[:_MAX_CHARS]} {os.path.basename(code.co_filename)[:_MAX_CHARS]}:{line or 0}"
        for code, line in own[:_MAX_CALLS]
    ]
    return calls, "data" if is_loading else ""


def _is_own(code: CodeType) -> bool:
    """Whether the code is a named function of the job, not of a library."""
    file, name = code.co_filename, code.co_name
    is_foreign = file.startswith((_STDLIB, "<", _GUEST)) or any(part in file for part in _FOREIGN)
    return not is_foreign and (name[:1] != "<" or name == "<module>")
