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
    "A batch changed between two stages that should not change it",
    Runbook(
        meaning="Checksums at two boundaries of a step differ: samples were lost or doubled, ids, "
        "masks or lengths do not fit each other, values belong to another sample, or NaN "
        "appeared. The check is exact and not statistical.",
        impact="The policy learns from rewards or log-probabilities of other samples; the curves "
        "may look healthy for a long time.",
        diagnosis="`dfx-agent diagnose` names the boundary, the tensor, the step and the ranks. "
        "Which code reorders, filters or pads between the two boundaries? Does it treat every "
        "tensor in the same way?",
        mitigation="Stop the run: steps since the first mismatch have trained on wrong pairs. Roll "
        "back to a checkpoint before it.",
    ),
    keep_seconds=3600,
    listing=Listing(_FOUND, "rank {rank} at {stage} ({cause})"),
    board="dfx-e2e",
)

ALERTS = (MISALIGNED,)
