"""Attach the guest to a running job, serve, and detach the guest at the end.

Options and address are checked first. The server is imported while the guests are attached,
because it is most of the imports of this command.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from dfx_agent.attach import preflight, refusals
from dfx_agent.attach.bring import prepare_guest, remove_leftovers, runs_our_interpreter
from dfx_agent.attach.discover import DiscoveredJob, Member
from dfx_agent.attach.inject import Helpers
from dfx_agent.attach.spawn import block_signals
from dfx_agent.base.errors import AttachError, UsageError
from dfx_agent.commands.attach.attachment import (
    LEFTOVERS,
    Departure,
    Guest,
    Place,
    said_of,
    wait_until_left,
)
from dfx_agent.commands.serve.options import (
    add_budget_argument,
    add_service_arguments,
    budget_of,
    listener_of,
    load_config,
)
from dfx_agent.commands.serve.shutdown import told_to_end
from dfx_agent.node.segments.lock import FolderLock, acquire
from dfx_agent.node.segments.owned_files import create_for, open_observed
from dfx_agent.shim.attached import is_agent_present
from dfx_agent.wire import default_directory

if TYPE_CHECKING:
    from dfx_agent.agent.config import Config
    from dfx_agent.commands.serve.service import Service
    from dfx_agent.web.listener import Listener

HELP = "bring the guest into a running job, all of its processes on this machine, and serve"
EXAMPLE = "dfx-agent attach --pid 4711"

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_LOOK_EVERY_SECONDS = 2.0
_RETRY_AFTER_SECONDS = 30.0
_LEAVE_SECONDS = 15.0
_PASSIVE = "passive"  # that module is loaded when it is asked for
# each has a helper process of its own
_MAX_AT_ONCE = 8
# what may be otherwise in a moment; everything else is tried once
_PASSING = frozenset({"starting", "waiting", "silent", "notparked", "dstate", "timeout", "helper"})

# refusals that say that there is nothing to see from outside either
_NOTHING_TO_WATCH = frozenset({"noproc", "gone", "notpython", "busy", "skipped"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pid", type=int, required=True, help="any process of the job: torchrun, a rank, an actor"
    )
    add_service_arguments(parser)
    parser.add_argument("--run", metavar="NAME", help="name of the run (script and rendezvous)")
    parser.add_argument(
        "--method",
        choices=(*preflight.METHODS, _PASSIVE),
        default="auto",
        help="way into the process (auto); passive: none, only look from outside",
    )
    parser.add_argument("--only-this", action="store_true", help="this process, not its job")
    parser.add_argument(
        "--check", action="store_true", help="say what would work and change nothing"
    )
    parser.add_argument(
        "--inject-only", action="store_true", help="leave the serving to another agent"
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=30.0,
        metavar="N",
        help="a guest without an agent undoes itself after this long (30)",
    )
    add_budget_argument(parser)


def execute(args: argparse.Namespace) -> int:
    """Until SIGINT or SIGTERM; AttachError when no process can be attached to."""
    _check_usage(args)
    job = DiscoveredJob(args.pid, only_this=args.only_this)
    members = job.members()
    if not members:
        raise refusals.not_python(args.pid, job.program)
    if args.check:
        from dfx_agent.commands.attach.preflight_table import print_table

        return print_table(members, args.method)
    if args.method == _PASSIVE:
        config = load_config(args)
        block_signals()
        return _watch_from_outside(args, job, config)
    block_signals()
    with Helpers(min(len(members), _MAX_AT_ONCE)) as helpers:
        return _bring_and_serve(args, job, members, helpers)


def _check_usage(args: argparse.Namespace) -> None:
    if args.grace_seconds <= 0:
        raise UsageError(f"--grace-seconds {args.grace_seconds:g}: give a positive number")
    budget_of(args)
    if args.method == _PASSIVE:
        of_guests = {"--inject-only": args.inject_only, "--max-overhead": args.max_overhead}
        for flag in (flag for flag, value in of_guests.items() if value):
            raise UsageError(f"{flag} with --method passive: nothing would be brought in")


def _bring_and_serve(
    args: argparse.Namespace, job: DiscoveredJob, members: list[Member], helpers: Helpers
) -> int:
    config = load_config(args)
    directory = config.directory if args.directory else _folder_of(members[0], config)
    place = Place(directory, members[0].process)
    _create_folder(place, members[0].process.uid)
    attachments = _Attachments(args, job, place, helpers)
    remove_leftovers(place.seen, LEFTOVERS)
    if args.inject_only:
        attachments.attach_new()
        return attachments.finish_without_serving()
    if _serve(attachments, replace(config, directory=place.seen)):
        for member in attachments.lost:
            _say(f"{member}: lost")
        return 1 if attachments.lost else 0
    if not attachments.may_be_watched():
        return AttachError.exit_code
    _say("nothing can be brought in: the job is watched from outside, source=passive")
    return _watch_from_outside(args, job, config)


def _serve(attachments: _Attachments, config: Config) -> bool:
    """Until the end; False when no process can be attached to."""
    listener = listener_of(config)
    service = None
    if _may_be_refused(config):
        service = _service(config, listener)
        other = service.agent.snapshot().agent.other_agent_pid
        if other is not None:
            attachments.refuse_what_is_taken(other)
    open_observed(config.directory).close()
    listener.bind()
    try:
        with _held(config.directory, is_needed=service is None):
            attachments.attach_new(meanwhile=_load_what_serves)
        if not attachments.has_hope():
            return False
        service = service or _service(config, listener)
        service.start()
        attachments.bring_back_who_left()
        _say(f"page {service.url}/  metrics {service.url}/metrics")
        while not _pause(_LOOK_EVERY_SECONDS):
            if attachments.say_who_was_detached():
                break
            attachments.attach_new()
    finally:
        attachments.detach()
        if service is None:
            listener.close()
        else:
            service.stop()
    return True


@contextmanager
def _held(directory: str, *, is_needed: bool) -> Iterator[None]:
    """The folder's lock, ours until the agent takes it: guests that see nobody leave again."""
    lock = None
    if is_needed:
        with closing(open_observed(directory)) as folder:
            lock = acquire(folder)
    try:
        yield
    finally:
        if isinstance(lock, FolderLock):
            lock.close()


def _may_be_refused(config: Config) -> bool:
    """What only the service itself can check: it must be whole before anything is changed."""
    return is_agent_present(config.directory) or bool(
        config.track_with or config.alertmanager or config.webhook
    )


def _service(config: Config, listener: Listener) -> Service:
    from dfx_agent.commands.serve.service import Service

    return Service(config, listener)


def _load_what_serves() -> None:
    for name in ("commands.serve.service", "web.app", "web.server"):
        import_module(f"dfx_agent.{name}")


def _watch_from_outside(args: argparse.Namespace, job: DiscoveredJob, config: Config) -> int:
    from dfx_agent.commands.attach import passive_job  # most attaches do without it

    return passive_job.serve(job, args.run, config, _say, _pause)


class _Attachments:
    """Guests in the processes of one job."""

    def __init__(
        self, args: argparse.Namespace, job: DiscoveredJob, place: Place, helpers: Helpers
    ) -> None:
        self._args = args
        self._job = job
        self._place = place
        self._helpers = helpers
        self._run = args.run or job.run
        self._budget = budget_of(args)
        self._guests: dict[Member, Guest] = {}
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
        if due and not _is_ending():
            for is_compiled in {runs_our_interpreter(member.pid) for member in due}:
                prepare_guest(is_compiled=is_compiled)
            with ThreadPoolExecutor(_MAX_AT_ONCE) as pool:
                tries = pool.map(self._try, due)
                meanwhile()
                for _ in tries:
                    pass

    def _try(self, member: Member) -> None:
        try:
            _say(f"{member}: {self._attach(member)}")
        except AttachError as error:
            after = _RETRY_AFTER_SECONDS if error.code in _PASSING else float("inf")
            self._retry_at[member] = time.monotonic() + after
            self._refused[member] = error.code
            # what is left alone has the role that it looked like from outside, and no other
            who = f"pid {member.pid}" if error.code == "skipped" else member
            _say(f"{who}: {error}")

    def _attach(self, member: Member) -> str:
        begin = time.monotonic()
        guest = self._place.guest_in(member.process)
        if guest is not None:
            self._guests[member] = guest
            return self._present(member, guest)
        self._guests[member], how = self._bring(member)
        return f"attached in {time.monotonic() - begin:.2f} s ({how})"

    def _present(self, member: Member, guest: Guest) -> str:
        """What is said of a guest that was there before; its budget becomes ours."""
        if guest.note is None:
            kept = ": its budget stays as it was started" if self._budget else ""
            return f"is observed already, by a guest of its own{kept}"
        text = f"has its guest already, since {guest.since}"
        before = guest.max_overhead_ratio
        if self._budget in {None, before}:
            return text + (f", budget {_percent(before)}" if before else "")
        try:
            self._guests[member], _ = self._bring(member)
        except AttachError as error:
            return f"{text}; its budget stays {_percent(before)}: {error}"
        return f"{text}, budget now {_percent(self._budget)} instead of {_percent(before)}"

    def _bring(self, member: Member) -> tuple[Guest, str]:
        known = {"run": self._run, "role": member.role}
        return self._place.bring_guest(
            member.process,
            {name: value for name, value in known.items() if value},
            method=self._args.method,
            grace_seconds=self._args.grace_seconds,
            max_overhead_ratio=self._budget,
            helpers=self._helpers,
            on_waiting=lambda text: self._tell_waiting(member, text),
        )

    @staticmethod
    def _tell_waiting(member: Member, text: str) -> None:
        if _is_ending():
            raise AttachError("waiting", "given up", "nothing was changed")
        _say(f"{member}: {text}")

    def has_hope(self) -> bool:
        """Some process has a guest, or may get one when its trouble has passed."""
        return bool(self._guests) or any(at < float("inf") for at in self._retry_at.values())

    def may_be_watched(self) -> bool:
        """No process takes a guest, and some are the job's, alive and in nobody else's care."""
        return bool(set(self._refused.values()) - _NOTHING_TO_WATCH) and not _is_ending()

    def finish_without_serving(self) -> int:
        if not self._guests:
            return AttachError.exit_code
        if not is_agent_present(self._place.seen):
            grace = f"{self._args.grace_seconds:g} s"
            command = f"dfx-agent serve --dir {self._place.seen}"
            _say(f"nobody serves {self._place.seen}: the guests leave in {grace}; {command}")
        return 0

    def bring_back_who_left(self) -> None:
        """What serves is up: was a guest alone for too long meanwhile, it is brought in again."""
        for member in self._who_left():
            del self._guests[member]
            _say(f"{member}: its guest has left, nobody was there for it; it is brought in again")
        self.attach_new()

    def say_who_was_detached(self) -> bool:
        """By another command, so it is not attached again; True when nothing remains attached."""
        detached = self._who_left()
        if not detached:
            return False
        self._detached.update(detached)
        is_last = not any(m.process.is_alive() for m in self._guests if m not in self._detached)
        end = "; no process remains attached, so this command ends" if is_last else ""
        _say(f"{', '.join(map(str, detached))}: detached by another command{end}")
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
        for guest, departure in wait_until_left([*members], _LEAVE_SECONDS, _pause):
            went[members[guest]] = departure
            _say(f"{members[guest]}: {said_of(guest, departure, time.monotonic() - begin)}")
        died = {member for member, departure in went.items() if departure == "died"}
        ranks = {member.rank for member in went.keys() - died}
        self.lost |= {member for member in died if member.rank is None or member.rank not in ranks}


def _percent(ratio: float | None) -> str:
    return "none" if ratio is None else f"{100 * ratio:g} %"


def _folder_of(member: Member, config: Config) -> str:
    """The folder of the user that owns the process, if we are root and that user is not."""
    uid = member.process.uid
    is_chosen = config.directory != default_directory() or "DFX_DIR" in os.environ
    if os.getuid() or not uid or is_chosen:
        return config.directory
    return os.path.join(os.path.dirname(config.directory), f"dfx-{uid}")


def _create_folder(place: Place, uid: int) -> None:
    """As root: where the guests of another user, or of another mount namespace, will record."""
    if os.getuid() or (not uid and place.seen == place.inside):
        return
    try:
        create_for(place.seen, uid)
    except OSError as error:
        reason = f"cannot create {place.seen} ({error.strerror})"
        raise AttachError("folder", reason, "give a folder of that job with --dir DIR") from None


def _pause(seconds: float) -> bool:
    """Sleep; True if a signal asks us to end. Signals are blocked."""
    return told_to_end(_ENDING, seconds)


def _is_ending() -> bool:
    """The same without taking the signal."""
    return bool(signal.sigpending() & _ENDING)


def _say(text: str) -> None:
    sys.stderr.write(f"dfx-agent: {text}\n")  # one write: threads say things at the same time
    sys.stderr.flush()
