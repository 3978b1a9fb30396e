"""Contract 2: training health of a run: rows that ``snapshot`` hands out with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SignalParameters:
    """How one signal is scored; ``least_value`` is None where the raw value is (no logarithm).

    Smaller values count as ``least_value``; ``scale_floor`` is the smallest standard deviation
    believed, in the scale of the scores.
    """

    signal: str
    symptom: str
    directions: tuple[str, ...]
    least_value: float | None
    scale_floor: float


@dataclass(frozen=True, slots=True)
class DetectorParameters:
    """The parameters of every run's detector; all lengths are in steps."""

    window_steps: int
    gap_steps: int
    warm_steps: int
    active_steps: int
    calm_steps: int
    latch_steps: int
    cusum_z_cap: float
    cusum_slack: float
    cusum_alarm: float
    signals: tuple[SignalParameters, ...]


@dataclass(frozen=True, slots=True)
class SignalRow:
    """One training signal against its own baseline, as of the newest step.

    ``value`` and the band are in the signal's unit; the band is where z is within ±2. ``z`` is None
    when the step was not scored; ``is_broken``: NaN or infinity was reported, ``value`` is None.
    ``usual_value``: the middle of the band. ``has_varied``: its values were not all the same.
    ``cusum_*`` alarm above 8. ``drift_ratio`` (log signals) and ``drift_difference`` (reward,
    truncation) compare the newest 8 values with the 5th to 21st.
    """

    signal: str
    symptom: str
    value: float | None
    z: float | None
    cusum_up: float
    cusum_down: float
    baseline_low: float | None
    baseline_high: float | None
    is_baseline_ready: bool
    recent_median: float | None
    drift_ratio: float | None
    drift_difference: float | None
    is_broken: bool = False
    usual_value: float | None = None
    has_varied: bool = True


CollapseKind = Literal[
    "blow_up", "spikes", "entropy_fall", "reward_fall", "truncation", "dead", "not_learning"
]


@dataclass(frozen=True, slots=True)
class CollapseRow:
    """Steps in a row with a state that needs no vote; ``signal`` is "" where it is of the run.

    "blow_up": 20 times and 10 sigma above the baseline, entropy also 8 times below; "truncation":
    most responses cut, where few were; "dead": nearly all cut and the reward at its lowest;
    "entropy_fall": the entropy fell to a fifth within 20 steps; "not_learning": no gradient and the
    reward at its lowest; "reward_fall": the reward far below its best. "spikes" are not in a row:
    steps of the newest 64 that were 1000 times above the baseline. ``onset_step``: the first of
    them, ``last_step`` the newest.
    """

    kind: CollapseKind
    signal: str
    num_steps: int
    onset_step: int | None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class SymptomRow:
    """A family of signals in one direction; ``onset_step`` is where the change began."""

    symptom: str
    direction: Literal["up", "down"]
    is_active: bool
    onset_step: int | None


@dataclass(frozen=True, slots=True)
class OnsetRange:
    """When a divergence began: the likeliest step, and from which to which it may have been.

    ``first``: the family that left its range first, "mismatch", or the signal that blew up; ""
    where nothing moved. The page settles all of it, for as long as it lasts.
    """

    step: int
    low_step: int
    high_step: int
    first: str = ""


@dataclass(frozen=True, slots=True)
class SignalState:
    """Training health of one run after one step; ``row`` counts step reports from 0.

    ``is_latched``: a critical compound is active and the baselines are frozen, since
    ``latched_step``. ``num_nonfinite_steps``: where ("grad", "logprob", "loss", "reward") -> steps
    of the newest 5 that reported NaN or Inf there. ``num_identical_score_steps``: consecutive
    steps whose highest and lowest score were the same, None when scores are not reported.
    ``aborted_recent_median``: share of the samples given up, median of the newest 8 steps.
    ``onset``: of the divergence that the page is on for, as of its first step; None without one.
    """

    row: int
    step: int
    signals: tuple[SignalRow, ...]
    symptoms: tuple[SymptomRow, ...]
    is_reward_improving: bool | None
    is_latched: bool
    latched_step: int | None
    num_nonfinite_steps: Mapping[str, int]
    num_identical_score_steps: int | None
    had_score_signal: bool
    aborted_recent_median: float | None = None
    collapses: tuple[CollapseRow, ...] = ()
    onset: OnsetRange | None = None


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """One signal over the steps of its history; None where a step has no such value."""

    signal: str
    values: tuple[float | None, ...]
    baseline_low: tuple[float | None, ...]
    baseline_high: tuple[float | None, ...]
    zs: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class SymptomSeries:
    """One family in one direction over the steps of its history."""

    symptom: str
    direction: Literal["up", "down"]
    is_active: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class SignalHistory:
    """Training health over the newest steps that this agent judged, oldest first."""

    steps: tuple[int, ...]
    is_latched: tuple[bool, ...]
    signals: tuple[SignalSeries, ...]
    symptoms: tuple[SymptomSeries, ...]
