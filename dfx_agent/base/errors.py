"""Errors that people meet: one line that says what happened and what to do.

DfxError
├── UsageError        wrong option or argument; exit code 2
├── ConfigError       unknown key or bad value in dfx.yaml or DFX_*; exit code 2
├── ListenError       the address cannot be bound
├── BlindError        the agent's reading does not end; nothing can be asked of it
├── TrackerError      a configured tracker cannot open: what it lacks
└── AttachError       a process cannot be attached to; exit code 2, nothing was changed in it

A folder or segment that cannot be used is ``dfx_agent.wire.SegmentError``: the guest raises it too,
and the guest must not depend on anything of the agent.
"""

from __future__ import annotations


class DfxError(Exception):
    """Base of all; ``exit_code`` is what the command line returns."""

    exit_code = 1


class UsageError(DfxError):
    """The command line asks for something that cannot be done as asked."""

    exit_code = 2


class ConfigError(DfxError):
    """``dfx.yaml``, a ``DFX_*`` variable or a flag holds something we do not know."""

    exit_code = 2


class BlindError(DfxError):
    """The agent's reading does not end: what it knows cannot be asked for."""


class ListenError(DfxError):
    """Nobody can listen on this address: in use, or not ours."""


class AttachError(DfxError):
    """A process cannot be attached to; nothing was changed in it.

    ``code`` names the case (``noproc``, ``uid``, ...), ``reason`` says what is so, ``remedy`` the
    one thing to do about it.
    """

    exit_code = 2

    def __init__(self, code: str, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.code = code
        self.reason = reason
        self.remedy = remedy


class TrackerError(DfxError):
    """A configured tracker cannot open: its package, account or folder is missing."""
