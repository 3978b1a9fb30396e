"""How a guest that came by attach goes: asked, or with its process."""

from __future__ import annotations

from pathlib import Path

from attached_host import guest_of, hooked, until


def test_an_agent_that_asks_and_nothing_is_left(host, agent) -> None:
    host.do("import sys, threading; paths = list(sys.meta_path)")
    answer = host.attach()
    guest_of(host, answer).ask_to_leave()
    until(lambda: host.has_left(answer))
    assert host.do("[thread.name for thread in threading.enumerate()]") == ["MainThread"]
    assert host.do("sys.meta_path == paths") is True


def test_the_end_of_a_guest_is_reported(trainer, agent) -> None:
    answer = trainer.attach()
    hooked(trainer)
    guest = guest_of(trainer, answer)
    assert guest.departure() is None
    guest.ask_to_leave()
    until(guest.has_stopped)
    assert guest.departure() is None  # its last hook waits for a backward that does not come
    assert trainer.popen.stdin
    trainer.popen.stdin.close()
    assert trainer.popen.wait(120) == 0
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
