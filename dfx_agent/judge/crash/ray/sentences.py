"""What the crash verdict says of workers that Ray itself ended."""

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
