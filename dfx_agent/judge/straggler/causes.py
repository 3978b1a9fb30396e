"""Why a rank is slower than its peers: the part of the step in which it loses time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dfx_agent.base.text import seconds_text
from dfx_agent.facts.steps import IDLE, TRANSFER, Part, Step
from dfx_agent.judge.straggler.excess import others_median
from dfx_agent.wire.records import DATA_LOADER_WAIT, REMOTE_WAIT

MORE_TOKENS = "more tokens"
SLOWER = "slower at equal tokens"
SLOWER_TOKENS_UNKNOWN = "slower, tokens unknown"
LATE_START = "late start"
SLOWER_COLLECTIVE = "slower collective"
HOST_STALL = "host stall"
DATA_WAIT = "data loader"
PAGE_FAULTS = "page faults"

# the guest sees this wait in torch's DataLoader
DATA_LOADER: Part = ("wait", DATA_LOADER_WAIT)

_TEXTS = {
    MORE_TOKENS: "token imbalance, it has more tokens",
    SLOWER: "slower at equal tokens, in {}",
    SLOWER_TOKENS_UNKNOWN: "slower, in {}",
    LATE_START: "late, by {}",
    SLOWER_COLLECTIVE: "slower in collectives, by {}",
}
MIN_TOKEN_SHARE = 0.5
_NAMED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a straggler."""

    word: str
    """Stable word; cause of the verdict."""
    stage: str
    """Stage with most of the excess, "" outside all stages."""
    text: str
    lines: Sequence[str]


def excess_parts(steps: Sequence[Step], rank: str) -> dict[Part, float]:
    """Excess of a rank over the median of the other ranks by part; median over steps."""
    parts = {
        part for step in steps for rank_step in step.ranks.values() for part in rank_step.parts
    }
    return {part: median(_excess_part(step, rank, part) for step in steps) for part in parts}


def find_cause(
    parts: Mapping[Part, float],
    excess_seconds: float,
    token_seconds: float | None,
    *,
    computes: bool = False,
) -> Cause:
    """The cause of an excess.

    ``token_seconds``: the part of the excess that more tokens explain; None if tokens are unknown.
    ``computes``: whether CPU time shows that the rank computes, also outside all stages.
    """
    named = _named(parts, excess_seconds)
    names = ", ".join(map(_part_text, named)) or "many places"
    stage = next((name for kind, name in named if kind == "stage"), "")
    word = _word(parts, excess_seconds, token_seconds)
    if word == LATE_START and computes:
        word = SLOWER_TOKENS_UNKNOWN if token_seconds is None else SLOWER
    return Cause(word, stage, _TEXTS[word].format(names), part_lines(parts, excess_seconds))


def part_lines(parts: Mapping[Part, float], excess_seconds: float) -> list[str]:
    """At most one line of evidence: the parts with at least 20 % of the excess."""
    named = _named(parts, excess_seconds)
    texts = [f"{_part_text(part)} {seconds_text(parts[part])}" for part in named]
    return [f"more than the others in {', '.join(texts)}"] if texts else []


def _word(parts: Mapping[Part, float], excess_seconds: float, token_seconds: float | None) -> str:
    if token_seconds is not None and token_seconds >= MIN_TOKEN_SHARE * excess_seconds:
        return MORE_TOKENS
    kinds: dict[str, float] = {}
    for (kind, _), seconds in parts.items():
        kinds[kind] = kinds.get(kind, 0.0) + seconds
    largest = max(kinds, key=lambda kind: kinds[kind])
    if largest == "stage":
        return SLOWER_TOKENS_UNKNOWN if token_seconds is None else SLOWER
    return SLOWER_COLLECTIVE if largest == TRANSFER[0] else LATE_START


def _excess_part(step: Step, rank: str, part: Part) -> float:
    seconds = {label: rank_step.parts.get(part, 0.0) for label, rank_step in step.ranks.items()}
    return seconds[rank] - others_median(seconds, rank)


def _named(parts: Mapping[Part, float], excess_seconds: float) -> list[Part]:
    """Parts with at least 20 % of the excess, the largest first."""
    ordered = sorted(parts, key=lambda part: -parts[part])
    return [part for part in ordered if parts[part] >= _NAMED_SHARE * excess_seconds]


def _part_text(part: Part) -> str:
    kind, name = part
    if part == IDLE:
        return "time outside all stages"
    if part == DATA_LOADER:
        return "waiting for its data loader"
    if part == ("wait", REMOTE_WAIT):
        return "waiting for a server's answer"
    return f"waiting ({name})" if kind == "wait" else name or kind
