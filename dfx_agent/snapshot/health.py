"""Contract 2: training health of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class SignalParameters:
    """How one signal is scored."""

    signal: str
    symptom: str
    directions: tuple[str, ...]
    least_value: float | None
    """Smaller values count as this; None if the raw value is scored, without a logarithm."""
    scale_floor: float
    """Smallest standard deviation that is used, in the scale of the scores."""


@dataclass(frozen=True, slots=True)
class DetectorParameters:
    """Parameters of every run's detector; all lengths are in steps."""

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
    """One training signal against its own baseline, after the latest step."""

    signal: str
    symptom: str
    value: float | None
    """In the signal's unit."""
    z: float | None
    """None if the step was not scored."""
    cusum_up: float
    """Alarms above 8."""
    cusum_down: float
    """Alarms above 8."""
    baseline_low: float | None
    """Lower end of the range in which z is between -2 and 2, in the signal's unit."""
    baseline_high: float | None
    is_baseline_ready: bool
    recent_median: float | None
    drift_ratio: float | None
    """For log signals: the latest 8 values compared with the 5th to 21st."""
    drift_difference: float | None
    """For reward and truncation: the latest 8 values compared with the 5th to 21st."""
    is_broken: bool = False
    """NaN or infinity was reported; ``value`` is None then."""
    usual_value: float | None = None
    """Middle of the baseline range."""
    has_varied: bool = True
    """Whether its values were not all equal."""


CollapseKind = Literal[
    "blow_up", "spikes", "entropy_fall", "reward_fall", "truncation", "dead", "not_learning"
]


@dataclass(frozen=True, slots=True)
class CollapseRow:
    """Steps with a state that needs no vote of several signals.

    - "blow_up": 20 times and 10 sigma above the baseline; for entropy also 8 times below.
    - "spikes": steps of the latest 64 that were 1000 times above the baseline.
    - "truncation": most responses are cut, where few were before.
    - "dead": nearly all responses are cut, and the reward is at its lowest.
    - "entropy_fall": the entropy fell to a fifth within 20 steps.
    - "not_learning": no gradient, and the reward is at its lowest.
    - "reward_fall": the reward is far below its best.

    All but "spikes" are consecutive steps.
    """

    kind: CollapseKind
    signal: str
    """"" if the state is of the whole run."""
    num_steps: int
    onset_step: int | None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class SymptomRow:
    """A family of signals in one direction; ``onset_step`` is the step of the change."""

    symptom: str
    direction: Literal["up", "down"]
    is_active: bool
    onset_step: int | None


@dataclass(frozen=True, slots=True)
class OnsetRange:
    """When a divergence began: the most likely step, and the range of possible steps.

    It is fixed as long as the alert fires.
    """

    step: int
    low_step: int
    high_step: int
    first: str = ""
    """The family that left its range first, "mismatch", or the signal that blew up; may be ""."""


@dataclass(frozen=True, slots=True)
class SignalState:
    """Training health of one run after one step."""

    row: int
    """Number of the step report, from 0."""
    step: int
    signals: tuple[SignalRow, ...]
    symptoms: tuple[SymptomRow, ...]
    is_reward_improving: bool | None
    is_latched: bool
    """A critical compound alert is active and the baselines are frozen since ``latched_step``."""
    latched_step: int | None
    num_nonfinite_steps: Mapping[str, int]
    """Where ("grad", "logprob", "loss", "reward") -> steps of the latest 5 with NaN or Inf."""
    num_identical_score_steps: int | None
    """Consecutive steps in which all scores were equal; None if scores are not reported."""
    had_score_signal: bool
    aborted_recent_median: float | None = None
    """Share of aborted samples, median of the latest 8 steps."""
    aborted_rise: float | None = None
    """``aborted_recent_median`` less the median of the first 8 steps."""
    timeout_rise: float | None = None
    """The same difference of the share of requests that timed out."""
    collapses: tuple[CollapseRow, ...] = ()
    onset: OnsetRange | None = None
    """Onset of the divergence that the alert fires for; None without one."""


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """One signal over the steps of its history; None if a step has no value."""

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
    """Training health over the latest steps that this agent judged, oldest first."""

    steps: tuple[int, ...]
    is_latched: tuple[bool, ...]
    signals: tuple[SignalSeries, ...]
    symptoms: tuple[SymptomSeries, ...]
