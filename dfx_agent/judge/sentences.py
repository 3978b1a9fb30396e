"""Sentences about verdicts that explain each other, and about judging a part of a job."""

from dfx_agent.base.text import Sentence

STUCK_NOW = Sentence(
    "The job is stuck, so that steps are not compared. Before that: {before}",
    {"before": "Rank 1 was last in 18 of 20 steps."},
)
STUCK_NO_STEPS = Sentence("The job is stuck: no steps to compare.")
EXPLAINED = Sentence(
    "These ranks wait because of another finding: {cause}",
    {"cause": "Rank 1 has been suspended (state T) for 11 s."},
)
NO_STEP_FOR = Sentence(
    "No step has been completed for {seconds}, and one takes {usual}.",
    {"seconds": "110 s", "usual": "0.12 s"},
)
PART_OF_JOB = Sentence(
    "Of this node only: {num_seen} of {num_ranks} ranks are seen here.",
    {"num_seen": 4, "num_ranks": 8},
)
STEPS_FROM_ATTACH = Sentence(
    "Steps are counted from the attach: the job's own step number is unknown, so it may be higher."
)
DEVICE_REPORTED = Sentence("The device reported {event}.", {"event": "XID 79 on node-b GPU 3"})
CRASH_ON_THIS_NODE = Sentence(
    "Of this node only ({part}): {finding}",
    {"part": "2 of 4 ranks are seen here", "finding": "rank 1 failed with exit code 1."},
    action="Look at the hub or at the other nodes first: a rank there may have failed before.",
)
