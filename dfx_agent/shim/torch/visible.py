"""Which devices this process was left, by the variables that hide devices as they are in it now.

/proc shows what a process was started with. Ray's workers, and verl in them, set these variables
later: from outside every rank would seem to have the first device.
"""

from __future__ import annotations

import os

from dfx_agent.shim import recorder
from dfx_agent.wire import job_description


class VisibleTeller:
    """Says them until an accelerator is in use: it has read them then, and does not again."""

    def __init__(self) -> None:
        self._writer: recorder.Recorder | None = None
        self._said: tuple[str | None, ...] = ()
        self._is_settled = False

    def look(self, writer: recorder.Recorder, *, is_used: bool) -> None:
        """``is_used``: an accelerator has been initialised and is in use."""
        if writer is not self._writer:
            self._writer, self._said, self._is_settled = writer, (), False
        if self._is_settled:
            return
        self._is_settled = is_used
        values = tuple(map(os.environ.get, job_description.HIDING_VARIABLES))
        if values == self._said or not (is_used or any(value is not None for value in values)):
            return
        self._said = values
        for name, value in zip(job_description.HIDING_VARIABLES, values, strict=True):
            writer.say(job_description.format_visible(name, value))
