"""Recent activity of one process, as far as hang detection needs it.

That is: when the process last made progress, how long its stages take, and which collective it has
reached in each process group. Times are nanoseconds of the host's monotonic clock.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Any, NamedTuple

from dfx_agent.base.boot_clock import SECONDS_PER_TICK
from dfx_agent.facts.flight import FlightRecord
from dfx_agent.facts.rank import Arrival, ExitStatus, RankFacts
from dfx_agent.facts.stacks import ProcessStacks
from dfx_agent.facts.steps import PEER_WAITS
from dfx_agent.node.host.joined_thread import JoinWatch
from dfx_agent.node.host.ray_worker import RayWorker
from dfx_agent.node.kernel_look import KernelLook
from dfx_agent.node.process import Process
from dfx_agent.node.segments.flight import read_flight
from dfx_agent.node.segments.stacks import read_stacks
from dfx_agent.node.time.account import SpanEvent
from dfx_agent.wire.records import COLLECTIVES, DDP_GRADIENTS, PEER, REMOTE_WAIT, STAGE, WAIT
from dfx_agent.wire.segment import FLIGHT_SUFFIX

_KEEP_DURATIONS = 64
_KEEP_GAPS, _SHORTEST_GAP_NS, _REMEMBER_GAPS_NS = 256, 10**9, 3600 * 10**9
_KEEP_OPERATIONS = 256
_MAX_COLLECTIVES = 512
_LOOK_EVERY_NS = 10**9
_QUIET_SECONDS = 2.0
# a process that has been still or waiting for less than this is no suspect yet
_SUSPECT_AFTER_NS = 10 * 10**9


class Ending(NamedTuple):
    """How a process ended."""

    gone_ns: int  # when the agent noticed that it was gone
    is_outlived: bool | None  # whether another rank was still alive then
    exit_status: ExitStatus | None
    was_oom_killed: bool
    alive_ns: int | None = None  # its last sign of life
    is_ray_worker: bool = False
    was_ended_by_ray: bool = False


class Track:
    """Progress of one process; call ``observe`` after each poll."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.moved_ns = process.follower.begin_ns
        self.durations: dict[str, deque[int]] = {}
        self.collective_durations: dict[str, deque[int]] = {}
        self.reached: dict[str, int] = {}
        self.alive_ns: int | None = None
        self.gone_ns: int | None = None
        self.there_ns: int | None = None
        self.is_ending = False
        self.is_outlived: bool | None = None
        self.num_still = 0  # consecutive polls without progress
        self.exit_status: ExitStatus | None = None
        self._operations: dict[tuple[str, int], str] = {}
        self.group_moved_ns: dict[str, int] = {}
        self._enqueued: dict[str, int] = {}
        self._last_end_ns = 0
        self._num_learned = 0
        self._spans: frozenset[int] = frozenset()
        self._was_idle = False
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_KEEP_GAPS)  # end, length
        self._num_tokens: float | None = None
        self._joins = JoinWatch()
        self._looked_ns = 0
        self._stacks: ProcessStacks | None = None
        self._flight: tuple[tuple[int, int], FlightRecord | None] = (0, 0), None
        self._kernel = KernelLook(process)
        self._ray = RayWorker(process.pid, is_living=process.state == "live")
        # facts about the latest records, and what they were made from
        self._latest: tuple[tuple[object, ...], RankFacts] | None = None

    @property
    def arrivals(self) -> list[Arrival]:
        """Collectives and waits for peers in which the process is blocked now."""
        events = self.process.inflight
        parents = {event.parent for event in events if event.kind in COLLECTIVES}
        found = [arrival_of(event) for event in events if event.kind in COLLECTIVES]
        waits = [e for e in events if e.kind == WAIT and e.name in PEER_WAITS]
        found += [Arrival(e.name, "", None, e.begin_ns) for e in waits if e.span not in parents]
        return found

    @property
    def asks_since_ns(self) -> int | None:
        """Since when the process has waited for a server's answer; None if no such wait is open."""
        return min((e.begin_ns for e in self.process.inflight if _is_remote(e)), default=None)

    @property
    def stages(self) -> list[str]:
        """Open stages, outermost first."""
        events = [event for event in self.process.inflight if event.kind == STAGE]
        return [event.name for event in sorted(events, key=lambda e: (e.begin_ns, e.span))]

    @property
    def seconds_before_guest(self) -> float:
        """Age of the process when its guest was loaded; large after an attach."""
        follower = self.process.follower
        return follower.begin_ns / 1e9 - follower.preamble.start_ticks * SECONDS_PER_TICK

    @property
    def step_durations(self) -> list[int]:
        """Durations of the latest finished steps, in nanoseconds."""
        windows = [step.window for step in self.process.windows]
        return [w.end_ns - w.begin_ns for w in windows if w.end_ns is not None]

    @property
    def is_blocked(self) -> bool:
        """Whether the process only waits for peers: no innermost open span is a stage."""
        events = self.process.inflight
        parents = {event.parent for event in events}
        works = any(event.kind == STAGE and event.span not in parents for event in events)
        helped = self.process.thread_moves.is_helper
        waits = any(event.kind == WAIT or not helped(event.thread) for event in events)
        return bool(self.arrivals) and waits and not works

    def latest_facts(self, now_ns: int) -> RankFacts:
        """Facts at ``now_ns``, or earlier ones if the process has recorded nothing since then.

        Everything that comes from records is current. Use it only while no judge must check the
        rank: fields that depend on the clock or on the kernel may be out of date.
        """
        process = self.process
        state = (
            process.num_polls_with_records, process.step,
            process.label, process.attempt, process.state,
        )  # fmt: skip
        if self._latest is None or self._latest[0] != state:
            self._latest = state, self.facts(now_ns, looks_closer=False)
        return self._latest[1]

    def facts(self, now_ns: int, *, looks_closer: bool = True) -> RankFacts:
        """Everything known at ``now_ns``; with ``looks_closer`` also stacks and kernel state."""
        process, windows = self.process, self.process.windows
        follower, stacks, is_stopped = process.follower, None, self._kernel.is_stopped
        if looks_closer:
            stacks, is_stopped = self.look_closer(now_ns)
        facts = RankFacts(
            label=process.label,
            rank=follower.identity.rank,
            pid=process.pid,
            parent_pid=follower.parent_pid,
            attempt=process.attempt,
            world_size=follower.identity.world_size,
            state=process.state,
            now_ns=now_ns,
            now_seconds=follower.epoch_seconds(now_ns),
            begin_ns=follower.begin_ns,
            moved_ns=min(self.moved_ns, now_ns),  # records may be newer than the clock value
            others_moved_ns=min(process.thread_moves.others_ns, now_ns),
            group_moved_ns=dict(self.group_moved_ns),
            last_event_ns=process.last_event_ns,
            seconds_before_guest=self.seconds_before_guest,
            step=process.step,
            last_step=windows[-1].window.step if windows else process.step,
            num_steps=len(windows),
            step_durations=tuple(self.step_durations),
            stages=tuple(self.stages),
            arrivals=tuple(self.arrivals),
            is_blocked=self.is_blocked,
            asks_since_ns=self.asks_since_ns,
            num_still=self.num_still,
            has_groups=bool(process.groups),
            reached=dict(self.reached),
            operations=dict(self._operations),
            is_stopped=is_stopped,
            is_ray_worker=self._ray.is_one,
            step_seconds=self._step_seconds(now_ns),
            stacks=stacks,
            flight=self.recorded(),
            joining=self._joins.look(process.pid) if self._may_join(now_ns) else None,
            **self._reported(),
            **self._usual(now_ns),
            **self._from_kernel(now_ns),
        )
        return facts if self.gone_ns is None else self._with_ending(facts)

    def _reported(self) -> dict[str, Any]:
        """Fields of RankFacts that come from its latest records."""
        process = self.process
        opened = sorted(process.inflight, key=lambda event: event.span)
        return {
            "is_suspended": self.is_suspended,
            "open_spans": tuple(event.name for event in opened),
            "opened_ns": tuple(event.begin_ns for event in opened),
            "reported_step": process.latest_step,
            "queue_depth": dict(process.queues),
        }

    def _usual(self, now_ns: int) -> dict[str, Any]:
        """Fields of RankFacts: usual durations of this rank, in nanoseconds and seconds."""
        return {
            "stage_durations": {stage: tuple(ns) for stage, ns in self.durations.items()},
            "collective_durations": {k: tuple(ns) for k, ns in self.collective_durations.items()},
            "longest_gap_seconds": self.longest_gap_seconds(now_ns),
        }

    def _from_kernel(self, now_ns: int) -> dict[str, Any]:
        """Fields of RankFacts that come from the kernel."""
        kernel = self._kernel
        return {
            "stopped_seconds": kernel.stopped_seconds(now_ns, self.moved_ns),
            "is_idle": kernel.is_idle(now_ns),
            "is_at_work": kernel.is_at_work(self.moved_ns),
            "processor_share": kernel.processor_share(self.moved_ns),
        }

    def _with_ending(self, facts: RankFacts) -> RankFacts:
        return replace(
            facts,
            alive_ns=self.alive_ns,
            gone_ns=self.gone_ns,
            there_ns=self.there_ns,
            is_ending=self.is_ending,
            is_outlived=self.is_outlived,
            exit_status=self.exit_status,
            was_oom_killed=self.process.memory.was_oom_killed,
            was_ended_by_ray=self._ray.was_ended_by_ray,
            failure=self.process.follower.failure,
            thread_failure=self.process.follower.thread_failure,
        )

    def needs_check(self, now_ns: int) -> bool:
        """Whether a judge must check the process: it is gone, or still or waiting for 10 s."""
        before_ns = now_ns - _SUSPECT_AFTER_NS
        if not self.process.is_living or self.moved_ns <= before_ns:
            return True
        if not self.process.inflight:
            return False
        asks_since_ns = self.asks_since_ns
        return (asks_since_ns is not None and asks_since_ns <= before_ns) or any(
            arrival.begin_ns <= before_ns for arrival in self.arrivals
        )

    def _may_join(self, now_ns: int) -> bool:
        is_quiet = self.moved_ns <= now_ns - _SUSPECT_AFTER_NS
        return is_quiet and self.process.state == "live" and not self.arrivals

    def observe(self, now_ns: int) -> None:
        """Update from the records of the last poll."""
        process = self.process
        if process.is_living or self.gone_ns is None:
            before_ns = self.moved_ns
            if process.num_polls_with_records != self._num_learned:
                self._num_learned = process.num_polls_with_records
                self._learn_stages()
                self._learn_collectives()
                self._note_move()
                if self._was_idle and self.moved_ns - before_ns >= _SHORTEST_GAP_NS:
                    self._gaps.append((self.moved_ns, self.moved_ns - before_ns))
                self._was_idle = not self.stages and not self.arrivals
            self.num_still = 0 if self.moved_ns != before_ns else self.num_still + 1
            if self.quiet_seconds(now_ns) >= _QUIET_SECONDS:
                self._kernel.look_at_main_thread(self.moved_ns)
                self._kernel.look_at_state(now_ns, self.moved_ns)
        if not process.is_living and self.gone_ns is None:
            self._note_gone(now_ns)
        if self.gone_ns is not None and self.exit_status is None:
            self._ask_how_it_ended()

    @property
    def ending(self) -> Ending | None:
        """How the process ended; None while it is alive."""
        if self.gone_ns is None:
            return None
        return Ending(
            self.gone_ns,
            self.is_outlived,
            self.exit_status,
            self.process.memory.was_oom_killed,
            self.alive_ns,
            self._ray.is_one,
            self._ray.was_ended_by_ray,
        )

    def resume(self, ending: Ending) -> None:
        """Restore the ending that an earlier agent recorded."""
        self.gone_ns, self.is_outlived, self.exit_status = ending[:3]
        self.alive_ns = self.alive_ns if ending.alive_ns is None else ending.alive_ns
        self.process.memory.was_oom_killed = ending.was_oom_killed
        self._ray.resume(is_one=ending.is_ray_worker, was_ended_by_ray=ending.was_ended_by_ray)
        if self.exit_status is not None and self.exit_status.is_success:
            self.process.state = "exited"

    def _note_gone(self, now_ns: int) -> None:
        """The process ended after its last sign of life and before this check."""
        process = self.process
        self.gone_ns = max(now_ns, process.liveness_checked_ns)
        signs_ns = process.follower.begin_ns, process.last_event_ns or 0, process.last_alive_ns
        self.alive_ns = min(self.gone_ns, max(signs_ns))
        failure = process.follower.failure
        if failure is not None and process.follower.begin_ns < failure.time_ns < self.alive_ns:
            self.alive_ns = failure.time_ns  # exiting began with the exception

    def _ask_how_it_ended(self) -> None:
        """Read the exit status. A process that closed its segment may still be exiting."""
        asked_ns = time.monotonic_ns()
        self.is_ending = self.process.state == "exited" and self.process.follower.still_runs()
        if self.is_ending:
            self.there_ns = asked_ns
            return
        self.exit_status = self.process.follower.exit_status
        self.process.memory.note_end(self.exit_status)
        self._ray.note_end()

    def longest_gap_seconds(self, now_ns: int) -> float:
        """Longest time without progress outside stages, or waiting for peers, in the last hour.

        Torch's flight recorder adds the time before the guest was loaded.
        """
        gaps = [gap for end_ns, gap in self._gaps if end_ns > now_ns - _REMEMBER_GAPS_NS]
        record = self.recorded()
        return max(*gaps, record.longest_gap_ns if record else 0, 0) / 1e9

    def quiet_seconds(self, now_ns: int) -> float:
        """Seconds since a training thread made progress."""
        return max(0, now_ns - self.moved_ns) / 1e9

    def still_seconds(self, now_ns: int) -> float:
        """Seconds since any thread made progress."""
        last_moved_ns = max(self.moved_ns, self.process.thread_moves.others_ns)
        return max(0, now_ns - last_moved_ns) / 1e9

    @property
    def is_suspended(self) -> bool:
        """Whether the kernel reports the process as stopped (state T)."""
        return self.process.state == "live" and self._kernel.is_stopped_since(self.moved_ns)

    def _step_seconds(self, now_ns: int) -> float | None:
        account = self.process.account
        if account is None or account.current.step is None:
            return None
        return max(0, now_ns - account.current.begin_ns) / 1e9

    def look_closer(self, now_ns: int) -> tuple[ProcessStacks | None, bool]:
        """(stacks written since the last progress, is stopped), read once a second at most."""
        if now_ns - self._looked_ns >= _LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self._stacks = self._read_stacks()
            self._kernel.look_at_state(now_ns, self.moved_ns)
        return self._stacks, self._kernel.is_stopped

    def _read_stacks(self) -> ProcessStacks | None:
        follower = self.process.follower
        return read_stacks(follower.path, self.moved_ns, follower.folder)

    def recorded(self) -> FlightRecord | None:
        """The flight recorder's file, if it was written since the last progress."""
        follower = self.process.follower
        status = follower.sibling_status(FLIGHT_SUFFIX)
        if status is None:
            return None
        file = status.st_ino, status.st_mtime_ns
        if self._flight[0] != file:
            self._flight = file, read_flight(follower.path, 0, follower.folder)
        record = self._flight[1]
        return None if record is None or record.time_ns < self.moved_ns else record

    def _learn_stages(self) -> None:
        before = self._last_end_ns
        ended = [
            (stage, stamp.end_ns, stamp.begin_ns)
            for (stage, _), stamp in self.process.stamps.items()
            if stamp.end_ns is not None and stamp.end_ns > before
        ]
        for stage, end_ns, begin_ns in ended:
            durations = self.durations.get(stage)
            if durations is None:
                durations = self.durations[stage] = deque(maxlen=_KEEP_DURATIONS)
            durations.append(end_ns - begin_ns)
            self._last_end_ns = max(self._last_end_ns, end_ns)

    def _learn_collectives(self) -> None:
        has_helpers = self.process.thread_moves.has_helpers  # helper threads run collectives too
        for name, group in self.process.groups.items():
            before = self._enqueued.get(name)
            if before != group.num_enqueued:
                self._enqueued[name] = self.reached[name] = group.num_enqueued
                if before is not None:  # a collective without a record is a sign of life too
                    at_ns = self.process.last_event_ns or 0
                    self._note_move_in(name, at_ns, is_life=not has_helpers)
        for done in self.process.collectives[-_MAX_COLLECTIVES:]:
            self._note_move_in(done.group, done.end_ns, is_life=not has_helpers)
            if done.sequence is not None:
                self._reach(done.operation, done.group, done.sequence)
            if done.is_blocking:
                key = f"{done.operation}@{done.group}"
                durations = self.collective_durations.setdefault(key, deque(maxlen=_KEEP_DURATIONS))
                durations.append(done.end_ns - done.begin_ns)
                if durations[-1] >= _SHORTEST_GAP_NS:  # a peer was late by this time
                    self._gaps.append((done.end_ns, durations[-1]))
        for arrival in self.arrivals:
            if arrival.sequence is not None and arrival.operation != DDP_GRADIENTS:
                self._reach(arrival.operation, arrival.group, arrival.sequence)

    def _note_move_in(self, group: str, at_ns: int, *, is_life: bool) -> None:
        self.group_moved_ns[group] = max(at_ns, self.group_moved_ns.get(group, 0))
        if is_life:
            self.moved_ns = max(self.moved_ns, at_ns)

    def _reach(self, operation: str, group: str, sequence: int) -> None:
        self.reached[group] = max(sequence, self.reached.get(group, -1))
        self._operations[group, sequence] = operation
        if len(self._operations) > _KEEP_OPERATIONS:
            for key in list(self._operations)[: _KEEP_OPERATIONS // 4]:
                del self._operations[key]

    def _note_move(self) -> None:
        process = self.process
        # repeated requests to a server are no progress
        opened = [event for event in process.inflight if not _is_remote(event)]
        spans = frozenset(event.span for event in opened)
        num_tokens = sum(process.tokens.values())
        begins = [event.begin_ns for event in opened]
        step_ns = process.account.current.begin_ns if process.account else 0
        has_counted = self._num_tokens is not None and num_tokens != self._num_tokens
        if process.thread_moves.has_helpers:
            self.moved_ns = max(self.moved_ns, process.thread_moves.moved_ns, step_ns)
        else:
            self.moved_ns = max(self.moved_ns, self._last_end_ns, step_ns, *begins)
            if has_counted or not self._spans <= spans:
                self.moved_ns = max(self.moved_ns, process.last_event_ns or 0)
        self._spans, self._num_tokens = spans, num_tokens


def _is_remote(event: SpanEvent) -> bool:
    return event.kind == WAIT and event.name == REMOTE_WAIT


def arrival_of(event: SpanEvent) -> Arrival:
    """An open collective as the call in which its rank waits."""
    operation, _, group = event.name.rpartition("@")
    sequence = event.step if event.step >= 0 else None
    peer = PEER - event.step if event.step <= PEER else None
    return Arrival(operation, group, sequence, event.begin_ns, peer)
