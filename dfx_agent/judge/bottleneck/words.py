"""Texts of the bottleneck verdict for jobs whose training and rollout run in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.seat import ROLLOUT_SIDE
from dfx_agent.facts.steps import SAMPLE_WAITS
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.engine_causes import busy_ratios
from dfx_agent.judge.bottleneck.pipeline_facts import ProcessTime
from dfx_agent.judge.bottleneck.sentences import percent
from dfx_agent.judge.bottleneck.step_shares import aside_seconds
from dfx_agent.judge.bottleneck.window import Change, PipelineWindow
from dfx_agent.snapshot import Bottleneck, BoundBy, PipelineCause, StepRow, Verdict
from dfx_agent.snapshot.bottleneck import bound_text

_BUSY_RATIO = 0.6
_FELT: Mapping[BoundBy, str] = {
    "rollout": "wait for samples",
    "data": "wait for data",
    "policy gate": "wait for newer weights",
    "peers": "wait for each other",
    "weight sync": "send weights",
    "reward": "compute rewards",
    "tool": "run tools",
    "train": "train",
    "event loop": "wait for the event loop",
    "stalled": "are stalled",
}


def unmarked(window: PipelineWindow) -> Bottleneck:
    """Most of the step is unknown, so nothing is concluded."""
    share = percent(1.0 - window.shares.known_ratio)
    summary = sentences.UNKNOWN(share=share, role=window.role)
    return Bottleneck(
        "insufficient evidence", summary, window.role, step_seconds=window.step_seconds
    )


def balanced(window: PipelineWindow) -> Bottleneck:
    """Neither side waits for long."""
    share = percent(window.shares.ratio("train"))
    return Bottleneck(
        state="clear",
        summary=sentences.BALANCED(role=window.role, share=share),
        role=window.role,
        step_seconds=window.step_seconds,
        first_step=window.rows[0].step,
        last_step=window.rows[-1].step,
    )


def bound_by(
    window: PipelineWindow,
    bound: BoundBy,
    found: Sequence[PipelineCause],
    waited: Change | None,
    stragglers: Iterable[Verdict],
) -> Bottleneck:
    """The verdict with the chain from symptom to cause. ``found``: the root cause first."""
    felt_bound, seconds = _felt(window, bound)
    share = seconds / window.step_seconds if window.step_seconds else 0.0
    chain = (
        _felt_text(window, felt_bound, seconds, waited),
        *(cause.sentence for cause in reversed(found)),
    )
    if not found and felt_bound == "rollout" and is_waiting(window):
        chain = (*chain, *_of_engines(window))
    unsure = [verdict.summary for verdict in stragglers if verdict.state == "insufficient evidence"]
    if not found and felt_bound == "peers":
        chain = (*chain, *unsure)
    balance = "" if found or (len(chain) > 1 and felt_bound == "peers") else _balance(window, bound)
    return replace(
        _concluded(window, bound, chain),
        cost_seconds=seconds,
        cost_ratio=share,
        balance=" ".join(filter(None, [balance, left_out_text(window.left_out)])),
    )


def _concluded(window: PipelineWindow, bound: BoundBy, chain: tuple[str, ...]) -> Bottleneck:
    verdict = Bottleneck("found", "", window.role, bound)
    return replace(
        verdict,
        summary=summary_text(verdict, chain),
        step_seconds=window.step_seconds,
        chain=chain,
        first_step=window.rows[0].step,
        last_step=window.rows[-1].step,
    )


def summary_text(verdict: Bottleneck, chain: Sequence[str]) -> str:
    """As in "Rollout-bound: Ranks wait … ← Engine replica 1 takes …"."""
    return f"{bound_text(verdict).capitalize()}: {' ← '.join(chain)}"


def with_stuck(judged: Bottleneck, still: Sequence[PipelineCause]) -> Bottleneck:
    """The verdict ``judged`` with stuck components, for a job whose steps continue."""
    causes = (*still, *judged.causes)
    if judged.parts and judged.bound_by is None:
        chain = (*judged.chain, *(cause.sentence for cause in still))
        return replace(judged, state="found", causes=causes, chain=chain)
    bound: BoundBy = "event loop" if still[0].kind == "held loop" else "rollout"
    verdict = replace(judged, state="found", bound_by=bound, causes=causes)
    chain = (*judged.chain[:1], *(cause.sentence for cause in reversed(causes)))
    return replace(verdict, chain=chain, summary=summary_text(verdict, chain), balance="")


def _felt(window: PipelineWindow, bound: BoundBy) -> tuple[BoundBy, float]:
    """(the bound in which training ranks lose the time, seconds per step)."""
    by_bound = window.shares.by_bound
    if bound in by_bound and bound not in {"tool", "event loop"}:
        return bound, by_bound[bound]
    others = [(seconds, other) for other, seconds in by_bound.items() if other != "train"]
    seconds, felt = max(others, default=(0.0, "rollout"))
    return felt, seconds


def _felt_text(
    window: PipelineWindow, bound: BoundBy, seconds: float, waited: Change | None
) -> str:
    share = seconds / window.step_seconds if window.step_seconds else 0.0
    felt = _FELT[bound]
    if bound == "rollout" and not is_waiting(window):
        felt = "roll out"
    has_changed = bound == "rollout" and waited is not None
    return sentences.FELT(
        role=window.role,
        felt=felt,
        seconds=seconds_text(seconds),
        step=seconds_text(window.step_seconds),
        share=percent(share),
        until=waited.until(seconds_text(waited.usual)) if has_changed and waited else "",
    )


def left_out_text(rows: Iterable[StepRow]) -> str:
    """A sentence about steps that were left out of the window; "" if there are none."""
    steps = [
        f"{row.step} ({seconds_text(row.end_seconds - row.begin_seconds)}, "
        f"{'checkpoint or validation' if aside_seconds(row) else 'unusually long'})"
        for row in rows
    ]
    return sentences.LEFT_OUT(steps=", ".join(steps)) if steps else ""


def is_waiting(window: PipelineWindow) -> bool:
    """Whether the training ranks wait for samples of other processes."""
    waited = sum(window.shares.waited.get(kind, 0.0) for kind in SAMPLE_WAITS)
    return waited >= window.shares.by_bound.get("rollout", 0.0) / 2


def _of_engines(window: PipelineWindow) -> tuple[str, ...]:
    ratios = busy_ratios(window)
    if not ratios:
        return ()
    low, high = min(ratios.values()), max(ratios.values())
    shares = dict.fromkeys([percent(low), percent(high)])
    return (sentences.ENGINES_BUSY(share=" to ".join(shares)),)


def rollout_waits(window: PipelineWindow) -> float:
    """Smallest share of time in which a rollout process waits for training."""
    shares = []
    for first, last in window.processes():
        if last.role in ROLLOUT_SIDE and last.role != window.role:
            wall = last.totals.wall_seconds - first.totals.wall_seconds
            waited = _waited(last) - _waited(first)
            shares.append(waited / wall if wall > 0 else 0.0)
    return min(shares, default=0.0)


def _waited(process: ProcessTime) -> float:
    kinds = process.totals.wait_seconds
    return sum(sum(kinds.get(kind, {}).values()) for kind in ("queue", "policy"))


def _balance(window: PipelineWindow, bound: BoundBy) -> str:
    """A sentence about the capacity that would balance both sides; "" if unknown."""
    wait = window.shares.by_bound.get("rollout", 0.0)
    ratios = busy_ratios(window)
    if bound == "rollout" and not ratios and any(True for _ in window.engines()):
        return ""  # whether engines have room is not known yet
    if bound == "rollout" and is_waiting(window) and ratios and max(ratios.values()) < _BUSY_RATIO:
        return sentences.ENGINES_HAVE_ROOM()
    if bound == "rollout" and 0 < wait < window.step_seconds and is_waiting(window):
        times = window.step_seconds / (window.step_seconds - wait)
        return sentences.MORE_ROLLOUT(times=f"{times:.2g}")
    if bound == "train":
        share = rollout_waits(window)
        if 0 < share < 1:
            return sentences.MORE_TRAINING(times=f"{1 / (1 - share):.2g}")
    return ""
