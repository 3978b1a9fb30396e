"""What a dcgm-exporter of this machine says of GPUs that have no GPM: SM activity and the like.

Below Hopper these figures come from a profiling module that one program alone may use, so an
exporter that runs already is read, and none is started.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping

from dfx_agent.base.lean_httpx import httpx

SOURCE = "dcgm"
VARIABLE = "DFX_DCGM_URL"
_DEFAULT_URL = "http://127.0.0.1:9400/metrics"
_UNITS = {
    "DCGM_FI_PROF_SM_ACTIVE": "sm",
    "DCGM_FI_PROF_SM_OCCUPANCY": "sm_occupancy",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram",
}
_LINE = re.compile(r"^(DCGM_FI_PROF_\w+)\{([^}]*)\}\s+(\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT_SECONDS = 2.0
_ASK_AGAIN_SECONDS = 60.0


class Exporter:
    """One exporter, by its URL in $DFX_DCGM_URL or at its usual port here."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._url = environment.get(VARIABLE, "")
        self._due = 0.0
        self.problem = ""

    def active_ratio(self) -> dict[str, dict[str, float]]:
        """UUID -> unit -> share; empty where there is no exporter, which is asked anew in a minute.

        A URL that was given and does not answer is a ``problem``.
        """
        now = time.monotonic()
        if now < self._due:
            return {}
        self.problem = ""
        try:
            answer = httpx.get(self._url or _DEFAULT_URL, timeout=_TIMEOUT_SECONDS)
            answer.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._due = now + _ASK_AGAIN_SECONDS
            if self._url:
                self.problem = f"the dcgm-exporter of {VARIABLE} does not answer ({error})"
            return {}
        return parsed(answer.text)


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Of its page in Prometheus' text format; whole GPUs alone."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in _LINE.findall(text):
        known = dict(_LABEL.findall(labels))
        if name in _UNITS and known.get("UUID") and not known.get("GPU_I_ID"):
            try:
                ratio = float(value)
            except ValueError:
                continue
            if 0.0 <= ratio <= 1.01:
                found.setdefault(known["UUID"], {})[_UNITS[name]] = min(1.0, ratio)
    return found
