"""Classifies how a process ended: by a crash, on request, or normally.

The exit status decides if the kernel reports it. Otherwise a segment that was not closed means that
the process died, unless it is a child process that its parent outlives.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from dfx_agent.facts.rank import Failure, RankFacts
from dfx_agent.judge.words import ranks_text

_MAX_ERROR = 120
# errors of gloo, NCCL and the store of a process group after a peer has ended
_LOSS_OF_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|closed by peer"
    r"|remote process (has )?exited|communicator was aborted|nccl ?remote|ncclRemoteError"
    r"|socket (was )?closed|failed to (recv|send)|recvvalue failed|sendbytes failed"
    r"|heartbeat|tcpstore|watchdog|timed out waiting",
    re.IGNORECASE,
)
# longest time between closing the records and the end of the process
ENDING_SECONDS = 120.0

DIED, OUT_OF_MEMORY = "died", "out of memory"

# signals that a parent never sends to end a child
_FAULTS = {
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS,
    signal.SIGTRAP,
}  # fmt: skip


def has_crashed(rank: RankFacts, ranks: Sequence[RankFacts]) -> bool:
    """Whether the process has ended unexpectedly. ``ranks``: all ranks of its role."""
    status = rank.exit_status
    if rank.is_living or rank.was_ended_by_ray:
        return False
    if has_raised(rank):
        return True
    if rank.state == "exited" and (status is None or status.is_success or status.was_asked_for):
        return False
    if not is_own_child(rank, ranks):
        return True
    is_fault = status is not None and status.signal in _FAULTS
    return is_fault or rank.was_oom_killed


def has_raised(rank: RankFacts) -> bool:
    """Whether an exception ended the rank, even if it is shutting down or was terminated then."""
    status = rank.exit_status
    is_open = status is None or status.was_asked_for or bool(status.code)
    return rank.failure is not None and is_open


def is_own_child(rank: RankFacts, ranks: Sequence[RankFacts]) -> bool:
    """Whether it is a child of a living rank and never took part in torch.distributed."""
    has_peers = rank.has_groups or rank.reached
    return not has_peers and any(
        other.is_living and other.node == rank.node and other.pid == rank.parent_pid
        for other in ranks
    )


def cause_of(rank: RankFacts) -> str:
    """Cause of a crash verdict on this rank."""
    return OUT_OF_MEMORY if rank.was_oom_killed else DIED


def endings_text(ranks: Sequence[RankFacts]) -> str:
    """How several ranks ended, each way once, as the predicate of a sentence."""
    texts = dict.fromkeys(map(ending_text, ranks))
    if any(text.startswith("failed with") for text in texts):
        texts.pop("failed", None)  # the text for an unknown exit code
    text = "; ".join(texts)
    return re.sub(r"\bwas killed", "were killed", text) if len(ranks) > 1 else text


def ending_text(rank: RankFacts) -> str:
    """As in "was killed by signal 9 (SIGKILL)", "failed with exit code 3"."""
    status = rank.exit_status
    if rank.was_oom_killed:
        return "was killed by the kernel's OOM killer (signal 9): memory was used up"
    if has_raised(rank) and (status is None or status.was_asked_for):
        return "failed"
    if status is None and rank.state == "exited":
        return "ended with an unknown exit code"
    if status is None:
        return "died with an unknown exit code"
    if status.signal:
        return f"was {status}"
    return str(status) if status.is_success else f"failed with exit code {status.code}"


def failure_of(rank: RankFacts) -> Failure | None:
    """The exception that ended the process; None if none did."""
    return rank.failure if has_raised(rank) else None


def lost_peer(rank: RankFacts) -> bool:
    """Whether the rank failed because it lost the connection to a peer."""
    failure = failure_of(rank)
    return failure is not None and bool(_LOSS_OF_PEER.search(f"{failure.type} {failure.message}"))


def own_failure(rank: RankFacts) -> Failure | None:
    """The exception of the rank unless it is the loss of a peer."""
    return None if lost_peer(rank) else failure_of(rank)


def error_text(failure: Failure) -> str:
    """As in "RuntimeError: injected", on one line of at most 120 characters."""
    text = f"{failure.type}: {failure.message}" if failure.message else failure.type
    text = text.replace("`", "'")
    return text if len(text) <= _MAX_ERROR else f"{text[: _MAX_ERROR - 2]} …"


def place_text(failure: Failure) -> str:
    """As in "train.py:42"."""
    return f"{failure.file.rpartition('/')[2] or '?'}:{failure.line}"


def failure_lines(rank: RankFacts) -> list[str]:
    """Evidence: the exceptions of a rank and of its threads, with full paths."""
    failures = [failure for failure in (failure_of(rank), rank.thread_failure) if failure]
    return [
        f"{ranks_text([rank])}{_thread(failure)}: {_full_text(failure)}" for failure in failures
    ]


def _thread(failure: Failure) -> str:
    return f", thread {failure.thread}" if failure.thread else ""


def _full_text(failure: Failure) -> str:
    named = f"{failure.type}: {failure.message}" if failure.message else failure.type
    inside = f" in {failure.function}" if failure.function else ""
    return f"{named} ({failure.file}:{failure.line}{inside})"
