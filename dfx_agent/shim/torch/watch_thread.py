"""The guest's own thread in a torch process, which runs its checks about once a second.

It records the sequence numbers of process groups (a hung rank is the one that stays behind),
samples the allocator, searches for models, and reports which hooks are active. If something has
been open for long, it writes the stacks and the flight recorder. A forked child does not have it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dfx_agent.shim import clients, patches, recorder
from dfx_agent.shim.code_samples import CodeSampler
from dfx_agent.shim.heap import HeapSampler
from dfx_agent.shim.stacks import StackWriter
from dfx_agent.shim.torch import collectives, group_end, modules, step_hooks
from dfx_agent.shim.torch.allocator_snapshot import AllocatorSnapshot
from dfx_agent.shim.torch.flight import FlightWriter, Mark
from dfx_agent.shim.torch.job_layout import LayoutReporter, VisibleDevices
from dfx_agent.shim.torch.memory import MemorySampler
from dfx_agent.shim.torch.overhead import Overhead

_PERIOD_SECONDS = 1.0
_STATES = {"active": 1.0, "absent": 0.0, "off": 0.0, "failed": -1.0}


class WatchThread:
    """One thread per process, from the first installed hook to ``stop``."""

    def __init__(self, check_attachment: Callable[[], None]) -> None:
        self._check_attachment = check_attachment  # may stop this thread, if the agent has left
        self._over = threading.Event()
        self._must_follow_models = False
        self.thread = threading.Thread(target=self._run, name="dfx-watch", daemon=True)
        self._memory = MemorySampler()
        self._heap = HeapSampler()
        self._code = CodeSampler()
        self._snapshots = AllocatorSnapshot()
        self._stacks = StackWriter()
        self._flight = FlightWriter()
        self._layout = LayoutReporter()
        self._visible = VisibleDevices()
        self._overhead = Overhead()
        self._num_begins = 0
        self._num_spans = 0
        self._groups: dict[str, int] = {}
        self._states: dict[str, float] = {}

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread; it may take 0.2 s."""
        self._over.set()
        step_hooks.seen.news.set()
        if self.thread is not threading.current_thread():
            self.thread.join(0.2)
        self._overhead.restore_all()  # hooks may stay until the next attach: with full detail
        self._overhead.restart()

    def _run(self) -> None:
        while not self._over.is_set():
            if step_hooks.seen.news.wait(_period_seconds()):
                step_hooks.seen.news.clear()
                self._must_follow_models = True
            writer = recorder.current
            if writer is not None and not self._over.is_set():
                try:
                    self._check_attachment()
                    if not self._over.is_set() and group_end.may_read_groups():
                        self._run_checks(writer)
                except Exception:  # noqa: BLE001 (never into the job)
                    writer.count_error()

    def _run_checks(self, writer: recorder.Recorder) -> None:
        # a short stage may never be open during a check: only the number of spans shows it
        self._num_begins += max(0, _num_begun(writer) - self._num_spans)
        if self._must_follow_models:
            modules.follow_models()
            self._must_follow_models = False
            self._overhead.restart()
        modules.find_active_ddp()
        self._report_groups(writer)
        self._layout.report(writer)
        self._report_hooks(writer)
        _, stage = writer.latest_open()
        self._memory.sample(writer.gauge, stage)
        self._visible.report(writer, is_used=self._memory.is_used)
        self._heap.sample(writer.gauge)
        self._code.sample(writer)
        self._snapshots.poll(writer.gauge, writer.path)
        now_ns = time.monotonic_ns()
        mark = self._mark(writer)
        self._flight.note(now_ns, mark)
        if self._stacks.write_if_stuck(now_ns, mark, writer.path):
            self._flight.write_once(now_ns, self._mark(writer), writer.path)
        self._overhead.account(writer, now_ns)
        self._num_spans = _num_begun(writer) + 1  # the call itself uses up a number

    def _mark(self, writer: recorder.Recorder) -> Mark:
        """The current mark. Computed again right before a dump, when it must be unchanged."""
        begin_ns, _ = writer.latest_open()
        sequences = tuple(group.sequence() for group in collectives.seen_groups())
        return begin_ns, self._num_begins, writer.step, sequences

    def _report_groups(self, writer: recorder.Recorder) -> None:
        for group in collectives.seen_groups():
            sequence = group.sequence()
            if sequence >= 0 and self._groups.get(group.name) != sequence:
                self._groups[group.name] = sequence
                writer.group(group.name, sequence, None)

    def _report_hooks(self, writer: recorder.Recorder) -> None:
        for name, hook in list(patches.registry.items()):
            state = _STATES[hook.state]
            is_reported = name in self._states or hook.state != "off" or not hook.is_optional
            if is_reported and self._states.get(name) != state:
                self._states[name] = state
                writer.gauge(f"patch/{name}", state)


def _period_seconds() -> float:
    """0.75 to 1.25 s, so that samples are not synchronous with the job's steps."""
    return _PERIOD_SECONDS * (0.75 + 0.5 * (time.monotonic_ns() // 64 % 997) / 997)


def _num_begun(writer: recorder.Recorder) -> int:
    """Number of spans without waits for servers: a loop of such waits is not progress."""
    return writer.num_spans() - clients.num_waits
