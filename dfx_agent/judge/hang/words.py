"""Texts about where a rank is, for headlines."""

from __future__ import annotations

from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.hang import limits


def place_text(rank: RankFacts) -> str:
    """As in "in backward, at step (train.py:42)", "at reward (train.py:5)", "in all_reduce"."""
    if not rank.stages and rank.arrivals and rank.arrivals[0].operation:
        return f"in {rank.arrivals[0].call}"
    frame = rank.stacks.own_frame if rank.stacks is not None else None
    if frame is None:
        return rank.place
    return f"{rank.place}, at {frame}" if rank.stages or rank.open_spans else f"at {frame}"


def where_text(rank: RankFacts) -> str:
    """``place_text`` after a comma; "" if the rank is in no stage, span or collective."""
    is_known = rank.stages or rank.open_spans or rank.arrivals
    return f", {place_text(rank)}" if is_known else ""


def does_text(rank: RankFacts) -> str:
    """Verb in front of ``place_text``, as in "has computed or polled"."""
    awaited = limits.own_wait(rank)
    if awaited and not rank.place.startswith("waiting"):
        return f"has waited for {awaited}"
    return "has computed or polled" if rank.is_at_work else "has been"
