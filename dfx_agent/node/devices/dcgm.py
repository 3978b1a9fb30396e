"""SM activity and similar values from a dcgm-exporter on this machine, for GPUs without GPM.

Below Hopper these values come from a profiling module that only one program may use at a time. So
an exporter that already runs is read, and none is started.
"""

from __future__ import annotations

import os
import re
import time

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
    """One exporter, at the URL in $DFX_DCGM_URL or at its default port on this machine."""

    def __init__(self) -> None:
        self._url = os.environ.get(VARIABLE, "")
        self._due = 0.0
        self.problem = ""

    def active_ratio(self) -> dict[str, dict[str, float]]:
        """UUID -> unit -> share; empty if there is no exporter, which is tried again in a minute.

        A configured URL that does not answer is a ``problem``.
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
        return parse_page(answer.text)


def parse_page(text: str) -> dict[str, dict[str, float]]:
    """Parse the exporter's Prometheus text; MIG parts are skipped."""
    ratios: dict[str, dict[str, float]] = {}
    for name, labels_text, value in _LINE.findall(text):
        labels = dict(_LABEL.findall(labels_text))
        if name in _UNITS and labels.get("UUID") and not labels.get("GPU_I_ID"):
            try:
                ratio = float(value)
            except ValueError:
                continue
            if 0.0 <= ratio <= 1.01:
                ratios.setdefault(labels["UUID"], {})[_UNITS[name]] = min(1.0, ratio)
    return ratios
