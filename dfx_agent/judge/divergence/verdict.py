"""The verdict on training health, with its evidence."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from dfx_agent.base.text import capitalized, joined, listed, rounded
from dfx_agent.catalogue.alerts.conditions import Condition, parts_of
from dfx_agent.catalogue.alerts.declared.stability import DIVERGENCE
from dfx_agent.catalogue.alerts.samples import samples_of, symptom_samples
from dfx_agent.catalogue.alerts.thresholds import Threshold
from dfx_agent.judge.divergence import sentences
from dfx_agent.judge.divergence.broken_values import Break, broken_sentence
from dfx_agent.judge.divergence.cause_order import cause, change, onset_of
from dfx_agent.judge.divergence.collapse import lasting
from dfx_agent.judge.divergence.signal import CUSUM_ALARM
from dfx_agent.judge.divergence.symptoms import SIGNALS
from dfx_agent.snapshot import CollapseRow, SignalRow, SignalState, SymptomRow, Verdict

_WORDS = {
    "divergence": "KL",
    "grad_norm": "gradient norm",
    "entropy": "entropy",
    "reward": "reward",
    "length": "response length",
    "loss": "loss",
}
_PLACES = {
    "loss": "the loss",
    "grad": "the gradient norm",
    "logprob": "a log-probability statistic",
    "reward": "the reward",
    "length": "the response length",
}
# names of signals that the name of their family does not describe
_OWN_WORDS = {
    "clip_fraction": "clip fraction",
    "truncation": "share of truncated responses",
    "mismatch_logp": "log-probability difference between rollout and trainer",
}
_SPECS = {signal.name: signal for signal in SIGNALS}
_FAMILIES = {signal.name: signal.symptom for signal in SIGNALS}
_LEAST = {signal.name: signal.least for signal in SIGNALS}
_DIRECTIONS = {"up": "rose", "down": "fell"}
_USUAL_Z = 2.0  # the band of a signal
_NEEDED_AT_ALL = "divergence is found when {num} kinds of signals move together"
_NEEDED = {
    "divergence_families_with_reward": "or when {num} kinds of signals do, one a falling reward"
}

_COLLAPSES = {
    "blow_up": "{signal} is far {side} its baseline{change} and stays there",
    "spikes": "{signal} was 1000 times above its baseline in {num} of the last 64 steps",
    "entropy_fall": "entropy fell{change} within 20 steps",
    "truncation": "most responses are truncated, where few were",
    "dead": "nearly all responses are truncated and the reward is at its lowest",
    "not_learning": "nothing is learned",
    "reward_fall": "reward fell far below its best, to {value}, and stays there",
}
# collapses that a symptom of the same signal already describes
_COVERED_BY_SYMPTOM = {"entropy_fall", "reward_fall", "spikes"}
# texts for an alert that lasts longer than its collapse
_COLLAPSES_OVER = {
    **_COLLAPSES,
    "blow_up": "{signal} was far off its baseline until step {last}",
    "truncation": "most responses were truncated until step {last}, where few had been",
    "dead": "until step {last} nearly all responses were truncated and the reward at its lowest",
    "not_learning": "nothing was learned until step {last}",
    "reward_fall": "reward was far below its best until step {last}",
}


def broken_verdict(
    breaks: list[tuple[str, Break]], state: SignalState | None, role: str
) -> Verdict:
    """The finding for NaN or Inf in a loss or a gradient; one value is enough."""
    place, first = breaks[0]
    begins = {"loss": "loss first", "grad": "gradient first"}[place]
    return Verdict(
        "divergence", "found", role, broken_sentence(breaks), cause=f"NaN or Inf, {begins}",
        ranks=tuple(sorted(first.ranks)), step=first.step, since_seconds=first.seconds,
        evidence=(
            *(f"{broken.key}: {broken.value} at step {broken.step}" for _, broken in breaks),
            *(_figures(state) if state else ()),
        ),
    )  # fmt: skip


def divergence_verdict(
    state: SignalState,
    role: str,
    critical: Condition = DIVERGENCE.condition,
    checkpoints: Collection[int] = (),
) -> Verdict:
    """The verdict for one state of a run.

    It is "found" while the condition ``critical`` holds, and "insufficient evidence" until enough
    signals have a baseline. ``checkpoints``: steps at which the run has saved a checkpoint.
    """
    active = [row for row in state.symptoms if row.is_active]
    if critical.holds(samples_of(state)):
        vote = symptom_samples(state.symptoms, improving=state.is_reward_improving)
        return _found(state, role, checkpoints, is_voted=critical.holds(vote))
    missing = _missing_evidence(state, critical)
    if missing:
        lines = (*_figures(state), *_needed(state, critical))
        return Verdict("divergence", "insufficient evidence", role, missing, evidence=lines)
    moved = (
        sentences.FEW_MOVED(symptoms=", ".join(_moved_part(row, state) for row in active))
        if active
        else ""
    )
    veto = sentences.REWARD_IMPROVES() if active and state.is_reward_improving else ""
    summary = joined([moved or sentences.CALM(), veto])
    return Verdict("divergence", "clear", role, summary, evidence=tuple(_figures(state)))


def unseen_verdict(role: str) -> Verdict:
    """The verdict for a run that trains but reports no signal."""
    return Verdict("divergence", "insufficient evidence", role, sentences.NO_SIGNALS())


def _found(
    state: SignalState,
    role: str,
    checkpoints: Collection[int],
    *,
    is_voted: bool,
) -> Verdict:
    """The verdict while the alert fires."""
    collapses = lasting(state.collapses)
    if not is_voted and [row.kind for row in collapses] == ["not_learning"]:
        return _not_learning(state, role, collapses[0])
    onset = onset_of(state)
    is_over = collapses and all(_is_over(state, row) for row in collapses) and not is_voted
    head = sentences.WAS_DIVERGING if is_over else sentences.DIVERGING
    low, high = onset.low_step, onset.high_step
    between = "" if low == high else f" (between steps {low} and {high})"
    moved = moved_text(state, has_date=True)
    frozen = (
        f"the usual ranges are those before step {state.latched_step}" if state.is_latched else ""
    )
    return Verdict(
        "divergence", "found", role,
        head(step=onset.step, between=between, symptoms=moved),
        cause=cause(onset), step=onset.step,
        evidence=(*_figures(state), *filter(None, [frozen])),
        action=head.action_text(
            checkpoint=_checkpoint(checkpoints, low), change=change(onset)
        ),
    )  # fmt: skip


def _checkpoint(checkpoints: Collection[int], low_step: int) -> str:
    """The latest checkpoint before the earliest possible onset."""
    before = [step for step in checkpoints if step < low_step]
    if not before:
        return f"latest checkpoint before step {low_step}"
    return f"checkpoint of step {max(before)}, the latest before the divergence"


def _not_learning(state: SignalState, role: str, row: CollapseRow) -> Verdict:
    reward = next((signal for signal in state.signals if signal.signal == "reward"), None)
    value = "its lowest" if reward is None or reward.value is None else f"{reward.value:.4g}"
    summary = sentences.NOT_LEARNING(step=row.onset_step, reward=value)
    return Verdict(
        "divergence", "found", role, summary, cause="nothing is learned", step=row.onset_step,
        evidence=tuple(_figures(state)), action=sentences.NOT_LEARNING.action,
    )  # fmt: skip


def moved_text(state: SignalState, *, has_date: bool = False) -> str:
    """Lists the signals that moved, with values and onset; "" if none did.

    ``has_date``: the sentence around this text already has a date, so a single signal needs none.
    """
    active = [row for row in state.symptoms if row.is_active]
    families = {signal.signal: signal.symptom for signal in state.signals}
    moved = {row.symptom for row in active}
    sizes: dict[str, str] = {}
    collapses = lasting(state.collapses)
    named = moved | {families.get(row.signal, row.signal or "length") for row in collapses}
    is_dated = not has_date or len(named) > 1
    parts = [_moved_part(row, state, is_dated=is_dated) for row in active]
    for row in collapses:
        has_moved = families.get(row.signal) in moved
        if row.kind not in _COVERED_BY_SYMPTOM or not has_moved:
            # one text per signal: that of its first collapse
            sizes.setdefault(row.signal or row.kind, _collapsed(state, row, has_moved=has_moved))
    return ", ".join([*parts, *sizes.values()])


def _collapsed(state: SignalState, row: CollapseRow, *, has_moved: bool) -> str:
    """Text of one collapse. ``has_moved``: another part of the sentence has the values."""
    words = _COLLAPSES_OVER if _is_over(state, row) else _COLLAPSES
    signal = next((s for s in state.signals if s.signal == row.signal), None)
    return words[row.kind].format(
        signal=_word(row.signal),
        side=_side(state, row),
        last=row.last_step,
        num=row.num_steps,
        value="" if signal is None or signal.value is None else rounded(signal.value),
        change="" if signal is None or has_moved else _from_to(signal),
    )


def _is_over(state: SignalState, row: CollapseRow) -> bool:
    """Whether the collapse has ended: the latest step reports the signal, without the collapse."""
    if row.kind == "spikes":
        return False
    signal_by_kind = {"truncation": "truncation", "dead": "reward", "not_learning": "reward"}
    name = signal_by_kind.get(row.kind, row.signal)
    signal = next((s for s in state.signals if s.signal == name), None)
    is_reported = signal is not None and signal.value is not None
    return is_reported and row.last_step is not None and row.last_step < state.step


def _side(state: SignalState, row: CollapseRow) -> str:
    """Whether the signal is now above or below its baseline; it may have changed sides."""
    signal = next((s for s in state.signals if s.signal == row.signal), None)
    is_low = signal is not None and signal.z is not None and signal.z < 0
    return "below" if is_low else "above"


def _missing_evidence(state: SignalState, critical: Condition) -> str:
    """Why the alert condition cannot hold with the present signals; "" if it can."""
    reported = {row.symptom for row in state.signals}
    ready = {row.symptom for row in state.signals if row.is_baseline_ready}
    if not can_vote(reported, critical):
        names = sorted(_WORDS[name] for name in reported)
        if not names:
            return sentences.NO_SIGNALS()
        are = "are" if len(names) > 1 else "is"
        return sentences.FEW_SIGNALS(signals=listed(names), are=are)
    if not can_vote(ready, critical):
        waiting = ", ".join(sorted(_WORDS[name] for name in reported - ready))
        return sentences.TOO_EARLY(num_steps=state.row + 1, signals=waiting)
    return ""


def _needed(state: SignalState, critical: Condition) -> Iterator[str]:
    """How many kinds of signals the alert needs, if too few are reported."""
    if not can_vote({row.symptom for row in state.signals}, critical):
        for limit in parts_of(critical, Threshold):
            if limit.unit == "families":
                yield _NEEDED.get(limit.key, _NEEDED_AT_ALL).format(num=f"{limit:.0f}")


def can_vote(families: Iterable[str], critical: Condition) -> bool:
    """Whether the alert condition could hold: if all these families were active."""
    active = [SymptomRow(name, "up", is_active=True, onset_step=None) for name in families]
    return critical.holds(symptom_samples(active, improving=False))


def _moved_part(row: SymptomRow, state: SignalState, *, is_dated: bool = True) -> str:
    """Text of one symptom, as in "KL rose from 0.004 to 1.25 (since step 40)".

    The values are those of the signal that is farthest from its baseline.
    """
    sign = 1.0 if row.direction == "up" else -1.0
    family = [
        signal for signal in state.signals if signal.symptom == row.symptom and signal.z is not None
    ]
    far = max(family, key=lambda signal: sign * (signal.z or 0.0), default=None)
    moved = "" if far is None or sign * (far.z or 0.0) <= 0 else _from_to(far)
    has_date = is_dated and row.onset_step is not None
    onset = f" (since step {row.onset_step})" if has_date else ""
    is_other = far is not None and far.signal in _OWN_WORDS and moved
    name = _OWN_WORDS[far.signal] if far is not None and is_other else _WORDS[row.symptom]
    return f"{name} {_DIRECTIONS[row.direction]}{moved}{onset}"


def _word(signal: str) -> str:
    return _OWN_WORDS.get(signal) or _WORDS.get(_FAMILIES.get(signal, ""), signal)


def _from_to(signal: SignalRow) -> str:
    if signal.value is None or signal.usual_value is None:
        return ""
    return f" from {_floored(signal.signal, signal.usual_value)} to {rounded(signal.value)}"


def _floored(signal: str, value: float) -> str:
    """The value as text; "at most …" if it is not above the floor of the signal."""
    least = _LEAST.get(signal)
    is_least = least is not None and value <= least * (1 + 1e-9)
    return f"{'at most ' if is_least else ''}{rounded(value)}"


def nonfinite_text(state: SignalState, since: Mapping[str, int]) -> str:
    """Sentences that name the values that are NaN or infinite. ``since``: first step by place."""
    named: dict[tuple[int, int], list[str]] = {}
    for where, step in since.items():
        num = state.num_nonfinite_steps.get(where, 0)
        named.setdefault((step, num), []).extend(_broken_names(state, where))
    return joined(
        _nonfinite_sentence(names, step, num_steps) for (step, num_steps), names in named.items()
    )


def _nonfinite_sentence(names: Sequence[str], step: int, num_steps: int) -> str:
    sentence = sentences.NONFINITE_ONCE if num_steps == 1 else sentences.NONFINITE
    signals, was = capitalized(listed(names)), "was" if len(names) == 1 else "were"
    return sentence(signals=signals, was=was, step=step, num_steps=num_steps)


def _broken_names(state: SignalState, where: str) -> list[str]:
    """Names of the signals of one place that are NaN in this row, or the name of the place."""
    broken = (row.signal for row in state.signals if row.is_broken)
    names = [_word(signal) for signal in broken if _SPECS[signal].where == where]
    return [f"the {name}" for name in dict.fromkeys(names)] or [_PLACES[where]]


def drift_text(state: SignalState, name: str) -> str:
    """How far a signal has moved since the start of the run; "" if unknown."""
    row = next((signal for signal in state.signals if signal.signal == name), None)
    if row is None or row.recent_median is None or not row.drift_ratio:
        return ""
    start = row.recent_median / row.drift_ratio
    verb = _DIRECTIONS["up" if row.drift_ratio > 1 else "down"]
    levels = f"from {_floored(name, start)} to {rounded(row.recent_median)}"
    return f"{_WORDS[_FAMILIES[name]]} {verb} {levels}"


def _figures(state: SignalState) -> Iterator[str]:
    """Evidence: each signal in its own unit, with its usual range."""
    yield from (_figure(row, state) for row in state.signals)
    if state.is_reward_improving is not None:
        yield f"the reward is {'' if state.is_reward_improving else 'not '}improving"


def _figure(row: SignalRow, state: SignalState) -> str:
    usual = _usual(row)
    if row.is_broken:
        return f"{row.signal}: NaN or infinite; {usual}"
    if row.value is None:
        return f"{row.signal}: not reported at this step; {usual}"
    moved = next((symptom for symptom in state.symptoms if _is_moved_by(symptom, row)), None)
    if moved is None or moved.onset_step is None:
        return f"{row.signal}: {row.value:.4g}{_where(row)}; {usual}"
    num_steps = max(1, state.step - moved.onset_step)
    within = "1 step" if num_steps == 1 else f"{num_steps} steps"
    verb = _DIRECTIONS[moved.direction]
    return f"{row.signal}: {verb} to {row.value:.4g} within {within}; {usual}"


def _is_moved_by(symptom: SymptomRow, row: SignalRow) -> bool:
    """Whether this signal contributes to the symptom, by its distance or its CUSUM."""
    if not symptom.is_active or symptom.symptom != row.symptom or row.z is None:
        return False
    is_up = symptom.direction == "up"
    total, z = (row.cusum_up, row.z) if is_up else (row.cusum_down, -row.z)
    return z > _USUAL_Z or (z > 0 and total > CUSUM_ALARM)


def _where(row: SignalRow) -> str:
    z = row.z or 0.0
    return "" if abs(z) <= _USUAL_Z else f", {'higher' if z > 0 else 'lower'} than usual"


def _usual(row: SignalRow) -> str:
    """The usual range of a signal as text: the values with |z| of at most 2."""
    low, high = row.baseline_low, row.baseline_high
    if low is None or high is None:
        return "its usual range is not known yet"
    least = _LEAST.get(row.signal)
    name, band = "range", f"{low:.4g} to {high:.4g}"
    if least is not None and low <= least:
        band = f"at most {high:.4g}"
    elif least is not None and row.value is not None and row.value < 0:
        name = "size"
    return f"its usual {name} is {band}" + ("" if row.is_baseline_ready else ", from few steps")
