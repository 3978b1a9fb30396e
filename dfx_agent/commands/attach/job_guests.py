"""The guests that attach brings into the processes of one job."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dfx_agent.attach.bring import prepare_guest, runs_our_interpreter
from dfx_agent.attach.discover import DiscoveredJob, Member
from dfx_agent.attach.inject import Helpers
from dfx_agent.base.errors import AttachError
from dfx_agent.commands.attach.attachment import (
    AttachedGuest,
    Departure,
    SegmentFolder,
    said_of,
    wait_until_left,
)
from dfx_agent.commands.serve.options import budget_of
from dfx_agent.commands.serve.shutdown import wait_for_signal
from dfx_agent.shim.attached import is_agent_present

# each process is attached by a helper process of its own
MAX_AT_ONCE = 8
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_RETRY_AFTER_SECONDS = 30.0
_LEAVE_SECONDS = 15.0
# what may be otherwise in a moment; everything else is tried once
_PASSING = frozenset({"starting", "waiting", "silent", "notparked", "dstate", "timeout", "helper"})
# refusals that say that there is nothing to see from outside either
_NOTHING_TO_WATCH = frozenset({"noproc", "gone", "notpython", "busy", "skipped"})


class JobGuests:
    """Guests in the processes of one job."""

    def __init__(
        self, args: argparse.Namespace, job: DiscoveredJob, place: SegmentFolder, helpers: Helpers
    ) -> None:
        self._args = args
        self._job = job
        self._place = place
        self._helpers = helpers
        self._run = args.run or job.run
        self._budget = budget_of(args)
        self._guests: dict[Member, AttachedGuest] = {}
        self._retry_at: dict[Member, float] = {}
        self._refused: dict[Member, str] = {}
        self._detached: set[Member] = set()  # by another command
        self.lost: set[Member] = set()

    def refuse_what_is_taken(self, agent_pid: int) -> None:
        """Another agent serves this folder: what it has attached is its own."""
        for member in self._job.members():
            guest = self._place.guest_in(member.process)
            if guest is not None and guest.note is not None:
                reason = (
                    f"dfx-agent pid {agent_pid} is attached to pid {member.pid} since {guest.since}"
                )
                raise AttachError("busy", reason, "look at its page, or end it first")

    def attach_new(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Every process of the job that has no guest yet; one line on stderr for each."""
        now = time.monotonic()
        due = [
            member
            for member in self._job.members()
            if member not in self._guests and now >= self._retry_at.get(member, 0.0)
        ]
        if due and not is_ending():
            for is_compiled in {runs_our_interpreter(member.pid) for member in due}:
                prepare_guest(is_compiled=is_compiled)
            with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
                tries = pool.map(self._try, due)
                meanwhile()
                for _ in tries:
                    pass

    def _try(self, member: Member) -> None:
        try:
            say(f"{member}: {self._attach(member)}")
        except AttachError as error:
            after = _RETRY_AFTER_SECONDS if error.code in _PASSING else float("inf")
            self._retry_at[member] = time.monotonic() + after
            self._refused[member] = error.code
            # what is left alone has the role that it looked like from outside, and no other
            who = f"pid {member.pid}" if error.code == "skipped" else member
            say(f"{who}: {error}")

    def _attach(self, member: Member) -> str:
        begin = time.monotonic()
        guest = self._place.guest_in(member.process)
        if guest is not None:
            self._guests[member] = guest
            return self._present(member, guest)
        self._guests[member], how = self._bring(member)
        return f"attached in {time.monotonic() - begin:.2f} s ({how})"

    def _present(self, member: Member, guest: AttachedGuest) -> str:
        """What is said of a guest that was there before; its budget becomes ours."""
        if guest.note is None:
            note = ": its budget stays as it was started" if self._budget else ""
            return f"is observed already, by a guest of its own{note}"
        text = f"has its guest already, since {guest.since}"
        before = guest.max_overhead_ratio
        if self._budget in {None, before}:
            return text + (f", budget {_percent(before)}" if before else "")
        try:
            self._guests[member], _ = self._bring(member)
        except AttachError as error:
            return f"{text}; its budget stays {_percent(before)}: {error}"
        return f"{text}, budget now {_percent(self._budget)} instead of {_percent(before)}"

    def _bring(self, member: Member) -> tuple[AttachedGuest, str]:
        variables = {"run": self._run, "role": member.role}
        return self._place.bring_guest(
            member.process,
            {name: value for name, value in variables.items() if value},
            method=self._args.method,
            grace_seconds=self._args.grace_seconds,
            max_overhead_ratio=self._budget,
            helpers=self._helpers,
            on_waiting=lambda text: self._report_waiting(member, text),
        )

    @staticmethod
    def _report_waiting(member: Member, text: str) -> None:
        if is_ending():
            raise AttachError("waiting", "given up", "nothing was changed")
        say(f"{member}: {text}")

    def has_hope(self) -> bool:
        """Some process has a guest, or may get one when its trouble has passed."""
        return bool(self._guests) or any(at < float("inf") for at in self._retry_at.values())

    def may_be_watched(self) -> bool:
        """No process takes a guest, and some are the job's, alive and in nobody else's care."""
        return bool(set(self._refused.values()) - _NOTHING_TO_WATCH) and not is_ending()

    def finish_without_serving(self) -> int:
        if not self._guests:
            return AttachError.exit_code
        if not is_agent_present(self._place.seen):
            grace = f"{self._args.grace_seconds:g} s"
            command = f"dfx-agent serve --dir {self._place.seen}"
            say(f"nobody serves {self._place.seen}: the guests leave in {grace}; {command}")
        return 0

    def bring_back_who_left(self) -> None:
        """What serves is up: was a guest alone for too long meanwhile, it is brought in again."""
        for member in self._who_left():
            del self._guests[member]
            say(f"{member}: its guest has left, nobody was there for it; it is brought in again")
        self.attach_new()

    def say_who_was_detached(self) -> bool:
        """By another command, so it is not attached again; True when nothing remains attached."""
        detached = self._who_left()
        if not detached:
            return False
        self._detached.update(detached)
        is_last = not any(m.process.is_alive() for m in self._guests if m not in self._detached)
        end = "; no process remains attached, so this command ends" if is_last else ""
        say(f"{', '.join(map(str, detached))}: detached by another command{end}")
        return is_last

    def _who_left(self) -> list[Member]:
        guests = [(m, g) for m, g in self._guests.items() if m not in self._detached and g.note]
        return [m for m, g in guests if m.process.is_alive() and g.departure() == "detached"]

    def detach(self) -> None:
        """Ask every guest that came by attach to leave, and say of each whether it has.

        ``lost``, then: members whose guest is not there or that died, and no other has their rank.
        """
        self.say_who_was_detached()
        guests = [(m, g) for m, g in self._guests.items() if g.note and m not in self._detached]
        members = {guest: member for member, guest in guests}
        went: dict[Member, Departure | None] = {}
        begin = time.monotonic()
        for guest in members:
            guest.ask_to_leave()
        for guest, departure in wait_until_left([*members], _LEAVE_SECONDS, pause):
            went[members[guest]] = departure
            say(f"{members[guest]}: {said_of(guest, departure, time.monotonic() - begin)}")
        died = {member for member, departure in went.items() if departure == "died"}
        ranks = {member.rank for member in went.keys() - died}
        self.lost |= {member for member in died if member.rank is None or member.rank not in ranks}


def _percent(ratio: float | None) -> str:
    return "none" if ratio is None else f"{100 * ratio:g} %"


def pause(seconds: float) -> bool:
    """Sleep; True if a signal asks us to end. Signals are blocked."""
    return wait_for_signal(_ENDING, seconds)


def is_ending() -> bool:
    """The same without taking the signal."""
    return bool(signal.sigpending() & _ENDING)


def say(text: str) -> None:
    sys.stderr.write(f"dfx-agent: {text}\n")  # one write: threads say things at the same time
    sys.stderr.flush()
