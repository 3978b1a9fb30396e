"""Cases of the alerts on observation itself."""

from alert_rules.cases.case import Cases, at, gone, rises
from dfx_agent.catalogue import agent, per_rank
from dfx_agent.catalogue.spec import Metric

# Prometheus's own series about a target
UP = Metric("up", "gauge", "", (), "1 while the target answers.", "agent")
# its agent ended with its job
ENDED = gone(agent.JOB_ENDED, 1, before=0)

CASES = {
    ("DfxShimDropping", "warning"): Cases(
        fires=((rises(agent.LOST_RECORDS, 1),), (rises(agent.GUEST_DROPS, 1),)),
        silent=((at(agent.LOST_RECORDS, 9), at(agent.GUEST_DROPS, 9)),),
    ),
    ("DfxAgentBlind", "warning"): Cases(
        fires=((at(agent.RUN_BLIND, 1),), (at(agent.RUN_BLIND, 1), at(agent.AGENT_BLIND, 1))),
        silent=(
            (at(agent.RUN_BLIND, 0),),
            (at(agent.RUN_BLIND, 0), at(agent.AGENT_BLIND, 1)),
        ),
    ),
    ("DfxAgentDown", "warning"): Cases(
        fires=(
            (at(UP, 0), gone(per_rank.RANK_UP, 1)),
            (at(UP, 0), gone(per_rank.RANK_UP, 1), gone(agent.JOB_ENDED, 0)),
        ),
        silent=(
            (at(UP, 1), at(per_rank.RANK_UP, 1)),
            (at(UP, 1), gone(per_rank.RANK_UP, 1)),
            (at(UP, 0), gone(per_rank.RANK_UP, 0, before=1), ENDED),
        ),
    ),
    ("DfxAgentAbsent", "warning"): Cases(
        fires=((at(per_rank.RANK_UP, 1),),),
        silent=((at(UP, 0),), (at(UP, 1),)),
        carries=("job",),
    ),
    ("DfxRunVanished", "critical"): Cases(
        fires=(
            (at(UP, 0), gone(per_rank.RANK_UP, 1)),
            (gone(UP, 1), gone(per_rank.RANK_UP, 1)),
            (at(UP, 0), gone(per_rank.RANK_UP, 1), gone(agent.JOB_ENDED, 0)),
        ),
        silent=(
            (at(UP, 1), at(per_rank.RANK_UP, 1)),
            (at(UP, 1), gone(per_rank.RANK_UP, 1)),
            (at(UP, 0), gone(per_rank.RANK_UP, 0)),
            (at(UP, 0), gone(per_rank.RANK_UP, 0, before=1)),
            (gone(UP, 1), gone(per_rank.RANK_UP, 1), ENDED),
            (at(UP, 0), at(per_rank.RANK_UP, 1)),
        ),
    ),
    ("DfxWatchdog", "none"): Cases(fires=((at(UP, 1),),), silent=(), carries=()),
}
