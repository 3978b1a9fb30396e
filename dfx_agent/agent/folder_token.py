"""The token that an agent without a configured token generates: a file in its folder, mode 0600.

Only the agent's user and root can read the file. The page and our commands send the token; other
local users cannot. The file survives restarts, so that an open page stays usable.
"""

from __future__ import annotations

import os
from contextlib import closing

from dfx_agent.node.segments.owned_files import open_existing, open_state, state_directory

NAME = "token"
_NUM_BYTES = 16


def path(directory: str) -> str:
    """Path of the token of the agent that follows ``directory``."""
    return f"{state_directory(directory)}/{NAME}"


def read(directory: str) -> str | None:
    """The token that is there; None when there is none that we may use."""
    try:
        with closing(open_existing(state_directory(directory))) as folder:
            text = folder.read(NAME, 256).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return text if len(text) >= 2 * _NUM_BYTES else None


def made(directory: str) -> str:
    """The stored token, else a new one. OSError or SegmentError if it cannot be stored."""
    if read(directory) is None:
        with closing(open_state(directory)) as folder:
            folder.write(NAME, f"{os.urandom(_NUM_BYTES).hex()}\n".encode())
    token = read(directory)
    if token is None:
        raise OSError(f"{path(directory)} cannot be read")
    return token
