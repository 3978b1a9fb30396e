"""Families as Prometheus text 0.0.4 or OpenMetrics 1.0, with label texts cached between scrapes.

prometheus_client's own encoders spend most of their time on labels that are the same at every
scrape; with this one a scrape takes half as long (bench/scrape_time.py). A test parses the output
of both and compares. Formats: Prometheus "exposition formats" and OpenMetrics 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from prometheus_client.metrics_core import Metric as Family

_SUFFIXES = {"counter": "_total", "info": "_info"}
_MAX_CACHED = 100_000


class Encoder:
    """Encoder of one exporter; caches the text of every label set."""

    def __init__(self) -> None:
        self._labels: dict[tuple[tuple[str, str], ...], str] = {}

    def encode(self, families: Iterable[Family], *, is_openmetrics: bool) -> bytes:
        """The whole page as UTF-8."""
        if len(self._labels) > _MAX_CACHED:
            self._labels.clear()
        lines: list[str] = []
        for family in families:
            _add_head(lines, family, is_openmetrics=is_openmetrics)
            lines += [
                f"{sample.name}{self._label_text(sample.labels)} {_number(sample.value)}\n"
                for sample in family.samples
            ]
        if is_openmetrics:
            lines.append("# EOF\n")
        return "".join(lines).encode("utf-8", "backslashreplace")

    def _label_text(self, labels: dict[str, str]) -> str:
        key = tuple(labels.items())
        text = self._labels.get(key)
        if text is None:
            pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in key)
            text = self._labels[key] = f"{{{pairs}}}" if pairs else ""
        return text


def _add_head(lines: list[str], family: Family, *, is_openmetrics: bool) -> None:
    name, kind = family.name, family.type
    if is_openmetrics:
        lines.append(f"# HELP {name} {_escaped(family.documentation)}\n# TYPE {name} {kind}\n")
        if family.unit:
            lines.append(f"# UNIT {name} {family.unit}\n")
        return
    name += _SUFFIXES.get(kind, "")
    kind = "gauge" if kind == "info" else kind
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
