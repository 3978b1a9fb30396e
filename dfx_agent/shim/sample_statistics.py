"""Distribution of the samples of a batch: scores by bucket and data source, spread of lengths.

The shape ledger has reduced each column to one number per sample. The rest of the work is done when
the step is over. Scores are counted once: at the first boundary of the process at which a batch has
a score column. Counts add up over the run, and the agent makes a Prometheus histogram of them.
Standard deviation and percentiles are those of the samples of this process in the batch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

from dfx_agent.wire.records import SCORE_COUNTER, SCORE_EDGES

if TYPE_CHECKING:
    from dfx_agent.shim.recorder import Recorder

# names of columns, preferred ones first: the score before a KL penalty
_PER_TOKEN = ("token_level_scores", "rm_scores", "token_level_rewards")
_PER_SAMPLE = ("raw_reward", "raw_rewards", "scores", "score", "rewards", "reward")
_SOURCES = ("data_source", "data_sources", "env_name", "env", "task", "domain", "source")
_RESPONSE_LENGTHS = (
    "response_length", "response_lengths", "response_mask", "completion_mask", "action_mask",
)  # fmt: skip
_SCORES = frozenset({*_PER_TOKEN, *_PER_SAMPLE})
_COLUMNS = _SCORES | {*_SOURCES, *_RESPONSE_LENGTHS}
SOURCES = frozenset(_SOURCES)
_MAX_SOURCES, _MAX_SOURCE_CHARACTERS = 16, 64
_OTHER = "other"
_PERCENTILES = (10, 50, 90, 99)
_NAMES = (*(f"{edge:g}" for edge in SCORE_EDGES), "+Inf")


def record_batch(recorder: Recorder, boundary: str, step: int, columns: Mapping[str, Any]) -> None:
    """Record scores and response lengths of a batch, if it has scores, at the end of the step.

    ``columns``: the ledger's columns, with their row sums on the host.
    """
    if not _SCORES.isdisjoint(columns):
        used = {name: columns[name] for name in columns.keys() & _COLUMNS}
        recorder.at_step_end(partial(_record_columns, recorder, boundary, step, used))


def _record_columns(
    recorder: Recorder, boundary: str, step: int, columns: Mapping[str, Any]
) -> None:
    try:
        scores = _scores_of(columns)
        if scores and recorder.score_boundary in {"", boundary}:
            texts = (columns[name].texts for name in _SOURCES if name in columns)
            sources = next(filter(None, texts), None)
            record_samples(
                recorder, boundary, step, scores, sources, _row_sums(columns, _RESPONSE_LENGTHS)
            )
    except Exception:  # noqa: BLE001 (never into the job)
        recorder.count_error()


def record_samples(
    recorder: Recorder,
    boundary: str,
    step: int,
    scores: Sequence[float],
    sources: Sequence[Any] | None,
    lengths: Sequence[float],
) -> None:
    """Record a score and a response length for each sample of this process, and their spread."""
    recorder.score_boundary = boundary
    is_known = sources is not None and len(sources) == len(scores)
    named = zip(scores, sources if is_known and sources else repeat(""), strict=False)
    pairs = [(float(score), _source(recorder, name)) for score, name in named if _is_finite(score)]
    # rounded: 0.2 as a float32 is above the edge 0.2
    counts = Counter((bisect_left(SCORE_EDGES, round(score, 6)), name) for score, name in pairs)
    for (bucket, source), count in counts.items():
        recorder.count(f"{SCORE_COUNTER}{boundary}/{_NAMES[bucket]}/{source}", count)
    for source in {source for _, source in counts}:
        of_source = [score for score, its_source in pairs if its_source == source]
        for name, sign in (("sum", 1.0), ("negative_sum", -1.0)):
            total = math.fsum(score for score in of_source if score * sign > 0.0) * sign
            recorder.count(f"{SCORE_COUNTER}{boundary}/{name}/{source}", total)
    recorder.scalars(_spread("score", [score for score, _ in pairs]), step)
    recorder.scalars(_spread("response_length", lengths), step)


def sources_of(samples: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """The data source of each sample of a list of dicts; None if the samples do not name it."""
    name = next((name for name in _SOURCES if samples and name in samples[0]), None)
    return None if name is None else [sample.get(name) for sample in samples]


def _source(recorder: Recorder, name: Any) -> str:
    """The name of a data source; a bounded number of names, because each has its own series."""
    text = name[:_MAX_SOURCE_CHARACTERS] if isinstance(name, str) else ""
    if text not in recorder.score_sources:
        if len(recorder.score_sources) >= _MAX_SOURCES:
            return _OTHER
        recorder.score_sources |= {text}
    return text


def _spread(what: str, values: Sequence[float]) -> dict[str, float]:
    """Population standard deviation and percentiles; empty without values."""
    ordered = sorted(filter(_is_finite, values))
    if not ordered:
        return {}
    mean = math.fsum(ordered) / len(ordered)
    variance = math.fsum((value - mean) ** 2 for value in ordered) / len(ordered)
    percentiles = {f"pipeline/{what}/p{p}": _percentile(ordered, p / 100) for p in _PERCENTILES}
    return {f"pipeline/{what}/std": math.sqrt(variance), **percentiles}


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Interpolated between neighbours, as ``numpy.percentile`` does."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


def _scores_of(columns: Mapping[str, Any]) -> list[float]:
    """One score for each sample; a column (B, T) of another name has one reward per time step."""
    flat = (name for name in _PER_SAMPLE if name in columns and columns[name].widths is None)
    return _row_sums(columns, (*_PER_TOKEN, *flat))


def _row_sums(columns: Mapping[str, Any], names: Iterable[str]) -> list[float]:
    """Of the first column that was read in full."""
    found = (columns[name].sums for name in names if name in columns and columns[name].is_whole)
    return next(found, [])


def _is_finite(value: Any) -> bool:
    return math.isfinite(value)
