"""Judges hangs and crashes of a run over time. A finding stays until a rank moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial

from dfx_agent.facts.rank import RankFacts
from dfx_agent.judge.crash.endings import has_crashed
from dfx_agent.judge.crash.ray import no_crash, not_ended_by_ray
from dfx_agent.judge.crash.sentences import NONE_DIED
from dfx_agent.judge.crash.verdict import crash_verdict
from dfx_agent.judge.hang import sentences
from dfx_agent.judge.hang.limits import LEFT
from dfx_agent.judge.hang.role import ReadingGaps, Role
from dfx_agent.judge.hang.verdict import does_not_end, hang_verdict, unended
from dfx_agent.snapshot import Verdict, VerdictKind
from dfx_agent.snapshot.faults import Faults

# summary for a role without problems
_CLEAR: dict[VerdictKind, str] = {
    "hang": sentences.NOBODY_WAITS(),
    "crash": NONE_DIED(),
}
KINDS = tuple(_CLEAR)


class HangJudge:
    """Hang and crash verdicts of all roles of one run. Call ``verdicts`` after each reading."""

    def __init__(self, faults: Faults, run: str) -> None:
        self._faults, self._run = faults, run
        self._gaps = ReadingGaps()
        self._found: dict[str, tuple[int, Verdict]] = {}
        self._crashed: dict[str, frozenset[int]] = {}  # role -> pids of the ranks that were named

    def verdicts(
        self,
        roles: Mapping[str, Sequence[RankFacts]],
        quiet_seconds: float,
        read_seconds: float,
    ) -> tuple[Verdict, ...]:
        """A hang and a crash verdict for every role. A role without facts is clear.

        ``quiet_seconds``: how long nothing has moved in the whole run.
        ``read_seconds``: when the reading ended, on the monotonic clock.
        """
        self._gaps.note(read_seconds)
        judged: list[Verdict | None] = []
        all_ranks = [rank for ranks in roles.values() for rank in ranks]
        for name, ranks in roles.items():
            judged += self._of_role(name, ranks, all_ranks, quiet_seconds)
        return tuple(filter(None, judged))

    def _of_role(
        self,
        name: str,
        ranks: Sequence[RankFacts],
        all_ranks: Sequence[RankFacts],
        quiet_seconds: float,
    ) -> list[Verdict | None]:
        judged, run = self._faults.judged, self._run
        if not ranks:
            self._found.pop(name, None)
            self._crashed.pop(name, None)
            return [judged(run, kind, name, partial(_clear, kind, name)) for kind in KINDS]
        role = cache(partial(Role, name, ranks, all_ranks))  # invalid facts of a rank may raise
        return [
            judged(run, "hang", name, lambda: self._hang(role(), quiet_seconds)),
            judged(run, "crash", name, lambda: self._crash(role())),
        ]

    def _hang(self, role: Role, quiet_seconds: float) -> Verdict:
        since_ns, before = self._found.get(role.name, (0, None))
        if before is not None and _has_crashed(before, role):
            since_ns, before = 0, None
        if before is not None and role.has_ended_since(since_ns):
            return before
        stuck = unended(role.ranks)
        hang = does_not_end(role, stuck) if stuck else hang_verdict(role, quiet_seconds)
        if before is None and hang.state == "found" and not role.has_stood(hang.ranks):
            hang = self._gaps.doubted(hang)
        self._found.pop(role.name, None)
        if hang.state == "found":
            self._found[role.name] = since_ns if before else role.latest_ns, hang
        return hang

    def _crash(self, role: Role) -> Verdict:
        since_ns, before = self._found.get(role.name, (0, None))
        if before is not None and role.has_ended_since(since_ns):
            return Verdict("crash", "clear", role.name, sentences.HANG_FIRST())
        by_ray = no_crash(role.name, role.ranks, role.all_ranks)
        if by_ray is not None:
            return by_ray
        named = self._crashed.get(role.name, frozenset())
        ranks = not_ended_by_ray(role.ranks, role.all_ranks)
        crash = crash_verdict(role.name, ranks, role.now_ns, named)
        if crash.state == "found":
            pids = (rank.pid for rank in role.ranks if rank.label in crash.ranks)
            self._crashed[role.name] = frozenset(pids)
        return crash


def _has_crashed(hang: Verdict, role: Role) -> bool:
    """Whether a rank that was reported as "left" has failed: its exit code arrived later."""
    left = [rank for rank in role.ranks if rank.label in hang.ranks and hang.cause == LEFT]
    return any(has_crashed(rank, role.ranks) for rank in left)


def _clear(kind: VerdictKind, role: str) -> Verdict:
    return Verdict(kind, "clear", role, _CLEAR[kind])
