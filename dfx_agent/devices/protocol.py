"""What a kind of device has to have, to be read and shown."""

from __future__ import annotations

from typing import Protocol

from dfx_agent.snapshot import DeviceRow


class Backend(Protocol):
    """All devices of one kind on this machine.

    It is made, asked and closed in a thread of its own: a driver may take as long as it likes, and
    whatever is raised costs this kind of device alone. Libraries are imported in ``__init__``.
    """

    def probe(self) -> bool:
        """Whether there are such devices here; asked once, before anything else."""

    def read(self) -> tuple[DeviceRow, ...]:
        """Each of them as it is now; None in a field is what it does not tell.

        What one device cannot be asked is in its ``problems``.
        """

    def close(self) -> None:
        """It is not asked any more."""


class DeviceError(Exception):
    """A kind of device that is here and cannot be read: what is so, and what to do."""

    is_told = True  # one line for people: its traceback says nothing more
