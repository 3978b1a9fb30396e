"""Remove the guest from a running job; a guest that `run` started stays in its job."""

from __future__ import annotations

import argparse
import os
import sys
import time

from dfx_agent.agent import config as configuration
from dfx_agent.attach import refusals
from dfx_agent.attach.discover import DiscoveredJob
from dfx_agent.base.errors import AttachError
from dfx_agent.commands.attach.attachment import SegmentFolder, said_of, wait_until_left

HELP = "take the guest out of a job that was attached to: every patch restored, segments closed"
EXAMPLE = "dfx-agent detach --pid 4711"

_LEAVE_SECONDS = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pid", type=int, required=True, help="any process of the job")
    parser.add_argument("--dir", dest="directory", metavar="DIR", help="folder of the segments")
    parser.add_argument("--only-this", action="store_true", help="this process, not its job")


def execute(args: argparse.Namespace) -> int:
    """0 when nothing of ours is left in the job, 1 too where a process died meanwhile.

    AttachError when there was nothing to take out.
    """
    config = configuration.load({"directory": args.directory}, os.environ, None)
    job = DiscoveredJob(args.pid, only_this=args.only_this)
    members = job.members()
    if not members:
        raise refusals.not_python(args.pid, job.program)
    place = SegmentFolder(config.directory, members[0].process)
    found = {place.guest_in(member.process): member for member in members}
    guests = {guest: member for guest, member in found.items() if guest and guest.note}
    if not guests:
        raise AttachError("notattached", *_nothing_to_do(args.pid, any(found), place.seen))
    begin = time.monotonic()
    for guest in guests:
        guest.ask_to_leave()
    is_done = True
    for guest, departure in wait_until_left([*guests], _LEAVE_SECONDS, _pause):
        is_done &= departure in {"detached", "ended"}
        text = said_of(guest, departure, time.monotonic() - begin)
        print(f"dfx-agent: {guests[guest]}: {text}", file=sys.stderr)
    return 0 if is_done else 1


def _nothing_to_do(pid: int, has_own: bool, directory: str) -> tuple[str, str]:  # noqa: FBT001
    if has_own:
        reason = f"the guest of pid {pid} belongs to the job (`dfx-agent run`, or it calls dfx)"
        return reason, "it ends with the job"
    return f"no guest in the job of pid {pid} that records into {directory}", "see `dfx-agent ps`"


def _pause(seconds: float) -> bool:
    time.sleep(seconds)
    return False
