"""Log lines on stderr in one format: each line begins with ``dfx-agent:``.

``run`` shares its terminal with the job, so the default level is warning.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress

LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEVEL = "warning"
VARIABLE = "DFX_LOG_LEVEL"

_LOGGER = logging.getLogger("dfx_agent")
_MAX_PLACES = 256


class _Prefixed(logging.Formatter):
    """Put ``dfx-agent:`` before every line, also of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(f"dfx-agent: {line}" for line in super().format(record).splitlines())


class _Stderr(logging.Handler):
    """Write to the current ``sys.stderr``. A failing stderr does not stop the agent."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def configure(level: str | None, environ: Mapping[str, str]) -> None:
    """Log to stderr from ``level`` on. The default is $DFX_LOG_LEVEL, then warning."""
    asked = level or environ.get(VARIABLE, "").lower() or DEFAULT_LEVEL
    handler = _Stderr()
    handler.setFormatter(_Prefixed("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _LOGGER.handlers[:] = [handler]
    _LOGGER.propagate = False
    _LOGGER.setLevel((asked if asked in LEVELS else DEFAULT_LEVEL).upper())
    if asked not in LEVELS:
        _LOGGER.warning("%s=%s: use one of %s", VARIABLE, asked, ", ".join(LEVELS))


class OncePerPlace:
    """Logs an error with its traceback once for each line of code that raises it.

    If the error has ``is_one_line``, it logs one line, once for each text.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)
        self._places: set[tuple[str, str, str]] = set()

    def error(self, what: str, error: BaseException) -> None:
        """Log that ``what`` failed; at level debug if this place was logged before."""
        is_one_line = getattr(error, "is_one_line", False)
        key = what, type(error).__name__, str(error) if is_one_line else place_of(error)
        if key in self._places or len(self._places) >= _MAX_PLACES:
            self._logger.debug("%s failed again (%s)", _plain(what), _plain(str(error)))
            return
        self._places.add(key)
        if is_one_line:
            self._logger.error("%s: %s", _plain(what), _plain(str(error)))
            return
        trace = "".join(traceback.format_exception(error)).rstrip()
        self._logger.error("%s failed\n%s", _plain(what), _plain(trace))


def _plain(text: str) -> str:
    """Escape bytes that are not UTF-8, such as in file names: stderr may refuse them."""
    return text.encode("utf-8", "backslashreplace").decode()


def place_of(error: BaseException) -> str:
    """File and line that raised the error, as in "fold.py:120"; "" without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
