"""Sentences about data that could not be read, judged or shown."""

from dfx_agent.base.text import Sentence

NOTHING_JUDGED = Sentence("Nothing has been judged yet.")
NOT_JUDGED = Sentence(
    "This could not be judged: {reason}.", {"reason": "ValueError at judge.py:12: no such rank"}
)
NOT_JUDGED_SINCE = Sentence(
    "Nothing has been judged since {when}: {reason}.",
    {"when": "14:05:07", "reason": "folder reading: OSError at folder.py:30: Input/output error"},
)
NOT_READ = Sentence(
    "The records of {what} cannot be read: {reason}.",
    {"what": "rank 2 (trainer)", "reason": "OSError at reader.py:80: Input/output error"},
)
FAULT = Sentence(
    "The agent itself has a fault in {part} {what}: {reason}.",
    {"part": "judgement", "what": "straggler", "reason": "ValueError at judge.py:12: no such rank"},
)
BEFORE = Sentence("Before that: {summary}", {"summary": "No rank waits for long."})
