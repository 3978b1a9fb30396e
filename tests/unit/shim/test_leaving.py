"""How a guest that came by attach goes: woken, alone, or with its process."""

from __future__ import annotations

import time
from pathlib import Path

from attached_host import Host, guest_of, hooked, until


def never_look(host: Host) -> None:
    """The guest's thread waits until somebody wakes it."""
    host.do("import sys; sys.modules['dfx_agent.shim.watch']._PERIOD_SECONDS = 3600.0")
    time.sleep(1.5)  # the wait that goes on


def test_an_agent_that_asks_wakes_the_guest(host, agent) -> None:
    host.do("import sys, threading; paths = list(sys.meta_path)")
    answer = host.attach()
    never_look(host)
    guest_of(host, answer).ask_to_leave()
    until(lambda: host.has_left(answer))
    assert host.do("[thread.name for thread in threading.enumerate()]") == ["MainThread"]
    assert host.do("sys.meta_path == paths") is True
    assert list(Path(answer.segment).parent.glob("*.bell")) == []


def test_a_guest_that_leaves_by_itself_ends_the_thread_that_waits_for_the_agent(host) -> None:
    host.do("import threading")
    answer = host.attach(grace_seconds=0.1)
    until(lambda: host.has_left(answer))
    assert host.do("[thread.name for thread in threading.enumerate()]") == ["MainThread"]
    assert list(Path(answer.segment).parent.glob("*.bell")) == []


def test_a_guest_that_cannot_be_woken_is_asked_all_the_same(host, agent) -> None:
    answer = host.attach()
    Path(answer.segment).with_suffix(".bell").unlink()
    guest_of(host, answer).ask_to_leave()
    until(lambda: host.has_left(answer))


def test_how_a_guest_went_is_told(trainer, agent) -> None:
    answer = trainer.attach()
    hooked(trainer)
    guest = guest_of(trainer, answer)
    assert guest.departure() is None
    guest.ask_to_leave()
    until(guest.has_stopped)
    assert guest.departure() is None  # its last hook waits for a backward that does not come
    assert trainer.popen.stdin
    trainer.popen.stdin.close()
    assert trainer.popen.wait(20) == 0
    assert guest.departure() == "ended"
    assert guest.departure() == "detached"  # nothing of it is left


def test_a_guest_that_was_killed_has_died(host, agent) -> None:
    answer = host.attach()
    guest = guest_of(host, answer)
    host.popen.kill()
    host.popen.wait()
    assert guest.departure() == "died"
    left = {path.suffix for path in Path(answer.segment).parent.glob(f"{host.popen.pid}-*")}
    assert left == {".seg"}
