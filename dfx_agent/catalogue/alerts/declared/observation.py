"""Alerts on observation itself: lost records, agents that are gone, the dead man's switch.

``PROMETHEUS_ALERTS`` are compiled to rules only: an agent cannot tell that it is gone itself.
"""

from dfx_agent.catalogue import agent, per_rank
from dfx_agent.catalogue.alerts.alert import Alert, Listing, Recording, Runbook
from dfx_agent.catalogue.alerts.conditions import Compare, Either, Grows, Promql, series

# the job of deploy/prometheus.yml
PROMETHEUS_JOB = "dfx"
_LOSS_WINDOW_SECONDS = 300
_UP = f'up{{job="{PROMETHEUS_JOB}"}}'
_ENDED = agent.JOB_ENDED.sample_name
# what a target said last about the end of its job, for as long as the target is known
ENDED_LAST = f"job_instance:{_ENDED}:last"
_REMEMBER_END = Recording(
    ENDED_LAST, f"({_ENDED} or last_over_time({ENDED_LAST}[1h])) and on (job, instance) {_UP}"
)

SHIM_DROPPING = Alert(
    "DfxShimDropping",
    "warning",
    "agent",
    Either(
        (
            Grows(series(agent.LOST_RECORDS), _LOSS_WINDOW_SECONDS),
            Grows(series(agent.GUEST_DROPS), _LOSS_WINDOW_SECONDS),
        )
    ),
    "Records of a training process were lost",
    Runbook(
        meaning="Records were overwritten before the agent read them, or the guest had no room "
        "for a name or a span.",
        impact="Times and counts of this rank are too small in this period; the job is not "
        "affected.",
        diagnosis="Lost records: is the agent short of CPU time, or does the job write far "
        "more than usual? Dropped: names that hold a number (a step, an id) fill the name table.",
        mitigation="A larger ring (DFX_RING_RECORDS), a lower poll_seconds; names without numbers.",
    ),
    listing=Listing(
        series(agent.LOST_RECORDS), "rank {rank}: {value:.0f} records lost since it began"
    ),
    board="dfx-agent",
)
AGENT_BLIND = Alert(
    "DfxAgentBlind",
    "warning",
    "agent",
    Compare(series(agent.RUN_BLIND), ">", 0),
    "A run is not read or judged any more",
    Runbook(
        meaning="The agent runs, but for a minute it has failed to read this run, or a part of it, "
        "or to judge it.",
        impact="No verdict on it is clear, and its other alerts may be out of date; the job is "
        "not affected. Other runs are observed as before, unless they have this alert, too.",
        diagnosis="The first line of `dfx-agent diagnose`, the page and /readyz show what fails, "
        "since when and with which error; the agent's log has the traceback.",
        mitigation="Start the agent again: it finds what the job wrote, up to the ring's length. "
        "If the failure returns, report the traceback in an issue.",
    ),
    for_seconds=60,
    board="dfx-agent",
)
AGENT_DOWN = Alert(
    "DfxAgentDown",
    "warning",
    "agent",
    Promql(
        f"((max by (job, instance, run) (last_over_time({per_rank.RANK_UP.sample_name}[1h]))"
        f" * 0 + 1 and on (job, instance) {_UP} == 0)"
        f" or on (job, instance) ({_UP} == 0))"
        f" unless on (job, instance) {ENDED_LAST} == 1",
        (per_rank.RANK_UP, agent.JOB_ENDED),
    ),
    "Prometheus cannot scrape an agent",
    Runbook(
        meaning="The target of a node has not answered for 3 minutes, and it was not an agent that "
        "ended with its job (`dfx-agent run`).",
        impact="The runs on that node are not observed; their other alerts resolve without reason.",
        diagnosis="Is the node up? Is the agent (dfx-agent serve) running, and does it listen on "
        "an address that Prometheus reaches, with the token that it asks for?",
        mitigation="Start the agent again: it finds what the job wrote, up to the ring's length.",
    ),
    for_seconds=180,
    recordings=(_REMEMBER_END,),
    board="dfx-agent",
)
AGENT_ABSENT = Alert(
    "DfxAgentAbsent",
    "warning",
    "agent",
    Promql(f"absent({_UP})"),
    "Prometheus knows no agent at all",
    Runbook(
        meaning=f'No target of the job "{PROMETHEUS_JOB}" exists.',
        impact="Nothing is observed and no other alert can fire.",
        diagnosis="Look at Prometheus's own list of targets and at its service discovery.",
        mitigation=f'Repair the scrape configuration; its job_name must be "{PROMETHEUS_JOB}".',
    ),
    for_seconds=600,
    board="dfx-agent",
)
RUN_VANISHED = Alert(
    "DfxRunVanished",
    "critical",
    "agent",
    Promql(
        f"max by (job, run) (last_over_time({per_rank.RANK_UP.sample_name}[30m]) == 1"
        f" unless on (job, instance) (up == 1 or last_over_time({_ENDED}[30m]) == 1))"
        f" unless on (job, run) max by (job, run) ({per_rank.RANK_UP.sample_name})",
        (per_rank.RANK_UP, agent.JOB_ENDED),
    ),
    "A run disappeared together with its agents",
    Runbook(
        meaning="Ranks of the run were alive at their last report, within the last half hour. Now "
        "no agent reports the run, and the agents that reported it are gone. The alert does not "
        "fire if an agent has reported the end of the run, normal or not.",
        impact="Probably a node was lost and the job with it.",
        diagnosis="Is the node up? Ask the scheduler about the job. `dfx-agent run` ends with its "
        "job: it waits for one more scrape, at most linger_seconds (60). Is the scrape interval "
        "longer, or was the agent killed before?",
        mitigation="Restart the job on other nodes. With a longer scrape interval set "
        "linger_seconds to twice the interval.",
    ),
    for_seconds=300,
    inhibits=("DfxAgentDown",),
    board="dfx-agent",
)
WATCHDOG = Alert(
    "DfxWatchdog",
    "none",
    "agent",
    Promql("vector(1)"),
    "Always fires: alerts are evaluated and delivered",
    Runbook(
        meaning="Prometheus evaluates rules and Alertmanager delivers: this alert always fires.",
        impact="None. When it stops arriving, no other alert arrives either.",
        diagnosis="Its receiver should be a dead man's switch outside this installation, which "
        "alerts when nothing has arrived for some minutes.",
        mitigation="None while it fires.",
    ),
    board="dfx-agent",
)

ALERTS = (SHIM_DROPPING, AGENT_BLIND)
PROMETHEUS_ALERTS = (AGENT_DOWN, AGENT_ABSENT, RUN_VANISHED, WATCHDOG)
