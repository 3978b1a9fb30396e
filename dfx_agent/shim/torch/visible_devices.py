"""Reports which devices this process can see: the current values of variables that hide devices.

/proc shows the values at the start of a process. Ray's workers, and verl in them, set the variables
later, so from outside every rank would seem to use the first device.
"""

from __future__ import annotations

import os

from dfx_agent.shim import recorder
from dfx_agent.wire import job_description


class VisibleDevices:
    """Reports the variables until an accelerator is in use, which never reads them again."""

    def __init__(self) -> None:
        self._writer: recorder.Recorder | None = None
        self._sent: tuple[str | None, ...] = ()
        self._is_settled = False

    def report(self, writer: recorder.Recorder, *, is_used: bool) -> None:
        """Report changes; ``is_used`` means that an accelerator has been initialised."""
        if writer is not self._writer:
            self._writer, self._sent, self._is_settled = writer, (), False
        if self._is_settled:
            return
        self._is_settled = is_used
        values = tuple(map(os.environ.get, job_description.HIDING_VARIABLES))
        if values == self._sent or not (is_used or any(value is not None for value in values)):
            return
        self._sent = values
        for name, value in zip(job_description.HIDING_VARIABLES, values, strict=True):
            writer.add_description(job_description.format_visible(name, value))
