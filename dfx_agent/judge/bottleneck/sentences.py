"""Sentences of the pipeline verdict: where a step goes, what bounds a pipeline, and why."""

from __future__ import annotations

from dfx_agent.base.text import Sentence

# -- where a step goes: jobs whose roles take turns ---------------------------------------------

BREAKDOWN = Sentence(
    "A step takes {step}: {parts}.",
    {
        "step": "1.74 s",
        "parts": "33 % update, 31 % waiting for other ranks, 18 % rollout, 16 % log-probs, "
        "2 % other",
    },
)
LARGEST = Sentence(
    "The largest part is {part}: without it a step would take {rest}.",
    {"part": "update (mostly backward)", "rest": "1.17 s"},
)
UNMARKED_PLACE = Sentence(
    'About {share} of the step is in {place}. Wrap it in `with dfx.stage("{stage}"):` to see it.',
    {"share": "51 %", "place": "`load_batch` (train.py:88)", "stage": "data"},
)
UNMARKED = Sentence(
    "{share} of the step is in code that dfx-agent cannot attribute. Wrap parts of it in "
    '`with dfx.stage("NAME"):`.',
    {"share": "74 %"},
)

# -- too early or too old -----------------------------------------------------------------------

TOO_FEW_STEPS = Sentence(
    "Too early to say where the time of a step goes: {num_closed} of {needed} steps have ended.",
    {"num_closed": "2", "needed": "3"},
)
TOO_SHORT = Sentence(
    "Too early to say where the time of a step goes: {seconds} of {needed} have passed.",
    {"seconds": "9 s", "needed": "20 s"},
)
NO_STEP = Sentence(
    "No step of {role} has ended for {seconds}; a step usually takes {step}.",
    {"role": "trainer", "seconds": "70 s", "step": "1.3 s"},
)
LONGEST_SPAN = Sentence(
    "Rank {rank} has been in {name} for {seconds}.",
    {"rank": "1", "name": "collector", "seconds": "70 s"},
)
NO_ENGINE_MOVED = Sentence(
    "No engine has made progress on any request for {seconds}.", {"seconds": "70 s"}
)
LEFT_OUT = Sentence("Left out: step {steps}.", {"steps": "11 (7.8 s, checkpoint or validation)"})

# -- what bounds a pipeline: training and rollout at the same time --------------------------------

BALANCED = Sentence(
    "Balanced: {role} trains during {share} of a step and has no long wait.",
    {"role": "trainer", "share": "92 %"},
)
UNKNOWN = Sentence(
    "{share} of a step of {role} is outside all marked stages and known waits.",
    {"share": "74 %", "role": "trainer"},
)
FELT = Sentence(
    "Ranks of {role} {felt} for {seconds} of each step of {step} ({share}){until}.",
    {
        "role": "trainer", "felt": "wait for samples", "seconds": "0.72 s", "step": "1.5 s",
        "share": "48 %", "until": "; until step 12 it was 0.2 s",
    },
)  # fmt: skip
ENGINES_BUSY = Sentence(
    "The engines have requests during {share} of the time.", {"share": "62 % to 80 %"}
)
ENGINES_HAVE_ROOM = Sentence(
    "The engines are not full: more parallel requests would help, more engines would not."
)
MORE_ROLLOUT = Sentence(
    "{times} times the rollout capacity per trainer would end the wait.", {"times": "2"}
)
MORE_TRAINING = Sentence(
    "{times} times the training capacity would end the wait.", {"times": "1.5"}
)

# -- components ----------------------------------------------------------------------------------

HELD_LOOP = Sentence(
    "The event loop of {process} is blocked for {seconds} of each step by {holder}.",
    {"process": "orchestrator p5", "seconds": "0.8 s", "holder": "step_boundary > dumps (job.py)"},
)
HELD_LOOP_NOW = Sentence(
    "The event loop of {process} has been blocked for {seconds} by {holder}.",
    {"process": "orchestrator p5", "seconds": "12 s", "holder": "step_boundary > dumps (job.py)"},
)
WEIGHT_SYNC = Sentence(
    "Weight sync takes {seconds} of a step{until}.{mostly}",
    {
        "seconds": "1.1 s", "until": "; until step 12 it was 0.07 s",
        "mostly": " Most of it is transfer: 1.05 s to rollout replica 1, 0.05 s to the others.",
    },
)  # fmt: skip
TOOL = Sentence(
    "A tool call takes {seconds}{until}; tools are {share} of an episode.",
    {"seconds": "0.62 s", "until": "; until step 12 it was 0.02 s", "share": "67 %"},
)
MARKED_STAGE = Sentence(
    "{stage} of {process} takes {seconds} each time{until}.",
    {
        "stage": "Reward", "process": "orchestrator p5", "seconds": "3 s",
        "until": "; until step 12 it was 0.05 s",
    },
)  # fmt: skip
STALE_SAMPLES = Sentence(
    "{groups} groups of a step are dropped because their weights are too old{until}.",
    {"groups": "3", "until": "; until step 12 it was 0"},
)
FEW_REQUESTS = Sentence(
    "Since step {step}, only {groups} instead of {usual} groups are rolled out at the same time, "
    "so the engines are not busy.",
    {"groups": "1", "usual": "8", "step": "13"},
)
STILL_ENGINE = Sentence(
    "Engine {engine} has {requests} and has made no progress for {seconds}.",
    {"engine": "replica 1", "requests": "2 requests", "seconds": "20 s"},
)
LOST_ENGINE = Sentence(
    "Engine {engine} is {state}: {reason}.",
    {"engine": "replica 1", "state": "gone", "reason": "connection refused"},
)
SLOW_ENGINE = Sentence(
    "Engine {engine} takes {seconds} per token, the others {usual} ({times} times as long){cost}.",
    {
        "engine": "replica 1", "seconds": "0.0081 s", "usual": "0.0042 s", "times": "1.9",
        "cost": ", which costs 0.59 s of each step",
    },
)  # fmt: skip


def percent(ratio: float) -> str:
    """As in "33 %"."""
    return f"{100 * ratio:.0f} %"
