"""Cases of the alerts on hangs, deaths and ranks that the others wait for."""

from alert_rules.cases.case import Cases, Series, at
from dfx_agent.catalogue import performance, verdicts
from dfx_agent.catalogue.alerts.declared.progress import LONG_WAIT


def found(kind: str, cause: str = "", stage: str = "rollout") -> Series:
    return (
        at(verdicts.VERDICT_ACTIVE, 1, kind=kind, cause=cause, stage=stage, rank="1"),
        at(verdicts.VERDICT_STATE, 1, kind=kind, state="found"),
    )


def slow(lost_seconds: float, cause: str) -> Series:
    """Of a step of 10 s."""
    return (
        *found("straggler", cause),
        at(verdicts.STRAGGLER_LOST_SECONDS, lost_seconds, rank="1"),
        *(at(performance.RANK_STEP_SECONDS, 10, rank=rank) for rank in ("0", "1")),
    )


def state(kind: str, text: str, cause: str = "") -> Series:
    return (at(verdicts.VERDICT_STATE, 1, kind=kind, state=text, cause=cause),)


_TOKENS, _SLOWER = "more tokens", "slower at equal tokens"
_UNKNOWN = state("hang", "insufficient evidence", LONG_WAIT)

CASES = {
    ("DfxRankDied", "critical"): Cases(
        fires=(found("crash"),), silent=(found("hang"), state("crash", "clear"))
    ),
    ("DfxStepStalled", "critical"): Cases(
        fires=(found("hang"),), silent=(found("crash"), state("hang", "clear"), _UNKNOWN)
    ),
    ("DfxStageStalled", "warning"): Cases(
        fires=(_UNKNOWN,),
        silent=(
            (*_UNKNOWN, *found("hang")),
            state("straggler", "insufficient evidence"),
            state("hang", "clear"),
            state("hang", "insufficient evidence", "part of the job"),
        ),
    ),
    ("DfxRankImbalance", "warning"): Cases(
        fires=(slow(1.05, _TOKENS),), silent=(slow(0.95, _TOKENS), slow(3, _SLOWER))
    ),
    ("DfxStraggler", "warning"): Cases(
        fires=(slow(1.05, _SLOWER),), silent=(slow(0.95, _SLOWER), slow(3, _TOKENS))
    ),
    ("DfxTokenRunaway", "warning"): Cases(
        fires=((at(performance.SUSTAINED_TOKENS_RATIO, 2.1),),),
        silent=((at(performance.SUSTAINED_TOKENS_RATIO, 1.9),),),
    ),
    ("DfxTokenSpike", "info"): Cases(
        fires=((at(performance.LATEST_TOKENS_RATIO, 3.1),),),
        silent=((at(performance.LATEST_TOKENS_RATIO, 2.9),),),
    ),
    ("DfxTokenImbalance", "info"): Cases(
        fires=((at(performance.TOKEN_IMBALANCE, 1.6),),),
        silent=((at(performance.TOKEN_IMBALANCE, 1.4),),),
    ),
}
