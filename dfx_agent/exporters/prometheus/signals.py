"""Training health as Prometheus families: the very samples that the alerts' conditions read."""

from __future__ import annotations

from dfx_agent.catalogue import signals
from dfx_agent.exporters.prometheus.ranks import Page
from dfx_agent.rules.samples import signal_samples
from dfx_agent.snapshot import DetectorParameters, RunRow


def add_signals(page: Page, run: RunRow, node: str) -> None:
    """No series for a run without signals."""
    if run.signals is None:
        return
    page.add(signals.LATE_SIGNALS, (run.run, node), run.num_late_signals)
    for metric, labels, value in signal_samples(run.signals):
        page.add(metric, (run.run, node, *(labels[name] for name in metric.labels[2:])), value)


def add_detector(page: Page, detector: DetectorParameters) -> None:
    """What the figures were computed with, so that they can be understood from metrics alone."""
    names = signals.DETECTOR.labels
    page.info(signals.DETECTOR, tuple(f"{getattr(detector, name):g}" for name in names))
    for row in detector.signals:
        least = "" if row.least_value is None else f"{row.least_value:g}"
        directions = " ".join(row.directions)
        labels = (row.signal, row.symptom, directions, least, f"{row.scale_floor:g}")
        page.info(signals.SIGNAL_PARAMETERS, labels)
