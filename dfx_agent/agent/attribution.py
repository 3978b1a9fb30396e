"""Which rank makes the others wait, and why: the straggler verdict of one role.

The culprit waits least while the others wait. Its work in a step is the step's wall time without
waiting for peers; how much more that is than the median of the others is its excess. A verdict
needs all of:

    size         a median excess of at least 5 % of a step, and more than the ranks' own spread from
                 step to step would bring about by chance
    recurrence   in 4 of 5 steps (8 of 10, 16 of 20), or in 3 of 3 when it is above 15 % of a step
    effect       the others waited for it, at least half of the excess

Work that goes with the number of tokens is no fault of the rank: the cause is "more tokens" then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from dfx_agent.agent.excess import Excess, others_median, spread
from dfx_agent.agent.steps import IDLE, TRANSFER, RankStep, Step
from dfx_agent.agent.wording import labels_text, seconds_text
from dfx_agent.snapshot import Verdict, VerdictState

SMALLEST_SHARE = 0.05
LARGE_SHARE = 0.15
MIN_STEPS = 3
MIN_COVERAGE_RATIO = 0.5
_WINDOWS = (20, 10, 5)
_RECURRENCE = 0.8
_STALL_SHARE = 0.5
_STALL_SIGMAS = 6.0
_UNKNOWABLE_SHARE = 0.25
_NAMED_STAGE_SHARE = 0.25
_TOGETHER_SHARE = 0.7
