"""The guest API: no-ops when off, and nothing of ours ever raises into the job."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import pytest

import dfx_agent.shim as dfx
from dfx_agent.shim import compiling, lifecycle, recorder, span_writer
from dfx_agent.wire import SegmentReader
from dfx_agent.wire.records import (
    KIND_MASK,
    NO_STEP,
    POLICY_VERSION,
    QUEUE,
    SCALAR,
    STAGE,
    STEP,
    TOKENS,
)


@dataclass
class Seen:
    kind: int
    name: str
    value: float
    step: int


class Guest:
    """What the agent would see of this process."""

    def __init__(self) -> None:
        self.reader = SegmentReader(recorder.current.path)

    def seen(self) -> list[Seen]:
        records = []
        while batch := self.reader.poll():
            records += batch
        return [Seen(r[8] & KIND_MASK, self.reader.name(r[9]) or "", r[3], r[4]) for r in records]

    def values(self) -> dict[str, float]:
        return {s.name: s.value for s in self.seen() if s.kind == SCALAR}

    @property
    def num_errors(self) -> int:
        return self.reader.live_words()[4]


def reset() -> None:
    lifecycle.guest.stop()
    lifecycle.guest._is_refused = False
    span_writer.step_of_context.set(None)
    span_writer.innermost.set(None)


@pytest.fixture
def off(dfx_dir) -> Iterator[None]:
    reset()
    yield
    reset()


@pytest.fixture
def guest(off) -> Iterator[Guest]:
    assert dfx.init(run="r", role="trainer", rank=0)
    guest = Guest()
    yield guest
    guest.reader.close()


class Hostile:
    """Every question is answered with an exception."""

    def __getattribute__(self, name):
        raise RuntimeError(name)

    def __str__(self):
        raise RuntimeError

    __repr__ = __hash__ = __float__ = __index__ = __eq__ = __lt__ = __gt__ = __bool__ = __str__


def odd_values() -> list[object]:
    torch = pytest.importorskip("torch")
    return [
        None, object(), Hostile(), "text", "", "\ud800", b"bytes", [], {}, (1, 2), ..., Exception,
        10**400, -(10**400), 2**63, 2**64, -1, -(2**70), 0.5, 1.0, True, math.nan, math.inf,
        -math.inf, 1j, lambda: 1, torch.tensor(1.5), torch.tensor(3), torch.zeros(3),
        torch.zeros(0), torch.ones((), requires_grad=True), torch.ones((), dtype=torch.complex64),
        torch.ones((), dtype=torch.bfloat16), torch.ones((), device="meta"),
    ]  # fmt: skip


def every_call(odd: object) -> list:
    def span(make, name):
        with make(name):
            pass

    return [
        lambda: dfx.scalar(odd, 1.0),
        lambda: dfx.scalar("a", odd),
        lambda: dfx.scalar("a", 1.0, step=odd),
        lambda: dfx.scalars(odd),
        lambda: dfx.scalars({"a": odd}),
        lambda: dfx.scalars({"a": 1.0}, step=odd),
        lambda: dfx.tokens(odd, 1),
        lambda: dfx.tokens("a", odd),
        lambda: dfx.queue(odd, 1),
        lambda: dfx.queue("a", odd),
        lambda: dfx.policy_version(odd),
        lambda: span(dfx.stage, odd),
        lambda: span(dfx.wait, odd),
        lambda: dfx.set_step(odd),
    ]


@pytest.mark.parametrize("number", range(34))
def test_no_odd_argument_raises_or_warns_and_recording_continues(guest, number):
    odd = odd_values()[number]
    for call in every_call(odd):
        call()
    for _ in range(300):
        with dfx.stage("after"):
            pass
    dfx.set_step(7)
    dfx.scalar("after", 2.5)
    with dfx.stage("after"):
        assert [r[9] for r in guest.reader.inflight()]
    seen = guest.seen()
    assert sum(s.name == "after" and s.kind == STAGE for s in seen) == 301
    assert seen[-2] == Seen(SCALAR, "after", 2.5, 7)
    assert guest.reader.ring.num_pending == 0, "a call that fails must leave no hole in the ring"
    assert len(recorder.current._segment.inflight.free_slots) == 256, "nor keep an in-flight slot"


@pytest.mark.parametrize(
    "known",
    [
        {"rank": "0"}, {"rank": 2**40}, {"rank": 1.5}, {"rank": object()}, {"local_rank": "x"},
        {"world_size": -(2**40)}, {"run": 5}, {"role": b"x"}, {"framework": object()},
        {"directory": 5}, {"directory": "\0"}, {"directory": b"/x"},
    ],
    ids=lambda known: str(known).partition(" at 0x")[0],
)  # fmt: skip
@pytest.mark.parametrize("already_on", [False, True])
def test_init_never_raises_and_says_one_line(off, dfx_dir, capsys, known, already_on):
    if already_on:
        dfx.init(run="good", rank=3)
    observed = dfx.init(**known)
    result = capsys.readouterr().err
    assert result.count("\n") <= 1
    if already_on:
        with contextlib.closing(Guest().reader) as reader:
            assert reader.identity() is not None, "the identity must stay whole"
    elif not observed:
        assert result.startswith("dfx-agent: ")
    assert not list(dfx_dir.glob("*.starting"))
    with dfx.stage("x"):
        dfx.set_step(1)


def test_a_rank_given_as_text_is_converted_or_refused(off, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    dfx.init(rank="2")
    assert recorder.current is None or recorder.current.identity.rank == 2


def test_scalars_pass_over_what_is_no_number_and_keep_the_rest(guest):
    torch = pytest.importorskip("torch")
    dfx.scalars(
        {
            "first": 1,
            "text": "abc",
            "none": None,
            "list": [1.0],
            "many": torch.zeros(3),
            "huge": 10**400,
            "hostile": Hostile(),
            "one": torch.tensor(4.0),
            "last": 2.0,
        },
        step=3,
    )
    assert guest.values() == {"first": 1.0, "one": 4.0, "last": 2.0}


def test_text_that_looks_like_a_number_is_text(guest):
    dfx.scalars({"version": "1.10", "run": "7", "loss": 0.5})
    assert guest.values() == {"loss": 0.5}


def test_other_values_of_trackers_are_no_error(guest):
    torch = pytest.importorskip("torch")
    np = pytest.importorskip("numpy")
    dfx.scalars({"histogram": np.zeros(3), "many": torch.zeros(2, 2), "none": np.zeros(0)})
    dfx.scalars({"one": np.array([2.0]), "of torch": torch.tensor([[3.0]]), "plain": np.float32(4)})
    assert guest.values() == {"one": 2.0, "of torch": 3.0, "plain": 4.0}
    assert guest.num_errors == 0


def test_recording_continues_while_another_thread_imports_torch(guest, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setattr(compiling, "is_compiling", compiling._search_torch)
    for call in every_call(1):
        call()
    dfx.scalar("loss", 0.5)
    assert guest.values()["loss"] == 0.5


def test_a_tensor_that_requires_grad_does_not_warn(guest, request):
    torch = pytest.importorskip("torch")
    request.addfinalizer(partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(True)  # it says so once a process, and another test may have heard it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dfx.scalar("loss", torch.ones((), requires_grad=True) * 3)
    assert guest.values() == {"loss": 3.0}
    assert guest.num_errors == 0


def test_counts_are_recorded_as_they_are(guest):
    dfx.set_step(4)
    dfx.tokens("response", 128)
    dfx.queue("samples", 3)
    dfx.policy_version(9)
    dfx.scalar("kl", 0.25)
    dfx.scalar("kl", 0.5, step=2)
    step, *counts = guest.seen()
    assert (step.kind, step.step) == (STEP, 4)
    assert counts == [
        Seen(TOKENS, "response", 128.0, 4),
        Seen(QUEUE, "samples", 3.0, 4),
        Seen(POLICY_VERSION, "policy", 9.0, 4),
        Seen(SCALAR, "kl", 0.25, 4),
        Seen(SCALAR, "kl", 0.5, 2),
    ]
    assert guest.num_errors == 0


def test_a_step_reports_the_processor_time_of_its_thread(guest):
    dfx.set_step(1)
    before = time.thread_time()
    while time.thread_time() < before + 0.05:
        pass
    after = time.thread_time()
    dfx.set_step(2)
    first, second = guest.reader.poll()
    assert 0.05 <= after - before <= second[3] - first[3] <= time.thread_time() - before + 0.01
    assert first[7] == second[7] == threading.get_native_id()


def test_before_init_everything_is_a_no_op(off, dfx_dir):
    for call in every_call("x"):
        call()
    dfx.shutdown()
    assert recorder.current is None
    assert list(dfx_dir.iterdir()) == []


def test_after_shutdown_everything_is_a_no_op(guest, dfx_dir):
    with dfx.stage("open over shutdown"):
        dfx.shutdown()
        for call in every_call("x"):
            call()
    dfx.shutdown()
    assert guest.seen() == []
    assert guest.reader.live_words()[0] == 2
    assert len(list(dfx_dir.iterdir())) == 1


def test_init_again_updates_only_what_is_given(guest, dfx_dir):
    assert dfx.init(role="learner", world_size=8)
    identity = guest.reader.identity()
    assert (identity.run, identity.role, identity.rank, identity.world_size) == (
        "r",
        "learner",
        0,
        8,
    )
    assert len(list(dfx_dir.iterdir())) == 1


def test_the_environment_says_who_we_are(off, monkeypatch):
    for name, value in {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "DFX_RUN": "env",
    }.items():
        monkeypatch.setenv(name, value)
    dfx.init()
    who = recorder.current.identity
    assert (who.run, who.role, who.rank, who.local_rank, who.world_size) == (
        "env",
        "trainer",
        5,
        1,
        8,
    )


def test_an_unusable_folder_is_reported_once_and_the_job_continues(off, dfx_dir, capsys):
    dfx_dir.chmod(0o777)
    assert dfx.init() is False
    assert dfx.init() is False
    for call in every_call("x"):
        call()
    result = capsys.readouterr().err
    assert result.count("\n") == 1
    assert "is not a private folder" in result
    assert "unobserved" in result


@pytest.mark.parametrize("value", ["abc", "", "100", "-1"])
def test_a_bad_ring_size_is_said_with_the_variable_s_name(off, monkeypatch, capsys, value):
    monkeypatch.setenv("DFX_RING_RECORDS", value)
    assert dfx.init() is (value == "")
    result = capsys.readouterr().err
    assert result.count("\n") == (value != "")
    assert not value or "DFX_RING_RECORDS" in result


def test_a_full_name_table_is_counted_and_recording_continues(guest):
    for n in range(400):
        dfx.scalar(f"{n:0>199}", float(n))
    dfx.scalar(f"{0:0>199}", -1.0)
    seen = guest.seen()
    assert len(seen) == 401
    assert seen[-1] == Seen(SCALAR, f"{0:0>199}", -1.0, NO_STEP)
    assert guest.reader.live_words()[2] > 0
    assert guest.num_errors == 0


def test_endless_new_names_do_not_grow_the_job_s_memory(guest):
    for n in range(40_000):
        dfx.scalar(f"request-{n}", 0.0)
    assert len(recorder.current._names) < 20_000


def test_a_full_in_flight_table_is_counted_and_spans_are_still_recorded(guest):
    with contextlib.ExitStack() as stack:
        for n in range(300):
            stack.enter_context(dfx.stage(f"depth-{n}"))
        assert len(guest.reader.inflight()) == 256
        assert guest.reader.live_words()[3] == 44
    assert [s.name for s in guest.seen()] == [f"depth-{n}" for n in reversed(range(300))]
    assert guest.reader.inflight() == []
    assert len(recorder.current._segment.inflight.free_slots) == 256


def test_a_signal_handler_that_records_while_recording(guest):
    num_fired = 0

    def handler(*_):
        nonlocal num_fired
        num_fired += 1
        number = num_fired  # the next signal may come inside this one
        with dfx.stage("in handler"):
            dfx.scalar(f"handler-{number % 50}", float(number))

    for name in ("loop", "in handler"):  # a signal while a name is new is the next test
        with dfx.stage(name):
            for number in range(50):
                dfx.scalar(f"{'main' if name == 'loop' else 'handler'}-{number}", float(number))
    guest.reader.poll()
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    num_written = 0
    try:
        while num_fired <= 200:
            with dfx.stage("loop"):
                dfx.scalar(f"main-{num_written % 50}", float(num_written))
            num_written += 1
            if num_written % 1000 == 0:
                time.sleep(0.01)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    records = guest.reader.poll()
    assert guest.num_errors == 0
    total = len(records) + guest.reader.ring.num_lost + guest.reader.ring.num_pending
    assert total == 2 * (num_written + num_fired)
    for record in records:
        if record[8] == SCALAR:
            prefix, _, number = guest.reader.name(record[9]).partition("-")
            assert prefix in ("main", "handler")
            assert int(number) == int(record[3]) % 50
    assert span_writer.innermost.get() is None


def test_a_handler_at_any_line_of_a_new_name_does_not_mix_up_names(guest):
    """What a signal would do, at every line of ``add_name`` in turn."""
    add_name = type(recorder.current._segment).add_name.__code__
    first = add_name.co_firstlineno
    num_fired = 0
    for number in range(20):
        fired = []

        def trace(frame, event, _, number=number, fired=fired):
            if frame.f_code is not add_name:
                return trace
            if event == "line" and frame.f_lineno == first + number and not fired:
                fired.append(True)
                dfx.scalar(f"inner-{number}", number + 0.5)
            return trace

        sys.settrace(trace)
        try:
            dfx.scalar(f"outer-{number}", float(number))
        finally:
            sys.settrace(None)
        num_fired += len(fired)
        for name, value in guest.values().items():
            assert name in ("", f"outer-{number}", f"inner-{number}")
            assert name == "" or value == number + 0.5 * name.startswith("inner")
    assert num_fired > 8
    dfx.scalar("after", 1.0)
    assert guest.values() == {"after": 1.0}, "ids and names must not be off by one from then on"


def test_the_thread_that_recorded_is_named_by_its_native_id(guest):
    import threading

    natives = []

    def work() -> None:
        natives.append(threading.get_native_id())
        with dfx.stage("x"):
            pass

    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [r[7] for r in guest.reader.poll()] == natives
    assert os.getpid() not in natives
