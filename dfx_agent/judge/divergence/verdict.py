"""The verdict about training health: what the vote says, and from which figures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from dfx_agent.judge.divergence import sentences
from dfx_agent.judge.divergence.broken_values import Break, sentence
from dfx_agent.judge.divergence.cause_order import cause
from dfx_agent.judge.divergence.collapse import BLOW_UP_STEPS, DEAD_STEPS, JUMP_STEPS
from dfx_agent.judge.divergence.signal import CUSUM_ALARM
from dfx_agent.judge.divergence.symptoms import SIGNALS
from dfx_agent.rules.conditions import Condition
from dfx_agent.rules.declared.stability import DIVERGENCE
from dfx_agent.rules.samples import samples_of, symptom_samples
from dfx_agent.rules.thresholds import thresholds_in
from dfx_agent.sentence import joined, listed
from dfx_agent.snapshot import CollapseRow, SignalRow, SignalState, SymptomRow, Verdict

_WORDS = {
    "divergence": "KL",
    "grad_norm": "gradient norm",
    "entropy": "entropy",
    "reward": "reward",
    "length": "response length",
    "loss": "loss",
}
_LEAST = {signal.name: signal.least for signal in SIGNALS}
_DIRECTIONS = {"up": "rose", "down": "fell"}
_USUAL_Z = 2.0  # the band of a signal
_NEEDED_AT_ALL = "divergence is found when {num} kinds of signals move together"
_NEEDED = {
    "divergence_families_with_reward": "or when {num} kinds of signals do, one a falling reward"
}

_COLLAPSES = {
    "blow_up": "{signal} is far {side} its baseline and stays there",
    "truncation": "most responses are truncated, where few were",
    "dead": "nearly all responses are truncated and the reward is at its lowest",
}
# of a page that lasts longer than its reason
_COLLAPSES_OVER = {
    "blow_up": "{signal} was far off its baseline until step {last}",
    "truncation": "most responses were truncated until step {last}, where few had been",
    "dead": "until step {last} nearly all responses were truncated and the reward at its lowest",
}


def broken_verdict(
    breaks: list[tuple[str, Break]], state: SignalState | None, role: str
) -> Verdict:
    """NaN or Inf in a loss or a gradient: a finding of its own, from one value on."""
    place, first = breaks[0]
    begins = {"loss": "loss first", "grad": "gradient first"}[place]
    return Verdict(
        "divergence", "found", role, sentence(breaks), cause=f"NaN or Inf, {begins}",
        ranks=tuple(sorted(first.ranks)), step=first.step, since_seconds=first.seconds,
        evidence=(
            *(f"{b.key}: {b.value} at step {b.step}" for _, b in breaks),
            *(_figures(state) if state else ()),
        ),
    )  # fmt: skip


def divergence_verdict(
    state: SignalState,
    role: str,
    critical: Condition = DIVERGENCE.condition,
    checkpoints: Collection[int] = (),
) -> Verdict:
    """Found while the page (``critical``) holds; no evidence before baselines can carry one.

    ``checkpoints``: steps at which the run is known to have saved one.
    """
    active = [row for row in state.symptoms if row.is_active]
    if critical.holds(samples_of(state)):
        vote = symptom_samples(state.symptoms, improving=state.is_reward_improving)
        return _found(state, role, active, checkpoints, is_voted=critical.holds(vote))
    missing = _missing_evidence(state, critical)
    if missing:
        lines = (*_figures(state), *_needed(state, critical))
        return Verdict("divergence", "insufficient evidence", role, missing, evidence=lines)
    said = sentences.FEW_MOVED(symptoms=", ".join(map(_said, active))) if active else ""
    veto = sentences.REWARD_IMPROVES() if active and state.is_reward_improving else ""
    summary = joined([said or sentences.CALM(), veto])
    return Verdict("divergence", "clear", role, summary, evidence=tuple(_figures(state)))


def unseen_verdict(role: str) -> Verdict:
    """Of a run that trains, and reports nothing that training is judged by."""
    return Verdict("divergence", "insufficient evidence", role, sentences.NO_SIGNALS())


def _found(
    state: SignalState,
    role: str,
    active: list[SymptomRow],
    checkpoints: Collection[int],
    *,
    is_voted: bool,
) -> Verdict:
    """Several may have begun; the earliest names the cause more often than the loudest."""
    collapses = _collapses(state)
    begun = [*(row.onset_step for row in active), *(row.onset_step for row in collapses)]
    first = min((step for step in begun if step is not None), default=state.step)
    said = [*map(_said, active), *(_collapsed(state, row) for row in collapses)]
    before = [step for step in checkpoints if step < first]
    is_over = collapses and all(_is_over(state, row) for row in collapses) and not is_voted
    head = sentences.WAS_DIVERGING if is_over else sentences.DIVERGING
    saved = sentences.CHECKPOINT(step=max(before)) if before else ""
    summary = joined([head(step=first, symptoms=", ".join(said)), saved])
    frozen = (
        f"the usual ranges are those before step {state.latched_step}" if state.is_latched else ""
    )
    evidence = (*_figures(state), *filter(None, [frozen]))
    return Verdict(
        "divergence", "found", role, summary, cause=cause(state), step=first, evidence=evidence
    )


def _collapsed(state: SignalState, row: CollapseRow) -> str:
    words = _COLLAPSES_OVER if _is_over(state, row) else _COLLAPSES
    signal = _WORDS.get(row.signal, row.signal)
    return words[row.kind].format(signal=signal, side=_side(state, row), last=row.last_step)


def _is_over(state: SignalState, row: CollapseRow) -> bool:
    """The newest step has judged it away; a step that reports nothing ends nothing."""
    of_kind = {"truncation": "truncation", "dead": "reward"}
    name = of_kind.get(row.kind, row.signal)
    signal = next((s for s in state.signals if s.signal == name), None)
    is_reported = signal is not None and signal.value is not None
    return is_reported and row.last_step is not None and row.last_step < state.step


def _side(state: SignalState, row: CollapseRow) -> str:
    """Where the signal is now; it may have fallen since."""
    signal = next((s for s in state.signals if s.signal == row.signal), None)
    is_low = signal is not None and signal.z is not None and signal.z < 0
    return "below" if is_low else "above"


def _collapses(state: SignalState) -> list[CollapseRow]:
    """Those that have lasted long enough to page."""
    enough = {"blow_up": BLOW_UP_STEPS, "truncation": JUMP_STEPS, "dead": DEAD_STEPS}
    return [row for row in state.collapses if row.num_steps >= enough[row.kind]]


def _missing_evidence(state: SignalState, critical: Condition) -> str:
    """Why the vote cannot hold whatever happens; "" when it can."""
    known = {row.symptom for row in state.signals}
    ready = {row.symptom for row in state.signals if row.is_baseline_ready}
    if not can_vote(known, critical):
        names = sorted(_WORDS[name] for name in known)
        if not names:
            return sentences.NO_SIGNALS()
        are = "are" if len(names) > 1 else "is"
        return sentences.FEW_SIGNALS(signals=listed(names), are=are)
    if not can_vote(ready, critical):
        waiting = ", ".join(sorted(_WORDS[name] for name in known - ready))
        return sentences.TOO_EARLY(num_steps=state.row + 1, signals=waiting)
    return ""


def _needed(state: SignalState, critical: Condition) -> Iterator[str]:
    """How many groups of signals the alert takes, where there are too few of them."""
    if not can_vote({row.symptom for row in state.signals}, critical):
        for limit in thresholds_in(critical):
            if limit.unit == "families":
                yield _NEEDED.get(limit.key, _NEEDED_AT_ALL).format(num=f"{limit:.0f}")


def can_vote(families: Iterable[str], critical: Condition) -> bool:
    """Whether the vote would hold if all of them were active."""
    active = [SymptomRow(name, "up", is_active=True, onset_step=None) for name in families]
    return critical.holds(symptom_samples(active, improving=False))


def _said(row: SymptomRow) -> str:
    onset = "" if row.onset_step is None else f" (since step {row.onset_step})"
    return f"{_WORDS.get(row.symptom, row.symptom)} {_DIRECTIONS[row.direction]}{onset}"


def _figures(state: SignalState) -> Iterator[str]:
    """Each signal in its own unit, against its usual range."""
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
    """Whether this signal is, or adds up to be, one that the symptom is about."""
    if not symptom.is_active or symptom.symptom != row.symptom or row.z is None:
        return False
    is_up = symptom.direction == "up"
    total, z = (row.cusum_up, row.z) if is_up else (row.cusum_down, -row.z)
    return z > _USUAL_Z or (z > 0 and total > CUSUM_ALARM)


def _where(row: SignalRow) -> str:
    z = row.z or 0.0
    return "" if abs(z) <= _USUAL_Z else f", {'higher' if z > 0 else 'lower'} than usual"


def _usual(row: SignalRow) -> str:
    """Where |z| is at most 2: what is smaller than the floor counts as it, a size has no sign."""
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
