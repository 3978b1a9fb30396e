"""Alerts on batches that change on their way from one stage to the next (the shape ledger)."""

from dfx_agent.catalogue import verdicts
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, series

_FOUND = series(verdicts.VERDICT_ACTIVE, kind="data")

MISALIGNED = Alert(
    "DfxDataMisaligned",
    "critical",
    "data",
    Compare(_FOUND, "==", 1),
    "A batch changed between two stages that should hand it on as it is",
    Runbook(
        meaning="Checksums at two boundaries of a step differ: samples were lost or doubled, ids, "
        "masks or lengths do not fit each other, values of one sample lie at another, or NaN came "
        "in. The check is exact and no statistic.",
        impact="The policy learns from rewards or log-probabilities of other samples; the curves "
        "may look healthy for long.",
        diagnosis="`dfx-agent diagnose` names the boundary, the tensor, the step and the ranks. "
        "What reorders, filters or pads between the two boundaries, and does it do so to every "
        "tensor alike?",
        mitigation="Stop the run: steps since the first mismatch have trained on wrong pairs. Roll "
        "back to a checkpoint before it.",
    ),
    keep_seconds=3600,
    listing=Listing(_FOUND, "rank {rank} at {stage} ({cause})"),
    board="dfx-e2e",
)

ALERTS = (MISALIGNED,)
