"""The guest's own thread in a torch process: what is worth saying once a second.

It follows the sequence numbers of process groups (a hung rank shows as the one that stays behind),
samples the allocator, looks for models, writes stacks and the flight recorder when something has
been open for long, and reports which hooks are active. It sleeps otherwise, and it is gone in a
forked child.
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
from dfx_agent.shim.torch.flight import FlightWriter, Mark
from dfx_agent.shim.torch.job_layout import LayoutTeller
from dfx_agent.shim.torch.memory import MemorySampler
from dfx_agent.shim.torch.overhead import Overhead
from dfx_agent.shim.torch.snapshots import SnapshotKeeper
from dfx_agent.shim.torch.visible import VisibleTeller

_PERIOD_SECONDS = 1.0
_STATES = {"active": 1.0, "absent": 0.0, "off": 0.0, "failed": -1.0}


class Watch:
    """One thread per process, from the first installed hook to ``stop``."""

    def __init__(self, look_first: Callable[[], None]) -> None:
        self._look_first = look_first  # may end this thread: the visit is over
        self._over = threading.Event()
        self._must_look_for_models = False
        self.thread = threading.Thread(target=self._run, name="dfx-watch", daemon=True)
        self._memory = MemorySampler()
        self._heap = HeapSampler()
        self._code = CodeSampler()
        self._snapshots = SnapshotKeeper()
        self._stacks = StackWriter()
        self._flight = FlightWriter()
        self._layout = LayoutTeller()
        self._visible = VisibleTeller()
        self._overhead = Overhead()
        self._num_begins = 0
        self._num_spans = 0
        self._groups: dict[str, int] = {}
        self._states: dict[str, float] = {}

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """End the thread; at most a moment late."""
        self._over.set()
        step_hooks.seen.news.set()
        if self.thread is not threading.current_thread():
            self.thread.join(0.2)
        self._overhead.take_up()  # hooks that stay for a while begin their next visit whole
        self._overhead.begin_anew()

    def _run(self) -> None:
        while not self._over.is_set():
            if step_hooks.seen.news.wait(_period_seconds()):
                step_hooks.seen.news.clear()
                self._must_look_for_models = True
            writer = recorder.current
            if writer is not None and not self._over.is_set():
                try:
                    self._look_first()
                    if not self._over.is_set() and group_end.may_look():
                        self._look(writer)
                except Exception:  # noqa: BLE001 (never into the job)
                    writer.count_error()

    def _look(self, writer: recorder.Recorder) -> None:
        # stages that are over by every look leave nothing open: only their number tells of them
        self._num_begins += max(0, _num_begun(writer) - self._num_spans)
        if self._must_look_for_models:
            modules.look()
            self._must_look_for_models = False
            self._overhead.begin_anew()
        modules.glimpse()
        self._report_groups(writer)
        self._layout.look(writer)
        self._report_hooks(writer)
        _, stage = writer.open_now()
        self._memory.sample(writer.gauge, stage)
        self._visible.look(writer, is_used=self._memory.is_used)
        self._heap.sample(writer.gauge)
        self._code.sample(writer)
        self._snapshots.look(writer.gauge, writer.path)
        now_ns = time.monotonic_ns()
        mark = self._mark(writer)
        self._flight.note(now_ns, mark)
        if self._stacks.write_if_stuck(now_ns, mark, writer.path):
            self._flight.write_once(now_ns, self._mark(writer), writer.path)
        self._overhead.account(writer, now_ns)
        self._num_spans = _num_begun(writer) + 1  # after our own ones, with this question

    def _mark(self, writer: recorder.Recorder) -> Mark:
        """Asked anew: right before a dump it must be as it was."""
        newest_begin_ns, _ = writer.open_now()
        sequences = tuple(group.sequence() for group in collectives.known_groups())
        return newest_begin_ns, self._num_begins, writer.step, sequences

    def _report_groups(self, writer: recorder.Recorder) -> None:
        for group in collectives.known_groups():
            sequence = group.sequence()
            if sequence >= 0 and self._groups.get(group.name) != sequence:
                self._groups[group.name] = sequence
                writer.group(group.name, sequence, None)

    def _report_hooks(self, writer: recorder.Recorder) -> None:
        for name, hook in list(patches.registry.items()):
            state = _STATES[hook.state]
            is_spoken_of = name in self._states or hook.state != "off" or not hook.is_optional
            if is_spoken_of and self._states.get(name) != state:
                self._states[name] = state
                writer.gauge(f"patch/{name}", state)


def _period_seconds() -> float:
    """0.75 to 1.25 s, so that samples do not follow the rhythm of the job's steps."""
    return _PERIOD_SECONDS * (0.75 + 0.5 * (time.monotonic_ns() // 64 % 997) / 997)


def _num_begun(writer: recorder.Recorder) -> int:
    """Who asks a server again and again, in a loop without an end, does not go on."""
    return writer.num_spans() - clients.num_waits
