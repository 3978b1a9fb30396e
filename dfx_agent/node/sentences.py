"""Sentences about processes that this node can see but that have no guest."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

STARTING = Sentence(
    "{ranks} been starting for {duration} and written no record yet.",
    {"ranks": "Rank 2 has", "duration": "40 s", "pid": 15740},
    action="Run `py-spy dump --pid {pid}` to see what it imports or waits for.",
)
OUTSIDE_ONLY = Sentence(
    "{num} of the processes {are} observed from outside only, without stages and waits.",
    {"num": 2, "are": "are"},
    action="Run `dfx-agent attach --pid PID` to bring the guest into them.",
)
