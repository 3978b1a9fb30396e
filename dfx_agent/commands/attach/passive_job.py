"""The last resort to observe a job: from outside, without a guest in it.

``/proc`` shows what its processes do and need. py-spy samples their stacks now and then. The logs
that they write are followed as by ``watch``. All values are marked ``source="passive"``.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from dfx_agent.agent.agent import Agent
from dfx_agent.agent.config import Config
from dfx_agent.attach import passive
from dfx_agent.attach.discover import DiscoveredJob, Member
from dfx_agent.base.text import whole_number
from dfx_agent.commands.serve.service import Service
from dfx_agent.commands.watch.followed_log import FollowedLog
from dfx_agent.node.logs.reader import open_logs
from dfx_agent.node.logs.run import UnreadableLogError
from dfx_agent.node.passive import OutsideProcess
from dfx_agent.node.segments.stacks import dump_with_py_spy, py_spy, stage_of
from dfx_agent.wire import Identity
from dfx_agent.wire.layout import UNKNOWN

SEEN = "state, CPU, memory, threads"
INSTALL_PY_SPY = "pip install 'dfx-agent[passive]' for stacks"

_POLL_SECONDS = 1.0
_SEARCH_EVERY_SECONDS = 10.0
_STACK_EVERY_SECONDS = 5.0
_MAX_LOGS = 8
_STATE = "trainer_state.json"
_IS_METRICS = re.compile(r"tfevents[^/]*$|\.jsonl$|trainer_state\.json$")

Say = Callable[[str], None]


def serve(
    job: DiscoveredJob, run: str | None, config: Config, say: Say, pause: Callable[[float], bool]
) -> int:
    """Serve until ``pause`` returns True. Segments of logs are in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="dfx-passive-") as directory:
        service = Service(dataclasses.replace(config, directory=directory))
        watch = _Watch(job, run or job.run, service.agent, directory, say)
        stacks = _Stacks(watch, say)
        service.start()
        try:
            watch.poll()
            say(f"page {service.url}/  metrics {service.url}/metrics")
            stacks.start()
            while not pause(_POLL_SECONDS):
                watch.poll()
        finally:
            stacks.stop()
            watch.close()
            service.stop()
    return 0


class _Watch:
    """Processes and logs of one job, as they come."""

    def __init__(
        self, job: DiscoveredJob, run: str, agent: Agent, directory: str, say: Say
    ) -> None:
        self._job, self._run, self._agent = job, run, agent
        self._say = say
        self._processes: dict[Member, OutsideProcess] = {}
        self._with_stack: set[Member] = set()
        self._logs = _Logs(run, directory, say)
        self._next_search = 0.0
        self._logged: set[str] = set()

    @property
    def with_stack(self) -> list[OutsideProcess]:
        """Living processes whose memory may be read."""
        members = self._with_stack.copy()
        found = (self._processes[member] for member in members)
        return [process for process in found if process.is_living]

    def poll(self) -> None:
        members = self._job.members()
        new = [member for member in members if member not in self._processes]
        for member in new:
            self._processes[member] = _outside(member, self._run)
            self._say(f"{member}: seen from outside ({SEEN})")
        if new:
            self._agent.observe_outside(self._run, list(self._processes.values()))
        if new or time.monotonic() >= self._next_search:
            self._search(members)
            self._next_search = time.monotonic() + _SEARCH_EVERY_SECONDS
        self._logs.poll(self._agent.poll)

    def close(self) -> None:
        self._logs.close()

    def _search(self, members: Iterable[Member]) -> None:
        found: list[str] = []
        for member in members:
            sight = passive.find_logs(member.process)
            found += sight.logs
            if sight.has_stack:
                self._with_stack.add(member)
            for line in _shortcomings(sight):
                self._say_once(f"{member}: {line}")
        self._logs.adopt(found)
        if not self._logs.num_followed:
            self._say_once("no log of the job is found yet; name one: dfx-agent watch FILE")

    def _say_once(self, line: str) -> None:
        if line not in self._logged:
            self._logged.add(line)
            self._say(line)


class _Logs:
    """Logs that contain step reports, shown as ranks of the run."""

    def __init__(self, run: str, directory: str, say: Say) -> None:
        self._run, self._directory, self._say = run, directory, say
        self._followed: dict[str, FollowedLog] = {}
        self._state: FollowedLog | None = None
        self._empty: dict[str, int] = {}
        self._left_out: set[str] = set()

    @property
    def num_followed(self) -> int:
        return len(self._followed) + (self._state is not None)

    def adopt(self, paths: Iterable[str]) -> None:
        """Follow what is new; each path that is passed over is named once."""
        paths = list(dict.fromkeys(paths))
        for path in paths:
            if os.path.basename(path) != _STATE and path not in self._followed:
                self._adopt(path)
        states = [path for path in paths if os.path.basename(path) == _STATE]
        if states and not self._followed:
            self._follow_state(max(states, key=_modified_seconds))

    def _adopt(self, path: str) -> None:
        if not self._has_reports(path):
            return
        if len(self._followed) < _MAX_LOGS:
            self._followed[path] = self._follow(path, len(self._followed))
        elif path not in self._left_out:
            self._left_out.add(path)
            self._say(f"{path} is not followed ({_MAX_LOGS} logs are): dfx-agent watch {path}")

    def _follow_state(self, path: str) -> None:
        """Follow the latest checkpoint in place of the last one: each holds the full history."""
        if self._state is not None:
            self._state.path = Path(path)
        elif self._has_reports(path):
            self._state = self._follow(path, _MAX_LOGS)

    def _follow(self, path: str, number: int) -> FollowedLog:
        self._say(f"following {path}")
        return FollowedLog(Path(path), self._run, self._directory, self._say, number=number)

    def _has_reports(self, path: str) -> bool:
        """Whether any step report is in it by now; asked again when it has grown."""
        size = _stat(path).st_size
        if self._empty.get(path) == size:
            return False
        if _holds_reports(path):
            return True
        if path not in self._empty:
            self._say(f"{path} holds no step report yet")
        self._empty[path] = size
        return False

    def poll(self, drain: Callable[[], None]) -> None:
        for log in self._all():
            log.poll(drain)

    def close(self) -> None:
        for log in self._all():
            log.close()

    def _all(self) -> list[FollowedLog]:
        return [*self._followed.values(), *([self._state] if self._state else [])]


class _Stacks:
    """Asks py-spy for one process after the other, on a thread of its own: it may take long."""

    def __init__(self, watch: _Watch, say: Say) -> None:
        self._watch, self._say = watch, say
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="dfx-stacks", daemon=True)

    def start(self) -> None:
        if py_spy() is not None:
            self._thread.start()
        elif self._watch.with_stack:
            self._say(f"no stacks: {INSTALL_PY_SPY}")

    def stop(self) -> None:
        """A dump that hangs is left to its time limit: the thread goes with us."""
        self._stop.set()

    def _loop(self) -> None:
        while True:
            for process in self._watch.with_stack:
                stacks = dump_with_py_spy(process.pid)
                process.add_stack(None if stacks is None else stage_of(stacks))
            if self._stop.wait(_STACK_EVERY_SECONDS):
                return


def sees(sight: passive.ReadableLogs) -> tuple[str, str]:
    """(what would be seen, the one thing that would show more) of one process."""
    parts = [SEEN]
    has_py_spy = py_spy() is not None
    if sight.has_stack and has_py_spy:
        parts.append("stacks")
    parts.append(f"logs: {', '.join(sight.logs[:_MAX_LOGS])}" if sight.logs else "no log found")
    if sight.unreadable:
        parts.append(f"not {', '.join(sight.unreadable)}")
    return "; ".join(parts), sight.remedy or ("" if has_py_spy else INSTALL_PY_SPY)


def _shortcomings(sight: passive.ReadableLogs) -> Iterable[str]:
    if sight.unreadable:
        what = ", ".join(sight.unreadable)
        yield f"may not be read: {what}" + (f"; {sight.remedy}" if sight.remedy else "")
    for path in sight.too_large:
        yield f"{path} is larger than 256 MiB: dfx-agent watch {path}"
    for folder in sight.cut:
        yield f"{folder} holds many files, only the first were looked at: dfx-agent watch FILE"


def _outside(member: Member, run: str) -> OutsideProcess:
    process = member.process
    number = process.environment.get
    identity = Identity(
        run=run,
        role=member.role or "driver",
        host=os.uname().nodename,
        rank=UNKNOWN if member.rank is None else member.rank,
        local_rank=_number(number("LOCAL_RANK", "")),
        world_size=_number(number("WORLD_SIZE", "")),
    )
    return OutsideProcess(identity, process.pid, process.start_ticks)


def _number(text: str) -> int:
    number = whole_number(text)
    return UNKNOWN if number is None else number


def _holds_reports(path: str) -> bool:
    """Text is a log by keys that are known: to a reader any line with a comma is a table."""
    try:
        log = open_logs(path)[-1]
        next(log.rows(), None)
    except UnreadableLogError:
        return False
    return bool(log.framework) or _IS_METRICS.search(path) is not None


def _modified_seconds(path: str) -> float:
    return _stat(path).st_mtime


def _stat(path: str) -> os.stat_result:
    """All zeros when it is gone."""
    try:
        return os.stat(path)
    except OSError:
        return os.stat_result((0,) * 10)
