"""Where a step of a synchronous job goes, as a sentence whose percentages add up to 100."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dfx_agent.base.text import seconds_text
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.code_samples import CodePlace
from dfx_agent.judge.bottleneck.sentences import percent
from dfx_agent.judge.bottleneck.step_parts import OTHER, PEERS, StepTime
from dfx_agent.snapshot import Bottleneck, PipelineCause, StepPart, Verdict

_LEAST_SHOWN_RATIO = 0.03
_MAX_SHOWN = 5
_WAIT_RATIO = 0.2
_UNMARKED_RATIO = 0.25
_MOSTLY_RATIO = 0.5


class Steps(NamedTuple):
    """The steps of a breakdown."""

    role: str
    first_step: int
    last_step: int
    is_uneven: bool = False
    """Whether the steps are of very different length, so that only their mean is shown."""
    left_out: str = ""
    """Text about steps that were left out."""


def breakdown(
    time: StepTime,
    steps: Steps,
    causes: Sequence[PipelineCause],
    place: CodePlace | None,
    stragglers: Iterable[Verdict] = (),
) -> Bottleneck:
    """The parts of the step, the largest one, and what is known about unmarked code and waits."""
    parts = time.parts()
    unmarked = next((part for part in parts if part.kind == "unmarked"), None)
    chain = [breakdown_text(parts, time.step_seconds, is_uneven=steps.is_uneven)]
    if parts:
        chain.append(_largest_text(parts[0], time, place))
    is_unknown = unmarked is not None and unmarked.ratio >= _UNMARKED_RATIO
    if unmarked is not None and is_unknown:
        chain.append(_unmarked_text(unmarked, place))
    chain += [cause.sentence for cause in causes]
    if parts and parts[0].name == PEERS and not causes:
        chain += [
            verdict.summary for verdict in stragglers if verdict.state == "insufficient evidence"
        ]
    has_wait = any(part.kind == "wait" and part.ratio >= _WAIT_RATIO for part in parts)
    is_found = bool(causes) or has_wait or (is_unknown and place is not None)
    is_blind = is_unknown and place is None and unmarked is parts[0]
    return Bottleneck(
        state="found" if is_found else "insufficient evidence" if is_blind else "clear",
        summary=chain[0],
        role=steps.role,
        step_seconds=time.step_seconds,
        chain=tuple(chain),
        causes=tuple(causes),
        balance=steps.left_out,
        first_step=steps.first_step,
        last_step=steps.last_step,
        parts=parts,
    )


def breakdown_text(parts: Sequence[StepPart], step_seconds: float, *, is_uneven: bool) -> str:
    """Lists up to five parts of at least 3 %. The whole percentages add up to 100."""
    large = [part for part in parts if part.ratio >= _LEAST_SHOWN_RATIO and part.kind != "other"]
    shown = large[:_MAX_SHOWN]
    rest = 1.0 - sum(part.ratio for part in shown)
    named = [(part.ratio, part.name) for part in shown]
    whole = whole_percents([*(ratio for ratio, _ in named), max(0.0, rest)])
    words = [f"{share} % {name}" for share, (_, name) in zip(whole, named, strict=False)]
    words += [f"{whole[-1]} % {OTHER}"] if whole[-1] else []
    step = seconds_text(step_seconds) + (" on average" if is_uneven else "")
    return sentences.BREAKDOWN(step=step, parts=", ".join(words))


def whole_percents(ratios: Sequence[float]) -> list[int]:
    """Whole numbers that add up to 100, each less than 1 from its exact value."""
    exact = [100.0 * ratio for ratio in ratios]
    whole = [int(share) for share in exact]
    missing = round(sum(exact)) - sum(whole)
    by_fraction = sorted(range(len(exact)), key=lambda index: whole[index] - exact[index])
    for index in by_fraction[:missing]:
        whole[index] += 1
    return whole


def _largest_text(part: StepPart, time: StepTime, place: CodePlace | None) -> str:
    stage = time.largest_stage.get(part.name, "")
    inside = ""
    if part.kind == "work" and stage and stage != part.name:
        inside = f" (mostly {stage})"
    if part.kind == "unmarked" and place is not None and place.ratio >= _MOSTLY_RATIO:
        inside = f" (mostly {place.name})"
    rest = seconds_text(max(0.0, time.step_seconds - part.seconds))
    return sentences.LARGEST(part=f"{part.name}{inside}", rest=rest)


def _unmarked_text(unmarked: StepPart, place: CodePlace | None) -> str:
    if place is None:
        return sentences.UNMARKED(share=percent(unmarked.ratio))
    share = percent(unmarked.ratio * place.ratio)
    return sentences.UNMARKED_PLACE(share=share, place=place.text, stage=place.stage)
