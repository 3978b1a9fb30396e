"""The bottleneck verdict for a job in which something is completely stuck."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dfx_agent.base.text import seconds_text
from dfx_agent.judge.bottleneck import sentences
from dfx_agent.judge.bottleneck.pipeline_facts import PipelineFacts, ProcessTime
from dfx_agent.judge.bottleneck.step_shares import ASIDE, WEIGHT_SYNC
from dfx_agent.snapshot import Bottleneck, PipelineCause, Verdict
from dfx_agent.snapshot.event_loop import NO_CODE

_HELD_SECONDS = 10.0
_FELT_SECONDS = 5.0
# stalled after so many seconds and so many usual steps without a step
_QUIET_SECONDS, _QUIET_STEPS = 60.0, 10.0
_EXPLAINING_SHARE = 0.5  # of the time without a step; a shorter span does not explain it
# after so many seconds and usual steps without a step, the last verdict is outdated
_OLD_SECONDS, _OLD_STEPS = 10.0, 5.0


def held_loops(processes: Iterable[ProcessTime]) -> Iterator[PipelineCause]:
    """Event loops that code of the job blocks right now."""
    for process in processes:
        loop = process.event_loop
        if loop is None or loop.unanswered_seconds < _HELD_SECONDS:
            continue
        if not loop.unanswered_holder.startswith(NO_CODE):
            sentence = sentences.HELD_LOOP_NOW(
                holder=loop.unanswered_holder,
                process=f"{process.role} {process.rank}",
                seconds=seconds_text(loop.unanswered_seconds),
            )
            component = _loop_of(process.role)
            seconds = loop.unanswered_seconds
            yield PipelineCause("stalled", component, sentence, seconds, kind="held loop")


def stalled(
    role: str, still: Sequence[PipelineCause], hangs: Iterable[Verdict], facts: PipelineFacts
) -> Bottleneck:
    """The verdict "stalled". ``still``: stuck engines and event loops.

    Some findings are consequences and no separate causes: a rank that waits to send weights to a
    stuck engine, and a blocked event loop of a role that hangs.
    """
    hang_verdicts = list(hangs)
    explained = {_loop_of(verdict.role) for verdict in hang_verdicts}
    still = [cause for cause in still if cause.component not in explained]
    felt = _text(_longest(role, facts.processes), _FELT_SECONDS)
    sentences = [cause.sentence for cause in [*still, *map(_hang, hang_verdicts)]]
    own = hang_verdicts
    if any(cause.kind == "still engine" for cause in still):
        own = [
            verdict for verdict in hang_verdicts if not _brings_weights(verdict, facts.processes)
        ]
    chain = (*filter(None, [felt]), *reversed(sentences))
    return _found(role, chain, [*still, *map(_hang, own)])


def _loop_of(role: str) -> str:
    return f"{role} event loop"


def _brings_weights(verdict: Verdict, processes: Iterable[ProcessTime]) -> bool:
    """Whether all ranks of a verdict are in a part of a weight sync."""
    spans_by_rank = {
        process.rank: process.inflight for process in processes if process.role == verdict.role
    }
    return bool(verdict.ranks) and all(
        any(span.name.startswith(WEIGHT_SYNC) for span in spans_by_rank.get(rank, ()))
        for rank in verdict.ranks
    )


def quiet(
    role: str, facts: PipelineFacts, step_seconds: float, paused_seconds: float
) -> Bottleneck | None:
    """The verdict on a role that has not closed a step for much longer than usual, else None.

    It is "found" if the role waits for very long outside checkpoint and validation.
    ``paused_seconds``: how long no engine has moved a request.
    """
    ends = [row.end_seconds for row in facts.steps if row.role == role]
    seconds = facts.now_seconds - max(ends, default=facts.now_seconds)
    ranks = [process for process in facts.processes if process.role == role]
    if not ranks or seconds < max(_OLD_SECONDS, _OLD_STEPS * step_seconds):
        return None
    limit = max(_QUIET_SECONDS, _QUIET_STEPS * step_seconds)
    longest = _longest(role, ranks)
    parts = [_text(longest, _EXPLAINING_SHARE * seconds)]
    parts.append(
        sentences.NO_STEP(role=role, seconds=seconds_text(seconds), step=seconds_text(step_seconds))
    )
    if paused_seconds >= _HELD_SECONDS:
        parts.append(sentences.NO_ENGINE_MOVED(seconds=seconds_text(paused_seconds)))
    chain = tuple(filter(None, parts))
    names = [span.name for process in ranks for span in process.inflight]
    is_aside = any(name.startswith(ASIDE) for name in names)
    if is_aside or longest is None or longest[0] < limit or not longest[3]:
        summary = " ".join(chain)
        return Bottleneck("insufficient evidence", summary, role, step_seconds=step_seconds)
    return _found(role, chain, ())


def _found(role: str, chain: Sequence[str], causes: Sequence[PipelineCause]) -> Bottleneck:
    return Bottleneck(
        state="found",
        summary=f"Stalled: {' ← '.join(chain)}",
        role=role,
        bound_by="stalled",
        chain=tuple(chain),
        causes=tuple(causes),
    )


def _hang(verdict: Verdict) -> PipelineCause:
    ranks = f"{verdict.role} rank {', '.join(verdict.ranks)}" if verdict.ranks else verdict.role
    return PipelineCause(
        "stalled", ranks, verdict.summary, None, "seconds", verdict.step, kind="hang"
    )


def _longest(role: str, processes: Iterable[ProcessTime]) -> tuple[float, str, str, bool] | None:
    """(seconds, rank, span, whether it is a wait) of the longest open span."""
    spans = [
        (span.elapsed_seconds, process.rank, span.name, span.kind != "stage")
        for process in processes
        if process.role == role and process.inflight
        for span in [process.inflight[-1]]
    ]
    return max(spans, default=None)


def _text(longest: tuple[float, str, str, bool] | None, least_seconds: float) -> str:
    if longest is None or longest[0] < least_seconds:
        return ""
    seconds, rank, name, _ = longest
    call = name.partition("@")[0]  # without the number of its process group
    return sentences.LONGEST_SPAN(rank=rank, name=call, seconds=seconds_text(seconds))
