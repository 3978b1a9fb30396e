"""Errors that users see: one line that says what happened and what to do.

DfxError
├── UsageError        wrong option or argument; exit code 2
├── ConfigError       unknown key or bad value in dfx.yaml or DFX_*; exit code 2
├── ListenError       the address cannot be bound
├── BlindError        the agent's reading does not end; it cannot answer requests
├── TrackerError      a configured tracker cannot open; says what is missing
└── AttachError       a process cannot be attached to; exit code 2, nothing was changed in it

A folder or segment that cannot be used is ``dfx_agent.wire.SegmentError``: the guest raises it
too, and must not depend on the agent.
"""

from __future__ import annotations


class DfxError(Exception):
    """Base class of all errors; the command line returns ``exit_code``."""

    exit_code = 1


class UsageError(DfxError):
    """The command line has a wrong option or argument."""

    exit_code = 2


class ConfigError(DfxError):
    """``dfx.yaml``, a ``DFX_*`` variable or a flag has an unknown key or a bad value."""

    exit_code = 2


class BlindError(DfxError):
    """The agent's reading does not end, so it cannot answer requests."""


class ListenError(DfxError):
    """The agent cannot listen on this address: it is in use, or not on this machine."""


class AttachError(DfxError):
    """A process cannot be attached to; nothing was changed in it.

    ``code`` names the case (``noproc``, ``uid``, ...), ``reason`` says what is wrong, and
    ``remedy`` what to do.
    """

    exit_code = 2

    def __init__(self, code: str, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.code = code
        self.reason = reason
        self.remedy = remedy


class TrackerError(DfxError):
    """A configured tracker cannot open: its package, account or folder is missing."""
