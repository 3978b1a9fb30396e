"""Sentences about incidents and about the state of a run."""

from dfx_agent.base.text import Sentence

BEGAN = Sentence("It began at {when}.", {"when": "step 20 (2026-11-24 14:05:07 UTC)"})
FIRST_SIGNAL = Sentence(
    "The first signal moved at {when}.", {"when": "step 20 (2026-11-24 14:05:07 UTC)"}
)
COSTS = Sentence("It costs {seconds} of every step.", {"seconds": "0.5 s"})
ENDED = Sentence("It was over at {when}.", {"when": "2026-11-24 14:09:07 UTC"})
UNTIL_RUN_END = Sentence(
    "It was not over when the run ended at {when}.", {"when": "2026-11-24 14:09:07 UTC"}
)
RENDEZVOUS_ACTION = "Start the missing processes, or find out why they do not reach the others."

NOT_FOUND_ANY_MORE = "This is not found any more; its alert ends soon."

NOT_JUDGED_AGAIN = Sentence(
    "An earlier agent found this, and it has not been judged again yet: {found}",
    {"found": "Rank 1 is stuck in its data loader."},
)
ALERTS_PENDING = Sentence("The alerts have not been evaluated yet.")
LATE_FACTS = Sentence(
    "The nodes report {late} late: they send more than the hub can process.", {"late": "25 s"}
)
NO_STEP_YET = Sentence("Waiting for the first complete step.")
NO_STEP = Sentence("No step was completed.")
NOTED = Sentence("Also noted: {summary}", {"summary": "The learning rate has changed."})
NOTHING_FOUND = Sentence(
    "No problem found. Checked: {kinds}.", {"kinds": "hang, crash, straggler, memory"}
)
EARLIER = Sentence(
    "Earlier, from {begin} to {end} UTC: {summary}",
    {"begin": "14:02:10", "end": "14:03:20", "summary": "Rank 1 was stuck in its data loader."},
)

RUN_ENDED = Sentence(
    "The run ended normally at {when}, {where}.",
    {"when": "2026-11-24 14:09:07 UTC", "where": "after step 120"},
)
DETACHED = Sentence(
    "The job was detached at {when}, {where}. It may still run.",
    {"when": "2026-11-24 14:09:07 UTC", "where": "in step 120"},
)
UNOBSERVED = Sentence("Nothing is known of the job since then.")
RUN_FAILED = Sentence(
    "The run ended at {when}, {where}.",
    {"when": "2026-11-24 14:09:07 UTC", "where": "in step 120"},
)
RUN_BROKE_OFF = Sentence(
    "The run ended at {when}, {where}: {ranks} did not shut down in order.",
    {"when": "2026-11-24 14:09:07 UTC", "where": "in step 120", "ranks": "rank 1"},
)
