"""A bottleneck in the words of those who wait: what is felt, and because of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dfx_agent.durations import seconds_text
from dfx_agent.facts.pipeline import ProcessTime
from dfx_agent.facts.wait_kinds import SAMPLE_WAITS
from dfx_agent.judge.bottleneck.engine_causes import busy_ratios
from dfx_agent.judge.bottleneck.habit import Change
from dfx_agent.judge.bottleneck.step_shares import aside_seconds
from dfx_agent.judge.bottleneck.window import Window
from dfx_agent.snapshot import Bottleneck, BoundBy, PipelineCause
from dfx_agent.snapshot.bottleneck import bound_text

ROLLOUT_SIDE = ("orchestrator", "rollout", "collector")
_BUSY_RATIO = 0.6
_FELT: Mapping[BoundBy, str] = {
    "rollout": "wait for samples",
    "data": "wait for data",
    "policy gate": "wait for newer weights",
    "peers": "wait for each other",
    "weight sync": "bring weights on",
    "reward": "compute rewards",
    "tool": "run tools",
    "train": "train",
    "event loop": "wait for the event loop",
    "stalled": "stand still",
}


def too_few(role: str, num_steps: int, wanted: int) -> Bottleneck:
    summary = f"{num_steps} of {wanted} steps of {role} have closed"
    return Bottleneck("insufficient evidence", summary, role)


def unmarked(window: Window) -> Bottleneck:
    share = 1.0 - window.shares.known_ratio
    summary = (
        f"{share:.0%} of a step of {window.role} is inside no marked stage and no wait that is seen"
    )
    return Bottleneck(
        "insufficient evidence", summary, window.role, step_seconds=window.step_seconds
    )


def balanced(window: Window) -> Bottleneck:
    train = window.shares.ratio("train")
    return Bottleneck(
        state="clear",
        summary=f"balanced: {window.role} trains in {train:.0%} of a step, and waits for nothing "
        "for long",
        role=window.role,
        step_seconds=window.step_seconds,
        first_step=window.rows[0].step,
        last_step=window.rows[-1].step,
    )


def bound_by(
    window: Window,
    bound: BoundBy,
    found: Sequence[PipelineCause],
    waited: Change | None,
    busy_host: str,
) -> Bottleneck:
    felt_bound, seconds = _felt(window, bound)
    share = seconds / window.step_seconds if window.step_seconds else 0.0
    chain = (
        _felt_text(window, felt_bound, seconds, waited),
        *(c.sentence for c in reversed(found)),
    )
    if not found and felt_bound == "rollout" and is_waiting(window):
        chain = (*chain, *_of_engines(window))
    if not found and felt_bound == "peers" and busy_host:
        chain = (*chain, busy_host)
    notes = "; ".join(
        filter(None, ["" if found or busy_host else _balance(window, bound), _left_out(window)])
    )
    verdict = Bottleneck("found", "", window.role, bound)
    return replace(
        verdict,
        summary=f"{bound_text(verdict)}: {' ← '.join(chain)}",
        cost_seconds=seconds,
        cost_ratio=share,
        step_seconds=window.step_seconds,
        chain=chain,
        balance=notes,
        first_step=window.rows[0].step,
        last_step=window.rows[-1].step,
    )


def beside(judged: Bottleneck, still: Sequence[PipelineCause]) -> Bottleneck:
    """``judged`` of steps that go on, though something stands."""
    bound: BoundBy = "event loop" if still[0].kind == "held loop" else "rollout"
    verdict = replace(judged, state="found", bound_by=bound, causes=(*still, *judged.causes))
    chain = (*judged.chain[:1], *(cause.sentence for cause in reversed(verdict.causes)))
    summary = f"{bound_text(verdict)}: {' ← '.join(chain)}"
    return replace(verdict, chain=chain, summary=summary, balance="")


def _felt(window: Window, bound: BoundBy) -> tuple[BoundBy, float]:
    """Where those who train feel it, and the seconds of a step."""
    by_bound = window.shares.by_bound
    if bound in by_bound and bound not in {"tool", "event loop"}:
        return bound, by_bound[bound]
    others = [(seconds, other) for other, seconds in by_bound.items() if other != "train"]
    seconds, felt = max(others, default=(0.0, "rollout"))
    return felt, seconds


def _felt_text(window: Window, bound: BoundBy, seconds: float, waited: Change | None) -> str:
    share = seconds / window.step_seconds if window.step_seconds else 0.0
    felt = _FELT[bound]
    if bound == "rollout" and not is_waiting(window):
        felt = "roll out"
    text = (
        f"ranks of {window.role} {felt} for {seconds_text(seconds)} of a step "
        f"of {seconds_text(window.step_seconds)} ({share:.0%})"
    )
    if bound == "rollout" and waited is not None:
        text += waited.until(seconds_text(waited.usual))
    return text


def _left_out(window: Window) -> str:
    """Steps between those of the window that say nothing of it."""
    told = [
        f"{row.step} ({seconds_text(row.end_seconds - row.begin_seconds)}, "
        f"{'checkpoint or validation' if aside_seconds(row) else 'stood'})"
        for row in window.left_out
    ]
    return f"left out: step {', '.join(told)}" if told else ""


def is_waiting(window: Window) -> bool:
    """Whether others roll out, and those who train wait for them."""
    waited = sum(window.shares.waited.get(kind, 0.0) for kind in SAMPLE_WAITS)
    return waited >= window.shares.by_bound.get("rollout", 0.0) / 2


def _of_engines(window: Window) -> tuple[str, ...]:
    ratios = busy_ratios(window)
    if not ratios:
        return ()
    low, high = min(ratios.values()), max(ratios.values())
    told = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    return (f"the engines have requests in {told} of the time",)


def rollout_waits(window: Window) -> float:
    """Share of the time in which the rollout side waits for those who train; the least of it."""
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


def _balance(window: Window, bound: BoundBy) -> str:
    """The pools that would fit each other, if each worked as it does."""
    wait = window.shares.by_bound.get("rollout", 0.0)
    ratios = busy_ratios(window)
    if bound == "rollout" and not ratios and any(True for _ in window.engines()):
        return ""  # nobody knows yet whether they have room
    if bound == "rollout" and is_waiting(window) and ratios and max(ratios.values()) < _BUSY_RATIO:
        return "the engines have room: more requests at a time would help, more engines would not"
    if bound == "rollout" and 0 < wait < window.step_seconds and is_waiting(window):
        times = window.step_seconds / (window.step_seconds - wait)
        return f"{times:.2g} times the rollout capacity for each trainer would end the wait"
    if bound == "train":
        share = rollout_waits(window)
        if 0 < share < 1:
            return f"{1 / (1 - share):.2g} times the training capacity would end the wait"
    return ""
