"""Series on which each alert must fire and must stay silent: one file per area, ``CASES``."""

from alert_rules.cases import data, memory, observation, pipeline, progress, rollout, stability
from alert_rules.cases.case import Cases

# (alert name, severity) -> its cases
CASES: dict[tuple[str, str], Cases] = {
    **stability.CASES,
    **rollout.CASES,
    **memory.CASES,
    **progress.CASES,
    **pipeline.CASES,
    **data.CASES,
    **observation.CASES,
}
