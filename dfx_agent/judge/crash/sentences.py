"""Sentences of the crash verdict."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

ENDED_WITH_DRIVER = Sentence(
    "{driver}, the driver, ended, and Ray ended {ranks} with it.",
    {"driver": "Process 4711", "ranks": "ranks 0, 1"},
)
ENDED_ON_PURPOSE = Sentence(
    "No rank has died. Ray ended {ranks} on purpose, as `ray.kill` does.",
    {"ranks": "ranks 0, 1"},
)
DRIVER_LOST_ACTOR = Sentence(
    "{driver}, the driver, failed because {ranks} {ending}.",
    {
        "driver": "Process 4711",
        "ranks": "rank 1",
        "ending": "was killed by signal 9 (SIGKILL)",
    },
)
ENDED_WITH_RAY = Sentence(
    "{ranks} ended together with Ray, as at the end of a job. Their driver was not observed.",
    {"ranks": "Ranks 0, 1"},
)
RAISED = Sentence(
    "{ranks} {ending}: `{error}` at `{place}`.",
    {
        "ranks": "Rank 1",
        "ending": "failed with exit code 1",
        "error": "RuntimeError: injected",
        "place": "train.py:42",
    },
    action="Fix the error, then restart from the latest checkpoint. "
    "The full traceback is in the log of the rank.",
)
LOST_PEER = Sentence(
    "{ranks} {ending} after losing the connection to another rank: `{error}` at `{place}`.",
    {
        "ranks": "Rank 1",
        "ending": "failed with exit code 1",
        "error": "RuntimeError: Connection closed by peer",
        "place": "train.py:42",
    },
    action="Find the rank that ended first: see its log, or the hub of the job.",
)
DIED = Sentence(
    "{ranks} {ending}; last seen {place}.",
    {"ranks": "Rank 3", "ending": "was killed by signal 9 (SIGKILL)", "place": "in forward"},
)
TERMINATED = Sentence(
    "{ranks} {ending} while other ranks continued; last seen {place}. "
    "A person or the scheduler ended it.",
    {"ranks": "Rank 2", "ending": "was killed by signal 15 (SIGTERM)", "place": "in rollout"},
)
LEFT_EARLY = Sentence(
    "{ranks} ended without an error{step} while other ranks continued. "
    "{failed} {ending} afterwards.",
    {
        "ranks": "Rank 1",
        "step": " in step 4",
        "failed": "Ranks 0, 2, 3",
        "ending": "failed with exit code 1",
    },
)
JOB_STOPPED = Sentence(
    "The job was stopped from outside: {ranks} {ending}.",
    {"ranks": "ranks 0, 1", "ending": "were killed by signal 15 (SIGTERM)"},
)
ORDER_UNKNOWN = Sentence(
    "{ranks} {ending} almost at once. The order is unknown, so no rank is named as first.",
    {"ranks": "Ranks 0, 1", "ending": "failed with exit code 1"},
)
SHUTTING_DOWN = Sentence(
    "{ranks} {are} shutting down. The cause will be known when {they} exited.",
    {"ranks": "Ranks 0, 1, 2", "are": "are", "they": "they have"},
)
NONE_DIED = Sentence("No rank has died.")
CHILD_ENDED = Sentence(
    "No rank has died. {ranks} {ending}: a child process of a rank that is still running.",
    {"ranks": "Process 4711", "ending": "was killed by signal 9 (SIGKILL)"},
)
