"""Follows a growing log, and sends it to the agent in the format of a guest's records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.node.logs.key_map import NO_MAP, KeyMap
from dfx_agent.node.logs.reader import AUTO, Log, open_logs
from dfx_agent.node.logs.run import Row, UnreadableLogError
from dfx_agent.shim.recorder import Recorder
from dfx_agent.wire import Identity

# the agent reads so many values before more come: fewer than its ring holds
_NUMBER = re.compile(r"\d[\d,]*")
_MAX_VALUES_AT_ONCE = 4000
# a long log is read again when it has grown, which may cost a tenth of the time
_REST_PER_READ = 9.0

Stamp = tuple[int, int]  # (bytes, modification time in ns)


class FollowedLog:
    """One file and the run made of it. ``say`` takes one line for people, each only once.

    ``number`` distinguishes several logs of one run.

    The latest row waits for the next row, or until one reading finds the file unchanged: some
    frameworks write a step in parts. A file that became shorter, or begins with another row,
    is another attempt.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        directory: str,
        say: Callable[[str], None],
        format: str = AUTO,  # noqa: A002 (the word of the command line)
        *,
        number: int = 0,
        key_map: KeyMap = NO_MAP,
    ) -> None:
        self.path = path
        self.num_sent = 0
        self._run, self._directory, self._format = run, directory, format
        self._number = number
        self._map = key_map
        self._say = say
        self._logged: set[str] = set()
        self._recorder: Recorder | None = None
        self._first: Row | None = None
        self._attempt = 0
        self._stamp: Stamp = (-1, -1)
        self._is_settled = False
        self._next_read_seconds = 0.0

    def poll(self, drain: Callable[[], None]) -> None:
        """Send new rows; ``drain`` lets the agent read before the ring is full."""
        now = time.monotonic()
        if now < self._next_read_seconds:
            return
        try:
            stat = self.path.stat()
        except OSError as error:
            self._say_once(f"cannot read {self.path}: {error.strerror}")
            return
        stamp = stat.st_size, stat.st_mtime_ns
        is_resting = stamp == self._stamp
        if is_resting and self._is_settled:
            return
        self._stamp, self._is_settled = stamp, is_resting
        if self._recorder is None:
            self._recorder_of("")  # seen as a run before its first row
        try:
            log = self._open()
            if self._send(log, drain, is_resting=is_resting):
                self._begin_again()
                self._send(log, drain, is_resting=is_resting)
            for warning in log.warnings:
                self._say_once(f"{self.path}: {warning}")
        except UnreadableLogError as error:
            self._say_once(str(error))
        self._next_read_seconds = now + _REST_PER_READ * (time.monotonic() - now)

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.finish()

    def _open(self) -> Log:
        logs = open_logs(self.path, self._format, self._map)
        if len(logs) > 1:
            others = len(logs) - 1
            self._say_once(
                f"{self.path}: only {logs[-1].name} is followed; {others} more are there"
            )
        return logs[-1]

    def _send(self, log: Log, drain: Callable[[], None], *, is_resting: bool) -> bool:
        """Send the rows not yet sent. True, without sending any, if this is another log."""
        num_values = num_seen = 0
        for step, values in _finished(log.rows(), is_resting=is_resting):
            num_seen += 1
            if num_seen == 1 and self._begins_otherwise((step, values)):
                return True
            if num_seen <= self.num_sent:
                continue
            self._recorder_of(log.framework).scalars(values, step)
            self.num_sent += 1
            num_values += len(values)
            if num_values >= _MAX_VALUES_AT_ONCE:
                drain()
                num_values = 0
        if num_values:
            drain()
        # the latest row may have been sent while the file was unchanged
        return num_seen + (not is_resting) < self.num_sent

    def _begins_otherwise(self, row: Row) -> bool:
        """A log that was rotated may already hold more rows than the one before it had."""
        first, self._first = self._first or row, row
        step, values = row
        is_same = step == first[0] and all(
            repr(values[key]) == repr(value) for key, value in first[1].items() if key in values
        )
        # the only row sent so far may have been extended
        return self.num_sent > 1 and not is_same

    def _begin_again(self) -> None:
        self._say_once(f"{self.path} starts again: read as a restart of the job")
        self.close()
        self._recorder = None
        self._attempt += 1
        self.num_sent = 0

    def _recorder_of(self, framework: str) -> Recorder:
        if self._recorder is None:
            identity = Identity(
                run=self._run,
                role=LOG_ROLE,
                framework=framework,
                rank=self._number,
                attempt=self._attempt,
            )
            self._recorder = Recorder(self._directory, identity)
        elif framework != self._recorder.identity.framework:
            self._recorder.update_identity({"framework": framework})
        return self._recorder

    def _say_once(self, line: str) -> None:
        """Once, and again when a count in it has grown tenfold."""
        size = _NUMBER.sub(lambda number: "0" * len(number.group()), line)
        if size not in self._logged:
            self._logged.add(size)
            self._say(line)


def _finished(rows: Iterable[Row], *, is_resting: bool) -> Iterator[Row]:
    """The complete rows: without the latest row of a file that is being written."""
    latest: Row | None = None
    for row in rows:
        if latest is not None:
            yield latest
        latest = row
    if latest is not None and is_resting:
        yield latest
