"""The exceptions that ended ranks, in words, and whether one is only the loss of a peer."""

from __future__ import annotations

import re

from dfx_agent.facts.rank import Failure, RankFacts
from dfx_agent.judge.crash.endings import has_raised
from dfx_agent.judge.words import ranks_text

_MAX_ERROR = 120
# what gloo, NCCL and the store of a process group raise in a rank whose peer is gone
_LOSS_OF_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|closed by peer"
    r"|remote process (has )?exited|communicator was aborted|nccl ?remote|ncclRemoteError"
    r"|socket (was )?closed|failed to (recv|send)|recvvalue failed|sendbytes failed"
    r"|heartbeat|tcpstore|watchdog|timed out waiting",
    re.IGNORECASE,
)


def failure_of(rank: RankFacts) -> Failure | None:
    """The exception that ended the process, if its end is that of an exception."""
    return rank.failure if has_raised(rank) else None


def lost_peer(rank: RankFacts) -> bool:
    """Whether it failed since another rank was gone: it was not the first."""
    failure = failure_of(rank)
    return failure is not None and bool(_LOSS_OF_PEER.search(f"{failure.type} {failure.message}"))


def own_failure(rank: RankFacts) -> Failure | None:
    """An exception that is not the loss of a peer."""
    return None if lost_peer(rank) else failure_of(rank)


def error_text(failure: Failure) -> str:
    """As in "RuntimeError: injected", on one line of at most 120 characters."""
    text = f"{failure.type}: {failure.message}" if failure.message else failure.type
    text = text.replace("`", "'")
    return text if len(text) <= _MAX_ERROR else f"{text[: _MAX_ERROR - 2]} …"


def place_text(failure: Failure) -> str:
    """As in "train.py:42"."""
    return f"{failure.file.rpartition('/')[2] or '?'}:{failure.line}"


def line_of(rank: RankFacts) -> list[str]:
    """Evidence: what it raised, with the whole path, and what a thread of it raised before."""
    failures = [failure for failure in (failure_of(rank), rank.thread_failure) if failure]
    return [f"{ranks_text([rank])}{_thread(f)}: {_full_text(f)}" for f in failures]


def _thread(failure: Failure) -> str:
    return f", thread {failure.thread}" if failure.thread else ""


def _full_text(failure: Failure) -> str:
    named = f"{failure.type}: {failure.message}" if failure.message else failure.type
    inside = f" in {failure.function}" if failure.function else ""
    return f"{named} ({failure.file}:{failure.line}{inside})"
