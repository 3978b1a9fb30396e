"""Sentences of the hang verdict, one constant each. The docs list all of them."""

from dfx_agent.base.text import Sentence

_RANK = {"ranks": "Rank 2", "duration": "14 s", "place": "in backward, at step (train.py:42)"}
_WAITING = {"waiting": "Ranks 0, 1 wait in all_reduce", "age": "13 s"}

NOBODY_WAITS = Sentence("No rank has waited long for another one.")
HANG_FIRST = Sentence("The ranks that ended were stuck before: see the hang.")
JUST_ARRIVED = Sentence(
    "{waiting}, and the other ranks have just arrived.", {"waiting": _WAITING["waiting"]}
)
WAIT_FOR_DEAD = Sentence("The other ranks wait for a rank that died.")

SUSPENDED = Sentence(
    "{ranks} been suspended (state T) for {duration}{place}.",
    {"ranks": "Rank 2 has", "duration": "11 s", "place": ", in backward",
     "command": "kill -CONT 15740"},
    action="Run `{command}` to resume it.",
)  # fmt: skip
STUCK = Sentence("{ranks} been stuck {place} for {duration}.", {**_RANK, "ranks": "Rank 2 has"})
LEFT = Sentence(
    "{ranks} ended {duration} ago without taking part, {place}.", {**_RANK, "place": "in forward"}
)
NOT_ENDING = Sentence(
    "{ranks} closed its records {duration} ago, and its process does not end.",
    {"ranks": "Rank 2", "duration": "130 s"},
)
THEY_WAIT = Sentence("{waiting} for {age}.", _WAITING)
BUSY_AMONG_IDLE = Sentence(
    "{ranks} been {place} for {duration}, while the other actors are idle and the driver waits.",
    {**_RANK, "ranks": "Rank 1 has", "place": "in collect, at read (env.py:42)"},
)
BUSY_FOR_DRIVER = Sentence(
    "{ranks} been {place} for {duration}, and the driver waits for an actor.",
    {**_RANK, "ranks": "Rank 1 has", "place": "in collect, at read (env.py:42)"},
)
BUSY_NOT_SURE = Sentence(
    "{ranks} been {place} for {duration}, longer than usual. It is called a hang after {limit}.",
    {**_RANK, "ranks": "Rank 1 has", "place": "in collect", "limit": "45 s"},
)
NOT_CALLED = Sentence(
    "{waiting} for {ranks} for {age}, but the driver has called no method of {ranks}.",
    {**_WAITING, "ranks": "rank 1"},
    action="Run `dfx-agent diagnose` for the stack of the driver: it must call all actors.",
)
NO_ANSWER = Sentence(
    "{ranks} waited for {answer} for {duration}{at}. A step usually takes {usual}.",
    {"ranks": "Rank 0 has", "answer": "an HTTP answer", "duration": "130 s",
     "at": ", at fetch (train.py:12)", "usual": "2.1 s"},
)  # fmt: skip

STILL_AT_WORK = Sentence(
    "{waiting} for {ranks}, which has been {place} for {duration}. That may take up to {limit}.",
    {**_WAITING, "ranks": "rank 2", "place": "in rollout", "duration": "40 s", "limit": "600 s"},
)
NOT_SURE = Sentence(
    "{waiting} for {ranks}, which {does} {place} for {duration}. "
    "It is called a hang after {limit}.",
    {**_WAITING, "ranks": "rank 1", "does": "has been", "place": "at reward (train.py:5)",
     "duration": "25 s", "limit": "60 s"},
)  # fmt: skip
SHUTTING_DOWN = Sentence(
    "{waiting} for {ranks}, which has been shutting down for {duration}. "
    "It is called a hang after {limit}.",
    {**_WAITING, "ranks": "rank 1", "duration": "25 s", "limit": "120 s"},
)

CIRCULAR = Sentence(
    "Deadlock for {age}: {waits}.",
    {"age": "40 s", "waits": "rank 0 waits in recv from rank 1, rank 1 waits in recv from rank 0"},
)
MISMATCHED = Sentence(
    "Deadlock for {age}: {calls}. These calls do not match and will never finish.",
    {"age": "11 s", "calls": "rank 2 called barrier while ranks 0, 1 called all_reduce"},
)
UNFINISHED = Sentence(
    "{waiting} for {age}: all ranks have called it, and it does not finish.",
    {"waiting": "Ranks 0, 1 wait in all_reduce", "age": "40 s"},
)
ALL_WAIT = Sentence("{waiting} for {age}.", _WAITING)
WAIT_FOR_UNKNOWN = Sentence(
    "{waiting} for {age}. This kind of wait does not say for which rank.",
    {"waiting": "Rank 0 waits in barrier", "age": "130 s"},
)
WAIT_FOR_UNSEEN = Sentence(
    "{waiting} for {age}. {unseen} not observed by this agent.",
    {**_WAITING, "unseen": "4 ranks of the job are"},
)
MEMBERS_UNKNOWN = Sentence(
    "{waiting} for {age}. Which other ranks belong to its process group is not known.",
    {"waiting": "Rank 0 waits in all_reduce of group tp", "age": "40 s"},
)

NO_PROGRESS = Sentence(
    "Nothing has moved in the whole run for {duration}; a step takes {usual}. "
    "All ranks are {place}.",
    {"duration": "130 s", "usual": "1.2 s", "place": "outside all stages"},
)
NO_KNOWN_PACE = Sentence(
    "Nothing has moved for {duration}, and no finished step says how long one takes.",
    {"duration": "130 s"},
)
FOR_A_PERSON = Sentence(
    "Nothing has moved for {duration}: {ranks} for a person, in a notebook or a debugger.",
    {"duration": "130 s", "ranks": "rank 0 waits"},
)
LONG_STEP = Sentence(
    "No step has ended for {duration}; a step usually takes {usual}. {ranks} {place}.",
    {"duration": "112 s", "usual": "1.2 s", "ranks": "Rank 0 is", "place": "in rollout"},
)
SILENT_ALONE = Sentence(
    "{ranks} not moved for {duration}, {place}; a step takes {usual}. No other rank waits for it.",
    {**_RANK, "ranks": "Rank 2 has", "usual": "0.1 s", "place": "outside all stages"},
)
DOES_NOT_END = Sentence(
    "{ranks} does not end: torch has been freeing its process group for {duration}.",
    {"ranks": "Rank 0", "duration": "20 s", "command": "kill -9 15740"},
    action="Run `{command}`: the deadlock is torch's own, after the work of this rank is done.",
)
AGENT_WAS_HELD_UP = Sentence(
    "This agent could not read for {duration} and is not sure. {summary}",
    {"duration": "8 s", "summary": "Rank 2 has been stuck in backward for 14 s."},
)
