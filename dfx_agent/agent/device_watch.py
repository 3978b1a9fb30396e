"""Devices of this machine, the ranks that use them, and their activity by stage of a rank."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from dfx_agent.agent.local_run import LocalRun
from dfx_agent.facts.run import Reported
from dfx_agent.facts.seat import LOG_ROLE
from dfx_agent.node.device_stages import Figures, Sample, merged
from dfx_agent.node.devices.owners import VARIABLES, ProcessDevices, devices_of
from dfx_agent.node.devices.registry import READ_EVERY_SECONDS, DeviceReader, DeviceReading
from dfx_agent.node.host.processes import environment_values, is_in_container, sees_host_pids
from dfx_agent.node.memory import device_rows
from dfx_agent.node.process import Process
from dfx_agent.snapshot import DeviceRow
from dfx_agent.snapshot.faults import Faults

_MOST_REPORTED = 64
_JUST_NOW_NS = 60 * 10**9


class DeviceProblemError(Exception):
    """A value of a present device cannot be read; the text names the value and a remedy."""

    is_one_line = True  # one line for people: its traceback says nothing more


class DeviceWatch:
    """All kinds of devices; ``look`` at each reading of the agent, which waits for none of them."""

    def __init__(self, readers: Sequence[DeviceReader], faults: Faults) -> None:
        self._readers = readers
        self._faults = faults
        self._rows: dict[str, tuple[DeviceRow, ...]] = {}
        self._num_results: dict[str, int] = {}
        self._due = 0.0
        self._with_problems: set[str] = set()
        self._sights: dict[Process, ProcessDevices] = {}
        self._node = os.uname().nodename
        self._sees_host_pids = sees_host_pids()

    @property
    def rows(self) -> tuple[DeviceRow, ...]:
        """What was read last, of all kinds."""
        return tuple(row for rows in self._rows.values() for row in rows)

    def start(self) -> None:
        for reader in self._readers:
            reader.start()

    def stop(self) -> None:
        """Waits for nobody."""
        for reader in self._readers:
            reader.stop()

    def look(self, now: float, runs: Iterable[LocalRun]) -> None:
        """Take what is new; ``now`` is monotonic."""
        is_due = now >= self._due
        if is_due:
            self._due = now + READ_EVERY_SECONDS
        fresh = [
            reading
            for reader in self._readers
            if is_due or reader.num_results != self._num_results.get(reader.name)
            if (reading := self._new_reading(reader)) is not None
        ]
        if fresh:
            self._note_problems()
            with self._faults.guard("device", what="stages"):
                self._share(runs, fresh)

    def _new_reading(self, reader: DeviceReader) -> DeviceReading | None:
        """The latest reading of ``reader``; None if it has no new result."""
        before, self._num_results[reader.name] = (
            self._num_results.get(reader.name),
            reader.num_results,
        )
        rows: tuple[DeviceRow, ...] = ()
        reading = None
        with self._faults.guard("device", what=reader.name):
            reading = reader.latest_reading()
            rows = reading.rows
        self._rows[reader.name] = rows
        return reading if reading and rows and reader.num_results != before else None

    def _note_problems(self) -> None:
        """Of each device that is read and is not well: a fault of its own, until it is well."""
        problems = {row.device: row.problems for row in self.rows if row.problems}
        for device in sorted(problems.keys() | self._with_problems):
            with self._faults.guard("device", what=device):
                if device in problems:
                    raise DeviceProblemError("; ".join(problems[device]))
        self._with_problems = set(problems)

    def _share(self, runs: Iterable[LocalRun], fresh: Sequence[DeviceReading]) -> None:
        rows = [row for row in self.rows if row.is_accelerator]
        sights = {}
        for fold in runs:
            users: dict[str, list[tuple[str, str]]] = {}
            for (role, label), process in fold.processes.items():
                if role == LOG_ROLE or not rows:
                    continue
                before = process.devices.names if _lived_just_now(process) else ()
                if process.is_living:
                    sights[process] = self._use(process, rows)
                    _add_sample(process, fresh)
                now = process.devices.names if process.is_living else ()
                for device in dict.fromkeys((*before, *now)):
                    users.setdefault(device, []).append((role, label))
            fold.reported = self._reported(fold.reported, rows, users)
        self._sights = sights

    def _use(self, process: Process, rows: Sequence[DeviceRow]) -> ProcessDevices:
        """Note which of them it uses now."""
        sight = self._sight(process)
        names = devices_of(sight, rows)
        model = next((row.model for row in rows if row.device in names), "")
        process.devices.use(names, _own_bytes(sight, rows), model)
        process.memory.note_driver(process.devices.own_bytes, process.gauges)
        return sight

    def _sight(self, process: Process) -> ProcessDevices:
        """The devices of a process. The start environment is fixed, the used devices can change."""
        sight = self._sights.get(process)
        used = [row.device for row in device_rows(process.gauges)]
        visible = dict(process.follower.layout.visible)
        if sight is not None and list(sight.used) == used and sight.reported == visible:
            return sight
        pid = process.follower.pid or 0 if self._sees_host_pids else 0
        return ProcessDevices(
            pid, environment_values(process.pid, VARIABLES), is_in_container(process.pid), used,
            process.registered_as.local_rank, visible,
        )  # fmt: skip

    def _reported(
        self,
        earlier: tuple[Reported, ...],
        rows: Iterable[DeviceRow],
        users: dict[str, list[tuple[str, str]]],
    ) -> tuple[Reported, ...]:
        """``earlier`` and all later events, with the ranks that used the device at that time."""
        latest_seconds = max((event.time_seconds for event in earlier), default=0.0)
        fresh = [
            Reported(
                event.device, event.name, event.meaning, event.time_seconds, self._node,
                tuple(users.get(event.device, ())),
            )
            for row in rows
            for event in row.events
            if event.time_seconds > latest_seconds
        ]  # fmt: skip
        return (*earlier, *fresh)[-_MOST_REPORTED:]


def _lived_just_now(process: Process) -> bool:
    """Whether the process lived just now: a failing device kills its processes before its event."""
    return process.is_living or time.monotonic_ns() - process.last_alive_ns < _JUST_NOW_NS


def _own_bytes(sight: ProcessDevices, rows: Iterable[DeviceRow]) -> dict[str, float]:
    """Bytes that the process uses on each device, by the driver."""
    return {
        row.device: user.used_bytes
        for row in rows
        for user in row.processes
        if user.pid == sight.pid and user.used_bytes is not None
    }


def _add_sample(process: Process, fresh: Sequence[DeviceReading]) -> None:
    """Of all devices that the process uses and that were read just now."""
    for reading in fresh:
        used = [row for row in reading.rows if row.device in process.devices.names]
        if used and reading.begin_ns < reading.end_ns:
            own = process.devices.own_bytes
            reasons = tuple(dict.fromkeys(why for row in used for why in row.throttles))
            figures = merged([_figures(row, own.get(row.device)) for row in used])
            process.devices.add(Sample(reading.begin_ns, reading.end_ns, figures, reasons))


def _figures(row: DeviceRow, own_bytes: float | None) -> Figures:
    clock = row.clock_hertz.get("sm")
    return Figures(
        row.utilization_ratio,
        row.active_ratio.get("sm"),
        row.active_ratio.get("tensor"),
        row.power_watts,
        row.used_bytes if own_bytes is None else own_bytes,
        clock,
        None if clock is None else float(bool(row.throttles)),
    )
