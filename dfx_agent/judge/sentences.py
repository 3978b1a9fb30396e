"""Sentences that are used by the verdicts of several judges."""

from dfx_agent.base.text import Sentence

STUCK_NOW = Sentence(
    "The job completes no steps now, so none are compared. Before that: {before}",
    {"before": "Rank 1 was last in 18 of 20 steps."},
)
STUCK_NO_STEPS = Sentence("The job completes no steps now, so there are none to compare.")
EXPLAINED = Sentence(
    "These ranks wait because of another finding: {cause}",
    {"cause": "Rank 1 has been suspended (state T) for 11 s."},
)
NO_STEP_FOR = Sentence(
    "No step has been completed for {seconds}; a step usually takes {usual}.",
    {"seconds": "110 s", "usual": "0.12 s"},
)
PART_OF_JOB = Sentence(
    "Of this node only: {num_seen} of {num_ranks} ranks are observed.",
    {"num_seen": 4, "num_ranks": 8},
)
STEPS_FROM_ATTACH = Sentence(
    "Steps are counted from the moment of attaching: the job's own step number may be higher."
)
DEVICE_REPORTED = Sentence("The device reported {event}.", {"event": "XID 79 on node-b GPU 3"})
CRASH_ON_THIS_NODE = Sentence(
    "{finding} This is of one node only: {part}.",
    {"part": "2 of 4 ranks are observed", "finding": "Rank 1 failed with exit code 1."},
    action="Check the hub or the other nodes first: a rank there may have failed earlier.",
)
