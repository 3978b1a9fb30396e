"""Attach the guest to a running job, serve, and detach the guest at the end.

Options and address are checked first. The server is imported while the guests are attached,
because it is most of the imports of this command.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from dfx_agent.attach import preflight, refusals
from dfx_agent.attach.bring import remove_leftovers
from dfx_agent.attach.discover import DiscoveredJob, Member
from dfx_agent.attach.inject import Helpers
from dfx_agent.attach.spawn import block_signals
from dfx_agent.base.errors import AttachError, UsageError
from dfx_agent.commands.attach.attachment import LEFTOVERS, SegmentFolder
from dfx_agent.commands.attach.job_guests import MAX_AT_ONCE, JobGuests, pause, say
from dfx_agent.commands.serve.options import (
    add_budget_argument,
    add_service_arguments,
    budget_of,
    listener_of,
    load_config,
)
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

_LOOK_EVERY_SECONDS = 2.0
_PASSIVE = "passive"  # that module is loaded when it is asked for


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
    with Helpers(min(len(members), MAX_AT_ONCE)) as helpers:
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
    place = SegmentFolder(directory, members[0].process)
    _create_folder(place, members[0].process.uid)
    guests = JobGuests(args, job, place, helpers)
    remove_leftovers(place.seen, LEFTOVERS)
    if args.inject_only:
        guests.attach_new()
        return guests.finish_without_serving()
    if _serve(guests, replace(config, directory=place.seen)):
        for member in guests.lost:
            say(f"{member}: lost")
        return 1 if guests.lost else 0
    if not guests.may_be_watched():
        return AttachError.exit_code
    say("nothing can be brought in: the job is watched from outside, source=passive")
    return _watch_from_outside(args, job, config)


def _serve(guests: JobGuests, config: Config) -> bool:
    """Until the end; False when no process can be attached to."""
    listener = listener_of(config)
    service = None
    if _may_be_refused(config):
        service = _service(config, listener)
        other = service.agent.snapshot().agent.other_agent_pid
        if other is not None:
            guests.refuse_what_is_taken(other)
    open_observed(config.directory).close()
    listener.bind()
    try:
        with _held(config.directory, is_needed=service is None):
            guests.attach_new(meanwhile=_load_what_serves)
        if not guests.has_hope():
            return False
        service = service or _service(config, listener)
        service.start()
        guests.bring_back_who_left()
        say(f"page {service.url}/  metrics {service.url}/metrics")
        while not pause(_LOOK_EVERY_SECONDS):
            if guests.say_who_was_detached():
                break
            guests.attach_new()
    finally:
        guests.detach()
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

    return passive_job.serve(job, args.run, config, say, pause)


def _folder_of(member: Member, config: Config) -> str:
    """The folder of the user that owns the process, if we are root and that user is not."""
    uid = member.process.uid
    is_chosen = config.directory != default_directory() or "DFX_DIR" in os.environ
    if os.getuid() or not uid or is_chosen:
        return config.directory
    return os.path.join(os.path.dirname(config.directory), f"dfx-{uid}")


def _create_folder(place: SegmentFolder, uid: int) -> None:
    """As root: where the guests of another user, or of another mount namespace, will record."""
    if os.getuid() or (not uid and place.seen == place.inside):
        return
    try:
        create_for(place.seen, uid)
    except OSError as error:
        reason = f"cannot create {place.seen} ({error.strerror})"
        raise AttachError("folder", reason, "give a folder of that job with --dir DIR") from None
