"""Asks the agent again and again in a thread, so that keys answer at once."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Protocol

from dfx_agent.base.errors import DfxError
from dfx_agent.commands.ps.observed import Observed
from dfx_agent.commands.top.rank_rows import memory_bytes
from dfx_agent.commands.top.view import Curve, Shown
from dfx_agent.snapshot import RunRow, SignalHistory

_CURVE_STEPS = 120
_CURVES = {"reward": "reward", "policy_kl": "KL", "ref_kl": "KL"}
_LEAST_SECONDS = 1.0
_SHARE = 0.1  # of the time is spent on asking: the snapshot of 1,024 ranks is large
_AGAIN_SECONDS = 2.0
_MAX_SAMPLES = 240


class Watched(Protocol):
    """An agent, or segments that are read here. A failure raises ``DfxError``."""

    def look(self) -> Observed: ...

    def signals(self, run: str, num_steps: int) -> SignalHistory: ...


class Poller:
    """``shown`` is the latest state; a byte in ``wake`` says that it is new."""

    def __init__(self, watched: Watched, first: Observed) -> None:
        self.wake, self._news = os.pipe()
        self.pause, self._never = os.pipe()
        self._watched = watched
        self._memory: dict[str, list[float | None]] = {}
        self._shown = Shown(None, time.time())
        self._failed_seconds = self._received_seconds = 0.0
        self._receive(first)
        self._thread = threading.Thread(target=self._run, name="dfx-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def shown(self) -> Shown:
        """The latest state on the agent's clock; a stale snapshot does not grow older."""
        shown = self._shown
        if shown.problem or shown.snapshot is None:
            return shown
        age = time.monotonic() - self._received_seconds
        return replace(shown, now_seconds=shown.snapshot.time_seconds + age)

    def _run(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                self._receive(self._watched.look())
            except DfxError as error:
                self._fail(str(error))
                time.sleep(_AGAIN_SECONDS)
            spent = time.monotonic() - begin
            os.write(self._news, b"x")
            time.sleep(max(_LEAST_SECONDS - spent, spent * (1 / _SHARE - 1), 0.0))

    def _receive(self, seen: Observed) -> None:
        snapshot = seen.snapshot
        curves = {run.run: self._curves(run) for run in snapshot.runs}
        self._received_seconds, self._failed_seconds = time.monotonic(), 0.0
        self._shown = Shown(snapshot, snapshot.time_seconds, seen.source, seen.place, curves=curves)

    def _fail(self, reason: str) -> None:
        self._failed_seconds = self._failed_seconds or time.time()
        since = _clock(self._failed_seconds)
        shown = self._shown
        old = ""
        if shown.snapshot is not None:
            old = f" Below: the state of {_clock(shown.snapshot.time_seconds)}."
        problem = (
            f"No answer since {since}: {reason.rstrip('.')}.{old} The job is not affected. "
            "Trying again."
        )
        self._shown = replace(shown, problem=problem)

    def _curves(self, run: RunRow) -> tuple[Curve, ...]:
        """Reward and KL over the steps; memory since ``top`` began, as no agent stores it."""
        curves: dict[str, Curve] = {}
        try:
            history = self._watched.signals(run.run, _CURVE_STEPS)
        except DfxError:
            history = SignalHistory((), (), (), ())
        by_signal = {series.signal: series.values for series in history.signals}
        for signal, name in _CURVES.items():
            if name not in curves and any(v is not None for v in by_signal.get(signal, ())):
                curves[name] = Curve(name, by_signal[signal])
        samples = self._memory.setdefault(run.run, [])
        samples.append(most_memory(run))
        del samples[:-_MAX_SAMPLES]
        if any(sample is not None for sample in samples):
            curves["memory"] = Curve("memory", tuple(samples), "bytes")
        return tuple(curves.values())


def most_memory(run: RunRow) -> float | None:
    """Memory of the rank that uses most."""
    used = (memory_bytes(rank) for rank in run.ranks)
    return max((num_bytes for num_bytes in used if num_bytes is not None), default=None)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))
