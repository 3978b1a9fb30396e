"""Series on which each alert must fire and must stay silent: one file per area, ``CASES``."""

from alert_rules.cases import data, memory, observation, pipeline, progress, rollout, stability
from alert_rules.cases.case import Cases, at
from dfx_agent.catalogue import performance
from dfx_agent.catalogue.alerts.alert import is_about_the_end
from dfx_agent.catalogue.alerts.declared import PROMETHEUS_ALERTS

_ENDED = at(performance.RUN_LIVE, 0, node="a")
_LIVES_ELSEWHERE = _ENDED, at(performance.RUN_LIVE, 1, node="b")


def _until_end(cases: dict[tuple[str, str], Cases]) -> dict[tuple[str, str], Cases]:
    """With what holds for every alert: a run that has ended has only alerts that say how."""
    about_end = {
        (alert.name, alert.severity) for alert in PROMETHEUS_ALERTS if is_about_the_end(alert)
    }
    return {
        key: of_alert if key in about_end else _with_end(of_alert)
        for key, of_alert in cases.items()
    }


def _with_end(cases: Cases) -> Cases:
    fires = (*cases.fires, (*cases.fires[0], *_LIVES_ELSEWHERE))
    silent = (*cases.silent, (*cases.fires[0], _ENDED))
    return Cases(fires, silent, cases.carries)


# (alert name, severity) -> its cases
CASES: dict[tuple[str, str], Cases] = _until_end(
    {
        **stability.CASES,
        **rollout.CASES,
        **memory.CASES,
        **progress.CASES,
        **pipeline.CASES,
        **data.CASES,
        **observation.CASES,
    }
)
