"""The states of a guest: which event leads where, and what is published on the way."""

from __future__ import annotations

import os
import sys
import types
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfx_agent.shim import permanent_state, recorder
from dfx_agent.shim.lifecycle import Event, Guest, State, next_state
from dfx_agent.wire import Identity

# rows: the state before; columns: the event
TABLE = """
           arm        record     refuse     withdraw  out        stop  fork
off        armed      recording  off        leaving   off        gone  off
armed      armed      recording  off        leaving   armed      gone  armed
recording  recording  recording  recording  leaving   recording  gone  armed
leaving    leaving    recording  leaving    leaving   gone       gone  leaving
gone       armed      recording  gone       leaving   gone       gone  gone
"""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]


def test_the_table_is_whole() -> None:
    assert set(HEAD) == set(get_args(Event))
    assert {row[0] for row in ROWS} == set(get_args(State))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_where_each_event_leads(row: list[Any]) -> None:
    before, *after = row
    assert [next_state(before, event) for event in HEAD] == after  # type: ignore[arg-type]


@given(st.lists(st.sampled_from(get_args(Event))))
def test_whatever_happens(events: list[Event]) -> None:
    state: State = "off"
    for event in events:
        before, state = state, next_state(state, event)
        assert next_state(state, event) == state  # told twice is told once
        if state == "recording" != before:
            assert event == "record"
        if state == "armed" != before:
            assert event in {"arm", "fork"}
    if "stop" in events and not {"record", "arm", "withdraw"} & {*events[events.index("stop") :]}:
        assert state == "gone"


class Hooks:
    """What hooks into torch, without torch."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gone: Any = None

    def start_watch(self, *, always: bool = False) -> None:
        self.calls.append("watch")

    def remove(self) -> None:
        self.calls.append("remove")

    def withdraw(self, gone: Any) -> None:
        self.gone = gone

    def after_fork(self) -> None:
        self.calls.append("fork")


class Writer:
    """A recorder without a segment."""

    def __init__(self) -> None:
        self.pid, self.identity = os.getpid(), Identity(role="trainer", run="job", rank=3)
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.append(name)


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Guest:
    """One that records, of an interpreter that nothing of ours is in."""
    monkeypatch.setattr(recorder, "current", Writer())
    monkeypatch.setattr(recorder, "start_late", None)
    guest = Guest()
    guest.hooks = Hooks()
    guest._to("record")
    return guest


@pytest.mark.parametrize("events", [["arm"], ["stop", "arm"], ["fork"], ["fork", "record"]])
def test_who_is_armed_begins_with_the_first_record_and_nobody_else(guest, events) -> None:
    for event in events:
        guest._to(event)
    assert (recorder.start_late is not None) == (guest.state == "armed")


def test_it_is_gone_when_the_last_hook_is_out(guest) -> None:
    writer, reported = recorder.current, []
    guest.withdraw(lambda: reported.append(guest.state))
    assert writer.calls == ["finish", "retire"]
    assert (guest.state, recorder.current, reported) == ("leaving", None, [])
    guest.hooks.gone()
    assert reported == ["gone"]


@pytest.mark.parametrize("back", ["record", "stop"])
def test_an_agent_that_is_back_before_finds_a_guest_that_is_not_gone(guest, back) -> None:
    reported: list[str] = []
    guest.withdraw(lambda: reported.append("gone"))
    guest._to(back)
    guest.hooks.gone()
    assert reported == []


def test_without_torch_it_is_gone_at_once(guest) -> None:
    guest.hooks, reported = None, []
    guest.withdraw(lambda: reported.append(guest.state))
    assert reported == ["gone"]


def test_a_forked_child_is_armed_and_knows_whose_it_is(guest) -> None:
    writer = recorder.current
    guest.after_fork()
    assert (guest.state, recorder.current) == ("armed", None)
    assert (guest._inherited.role, guest._inherited.rank) == ("trainer_child", 3)
    assert (guest.hooks.calls, writer.calls) == (["fork"], ["unmap"])


def test_a_forked_child_of_a_visited_process_has_no_guest(guest) -> None:
    writer, guest.attachment = recorder.current, object()
    guest.after_fork()
    assert (guest.state, guest.attachment, guest._inherited) == ("gone", None, None)
    assert recorder.start_late is None
    assert (guest.hooks.calls, writer.calls) == (["fork", "remove"], ["unmap"])


def test_a_forked_child_of_one_that_does_not_record_stays_what_it_is(guest) -> None:
    recorder.current = None
    guest._to("stop")
    guest._to("arm")
    guest.after_fork()
    assert (guest.state, guest._inherited, guest.hooks.calls) == ("armed", None, [])


def test_a_lock_that_another_thread_held_at_the_fork_is_left_to_the_parent(guest) -> None:
    before = guest._lock
    guest.after_fork()
    assert guest._lock is not before


def test_a_writer_of_the_parent_is_not_finished_by_the_child(guest) -> None:
    writer = recorder.current
    writer.pid += 1
    guest.stop()
    assert (guest.state, recorder.current, writer.calls) == ("gone", None, [])


def test_the_one_fork_hook_calls_the_guest_that_came_last(monkeypatch) -> None:
    calls: list[str] = []
    for name in ("dfx_before", "dfx_now"):
        module = types.ModuleType(name)
        module.told = lambda name=name: calls.append(name)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    permanent_state.follow_forks("dfx_before", "told")
    before = permanent_state._state["forks"]
    monkeypatch.setattr(before, "__defaults__", before.__defaults__)
    permanent_state.follow_forks("dfx_now", "told")
    assert permanent_state._state["forks"] is before
    before()
    assert calls == ["dfx_now"]
    monkeypatch.delitem(sys.modules, "dfx_now")  # as when its modules are forgotten
    before()
    assert calls == ["dfx_now"]
