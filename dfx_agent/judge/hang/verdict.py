"""Whether a role hangs and who is to blame.

The sign of a hang is a rank that waits in a collective or barrier for 10 s while another one has
not arrived, and that one is stopped, or quiet beyond what its stage normally takes, or gone. Who
works within its limit is not to blame, however long the others wait: limits are learned per stage,
``max(floor, 5 x median, 2 x longest of the last 64)``, with these floors:

    10 s    a stage of a running job, with stacks since its last move; 13 s while there are none
    60 s    outside every stage without stacks, or while the main thread computes or polls: it
            may save or evaluate, untold; 600 s where it does so since before its guest came
    300 s   the first two steps, a stage never seen before (10 x median): compilation, warm-up;
            60 s in a process that was older than that when its guest came
            twice the longest that any rank was outside stages, or waited, in the last hour
    600 s   rollout, validation, checkpoint, compilation: by stage or by what the stack shows; but
            45 s, 10 x median, 4 x longest in a rollout or validation in which the process sleeps

Everybody in one collective for 30 s, or in collectives that do not match, is a hang too; so are
ranks that wait for each other in sends or receives for 30 s, and both ends of one that does not
finish; and a whole run in which nothing has moved for 120 s and 10 steps. A send or receive waits
for the one rank that it names: who is stuck behind a chain of them is at its end.

A rank whose stack shows that it waits for a server's answer (HTTP, gRPC, ZeroMQ, Ray) is named
after 120 s, 10 steps and 4 times the longest one, whether others wait for it or not; after 600 s
where it validates, saves or generates.

A rank whose main thread frees its process group with the GIL held while gloo's own thread asks for
it does not end (see unended.py).

Torch's flight recorder, which guests write when they stand still, shows different collectives under
one number also where no hook saw them: in C++, and in a job that hung before the guest came. There
a rank that has issued nothing for 600 s, stands still, and whose stack shows no rollout, validation
or checkpoint, is to blame at once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from statistics import median

from dfx_agent.durations import age_text, seconds_text
from dfx_agent.faults import Faults
from dfx_agent.judge.crash.endings import has_crashed
from dfx_agent.judge.crash.verdict import crash_verdict
from dfx_agent.judge.hang import limits
from dfx_agent.judge.hang.held_up import ENOUGH_READINGS, ReadingGaps
from dfx_agent.judge.hang.limits import Excuse
from dfx_agent.judge.hang.remote_waits import overdue
from dfx_agent.judge.hang.standstill import NO_PROGRESS_SECONDS, standstill
from dfx_agent.judge.hang.unended import CAUSE as DOES_NOT_END
from dfx_agent.judge.hang.unended import EndWatch, Unended
from dfx_agent.judge.hang.wait_graph import circle
from dfx_agent.judge.words import (
    behind_lines,
    flight_lines,
    labels_text,
    ranks_text,
    stack_lines,
    waits_text,
)
from dfx_agent.node.collectives.unfinished import Unfinished, first_unfinished
from dfx_agent.node.process import Process
from dfx_agent.node.track import Arrival, Ending, Track, Waiter
from dfx_agent.rules.declared.progress import LONG_WAIT
from dfx_agent.snapshot import Verdict, VerdictState
from dfx_agent.wire.records import DDP_GRADIENTS

WAITING_SECONDS = 10.0
UNFINISHED_SECONDS = 30.0

_DEFAULT_GROUP = "0"


class HangWatch:
    """All roles of one run; ``observe`` after each reading. ``verdicts`` are the newest."""

    def __init__(self, faults: Faults | None = None, run: str = "") -> None:
        self.verdicts: tuple[Verdict, ...] = ()
        self._faults, self._run = faults or Faults(), run
        self._tracks: dict[Process, Track] = {}
        self._gaps = ReadingGaps()
        self._found: dict[str, tuple[int, Verdict]] = {}
        self._ends = EndWatch()

    def observe(
        self, processes: Mapping[tuple[str, str], Process], now_ns: int
    ) -> tuple[Verdict, ...]:
        """A hang and a crash verdict for every role. ``processes`` by (role, label)."""
        self._gaps.note(time.monotonic())
        present = set(processes.values())
        self._tracks = {p: t for p, t in self._tracks.items() if p in present}
        roles: dict[str, list[Track]] = {}
        for (role, _), process in processes.items():
            track = self._tracks.get(process)
            if track is None:
                track = self._tracks[process] = Track(process)
            with self._faults.guard("reading", self._run, f"what rank {process.label} has done"):
                track.observe(now_ns)
            roles.setdefault(role, []).append(track)
        quiet_seconds = self._quiet_seconds(now_ns)
        verdicts: list[Verdict | None] = []
        for role, ranks in roles.items():
            verdicts += self._of_role(_Role(role, ranks, now_ns), quiet_seconds)
        self.verdicts = tuple(filter(None, verdicts))
        return self.verdicts

    @property
    def tracks(self) -> tuple[Track, ...]:
        """What is known of each process, dead ones included."""
        return tuple(self._tracks.values())

    def resume(self, process: Process, ending: Ending) -> None:
        """How a process ended that an agent of before has seen end."""
        track = self._tracks.setdefault(process, Track(process))
        track.observe(ending.gone_ns)
        track.resume(ending)

    def _quiet_seconds(self, now_ns: int) -> float:
        """How long nothing has moved anywhere in the run."""
        living = [t.quiet_seconds(now_ns) for t in self._tracks.values() if t.process.is_living]
        return min(living, default=0.0)

    def _of_role(self, role: _Role, quiet_seconds: float) -> list[Verdict | None]:
        judged, run, name = self._faults.judged, self._run, role.name
        return [
            judged(run, "hang", name, lambda: self._hang(role, quiet_seconds)),
            judged(run, "crash", name, lambda: self._crash(role)),
        ]

    def _hang(self, role: _Role, quiet_seconds: float) -> Verdict:
        since_ns, before = self._found.get(role.name, (0, None))
        if before is not None and role.has_ended_since(since_ns):
            return before
        unended = self._ends.unended(role.ranks, role.now_ns)
        hang = role.does_not_end(unended) if unended else role.hang(quiet_seconds)
        if before is None and hang.state == "found" and not role.has_stood(hang.ranks):
            hang = self._gaps.doubted(hang)
        self._found.pop(role.name, None)
        if hang.state == "found":
            self._found[role.name] = since_ns if before else role.now_ns, hang
        return hang

    def _crash(self, role: _Role) -> Verdict:
        since_ns, before = self._found.get(role.name, (0, None))
        if before is not None and role.has_ended_since(since_ns):
            return Verdict("crash", "clear", role.name, "the hang came first")
        return crash_verdict(role.name, role.ranks, role.now_ns)


class _Role:
    """The ranks of one role at one instant."""

    def __init__(self, name: str, ranks: list[Track], now_ns: int) -> None:
        attempt = max(rank.process.attempt for rank in ranks)
        self.name = name
        self.now_ns = now_ns
        # what an earlier attempt left behind is not missed by this one
        known = [r for r in ranks if r.process.is_living or r.process.attempt == attempt]
        self.ranks = sorted(known, key=lambda r: (len(r.process.label), r.process.label))
        self._living = [rank for rank in self.ranks if rank.process.is_living]

    def has_stood(self, labels: Collection[str]) -> bool:
        """Whether several readings in a row found these ranks, or all, where they stand."""
        ranks = [rank for rank in self._living if rank.process.label in labels or not labels]
        return all(rank.num_still >= ENOUGH_READINGS for rank in ranks)

    def has_ended_since(self, since_ns: int) -> bool:
        """Whether ranks have gone since then and the others have not moved either."""
        gone = any(rank.gone_ns is not None and rank.gone_ns > since_ns for rank in self.ranks)
        return gone and all(rank.moved_ns <= since_ns for rank in self._living)

    def hang(self, quiet_seconds: float) -> Verdict:
        """``quiet_seconds``: how long nothing has moved in the whole run."""
        waiters = [*self._waiters(), *self._silent_waiters()]
        recorded = self._recorded()
        absent = self._absent(waiters)
        if not waiters:
            waiters, absent = self._recorded_waiters(recorded)
        has_died = any(has_crashed(rank, self.ranks) for rank in self.ranks)
        differing = [one for one in recorded if len(one.kinds) > 1]
        if differing and not has_died:
            return self._different(differing[0])
        if not waiters:
            return self._unanswered([]) or self._no_progress(quiet_seconds)
        if has_died:
            return self._verdict("clear", "the others wait for a rank that died")
        excuses = {rank: self._excuse(rank) for rank in absent if not rank.is_blocked}
        stopped = {w.rank: self._excuse(w.rank) for w in waiters}
        excuses |= {rank: why for rank, why in stopped.items() if why.fault == limits.STOPPED}
        if excuses:
            return self._missed(excuses, waiters)
        return self._deadlock(absent, waiters)

    def does_not_end(self, unended: list[Unended]) -> Verdict:
        """Ranks that cannot leave; the others have ended, or wait for them."""
        ranks, first = [each.rank for each in unended], unended[0]
        lines = [each.reason for each in unended[:4]]
        since_ns = self.now_ns - int(first.seconds * 1e9)
        return self._found(DOES_NOT_END, str(first), ranks, lines, since_ns)

    def _waiters(self) -> list[Waiter]:
        before_ns = self.now_ns - int(WAITING_SECONDS * 1e9)
        return [Waiter(r, a) for r in self._living for a in r.arrivals if a.begin_ns <= before_ns]

    def _silent_waiters(self) -> list[Waiter]:
        """Devices wait without the host: quiet ranks that are ahead of others in a group."""
        quiet = [r for r in self._living if self._quiet(r) >= WAITING_SECONDS and not r.arrivals]
        waiters: list[Waiter] = []
        for group in {group for rank in quiet for group in rank.reached}:
            newest = max(rank.reached.get(group, -1) for rank in self._living)
            if any(rank.reached.get(group, newest) < newest for rank in self._living):
                ahead = [rank for rank in quiet if rank.reached.get(group) == newest]
                arrivals = (Arrival("", group, newest, r.moved_ns) for r in ahead)
                waiters += map(Waiter, ahead, arrivals)
        return waiters

    def _absent(self, waiters: Iterable[Waiter]) -> list[Track]:
        """Members of the waiters' groups that have not arrived."""
        found = {
            rank: None
            for waiter in waiters
            for rank in self._members(waiter.arrival)
            if rank is not waiter.rank and not rank.has_arrived(waiter)
        }
        return list(found)

    def _members(self, arrival: Arrival) -> list[Track]:
        if arrival.peer is not None:
            return [rank for rank in self.ranks if rank.rank == arrival.peer]
        if arrival.group in {"", _DEFAULT_GROUP}:
            return self.ranks
        return [rank for rank in self.ranks if arrival.group in rank.reached]

    def _excuse(self, rank: Track) -> Excuse:
        return limits.excuse(rank, self.ranks, self.now_ns)

    def _quiet(self, rank: Track) -> float:
        return rank.quiet_seconds(self.now_ns)

    def _age(self, waiters: Iterable[Waiter]) -> float:
        return (self.now_ns - min(waiter.arrival.begin_ns for waiter in waiters)) / 1e9

    def _missed(self, excuses: Mapping[Track, Excuse], waiters: list[Waiter]) -> Verdict:
        """For whom the others wait; a server that does not answer explains who is stuck."""
        faults = {excuse.fault for excuse in excuses.values()} - {""}
        unanswered = None if faults - {limits.STUCK} else self._unanswered(waiters)
        if unanswered is not None:
            return unanswered
        judge = self._left_behind if faults else self._at_work
        return judge(excuses, waiters)

    def _left_behind(self, excuses: Mapping[Track, Excuse], waiters: list[Waiter]) -> Verdict:
        """Those at fault; a stopped rank explains a stuck one, never the other way round."""
        faults = {excuse.fault for excuse in excuses.values()}
        cause = next(fault for fault in limits.FAULTS if fault in faults)
        ranks = [rank for rank, excuse in excuses.items() if excuse.fault == cause]
        first = ranks[0]
        others = [waiter for waiter in waiters if waiter.rank not in ranks] or waiters
        summary = (
            f"{ranks_text(ranks)} {limits.FAULTS[cause]} {first.place} "
            f"for {seconds_text(first.idle_seconds(self.now_ns))}; {waits_text(others)} "
            f"for {seconds_text(self._age(others))}"
        )
        lines = [f"{ranks_text([rank])}: {excuses[rank].reason}" for rank in ranks[:4]]
        lines += [line for rank in ranks[:4] for line in behind_lines(rank, others)]
        longest = max(rank.idle_seconds(self.now_ns) for rank in ranks)
        return self._found(cause, summary, ranks, lines, self.now_ns - int(longest * 1e9))

    def _unanswered(self, waiters: list[Waiter]) -> Verdict | None:
        """A server that answers no more, whether others wait for its client or not."""
        waits = overdue(self._living, self.now_ns)
        if not waits:
            return None
        ranks = [wait.rank for wait in waits]
        summary = "; ".join([str(waits[0]), *([waits_text(waiters)] if waiters else [])])
        lines = [line for wait in waits[:4] for line in (str(wait), wait.reason)]
        since_ns = self.now_ns - int(waits[0].seconds * 1e9)
        return self._found("no answer", summary, ranks, lines, since_ns)

    def _at_work(self, excuses: Mapping[Track, Excuse], waiters: list[Waiter]) -> Verdict:
        rank, excuse = next(iter(excuses.items()))
        summary = (
            f"{waits_text(waiters)} for {ranks_text([rank])}, which is {rank.place} for "
            f"{seconds_text(self._quiet(rank))} of at most {excuse.limit_seconds:.0f} s"
        )
        lines = (excuse.reason, *flight_lines(self.ranks), *stack_lines(self.ranks, self.now_ns))
        state: VerdictState = "clear" if excuse.is_learned else "insufficient evidence"
        return self._verdict(state, summary, evidence=lines)

    def _deadlock(self, absent: list[Track], waiters: list[Waiter]) -> Verdict:
        """Nobody is at work and nobody is at fault: they wait for each other, or for the wire."""
        ordered = [waiter for waiter in waiters if waiter.arrival.sequence is not None]
        if _have_other_operations(ordered):
            return self._mismatched(ordered)
        waiting = {waiter.rank for waiter in waiters}
        if any(rank not in waiting for rank in absent):
            return self._verdict("clear", f"{waits_text(waiters)}; others have just come to wait")
        in_circle = self._circle(waiters)
        if any(waiter.arrival.peer is not None for waiter in in_circle):
            return self._circular(in_circle)
        if not absent:
            return self._all_arrived(waiters, [])
        last = [w for w in waiters if w.rank in absent and not self._absent([w])]
        if not last or any(self._is_passed_by_another(waiter) for waiter in last):
            return self._mismatched(ordered)
        return self._all_arrived(last, [waiter.rank for waiter in last])

    def _circle(self, waiters: list[Waiter]) -> list[Waiter]:
        """Ranks that wait for each other, each for the next one."""
        by_rank: dict[Track, list[Waiter]] = {}
        for waiter in waiters:
            by_rank.setdefault(waiter.rank, []).append(waiter)
        found = circle({rank: self._absent(waits) for rank, waits in by_rank.items()})
        following = zip(found, found[1:] + found[:1], strict=True)
        return [
            next(w for w in by_rank[rank] if other in self._absent([w]))
            for rank, other in following
        ]

    def _circular(self, waiters: list[Waiter]) -> Verdict:
        """Nothing moves any of them, unless what was sent before is still under way."""
        since_ns = max(waiter.arrival.begin_ns for waiter in waiters)
        seconds = (self.now_ns - since_ns) / 1e9
        ranks = [waiter.rank for waiter in waiters]
        places = ", ".join(
            waits_text([w]) + ("" if w.arrival.peer is not None else f" for {ranks_text([other])}")
            for w, other in zip(waiters, ranks[1:] + ranks[:1], strict=True)
        )
        summary = f"{ranks_text(ranks)} wait for each other for {seconds_text(seconds)}: {places}"
        usual_seconds = max(self._usual_seconds(w.arrival) for w in waiters)
        if seconds < max(UNFINISHED_SECONDS, usual_seconds):
            is_usual = usual_seconds > UNFINISHED_SECONDS
            return Verdict(
                "hang", "clear" if is_usual else "insufficient evidence", self.name, summary
            )
        return self._found("circular wait", summary, ranks, [], since_ns)

    def _is_passed_by_another(self, waiter: Waiter) -> bool:
        """Whether a rank that has passed this number did something else under it."""
        operation, group, sequence = waiter.arrival[:3]
        if sequence is None:
            return False
        for rank in self._living:
            other = rank.operation(group, sequence)
            if other is None and rank.reached.get(group, -1) > sequence:
                in_ddp = [a for a in rank.arrivals if a.operation == DDP_GRADIENTS]
                other = DDP_GRADIENTS if in_ddp else None
            if other is not None and other != operation:
                return True
        return False

    def _recorded(self) -> list[Unfinished]:
        """What quiet ranks wait in for 10 s by torch's flight recorder, the oldest first."""
        quiet = [rank for rank in self._living if self._quiet(rank) >= WAITING_SECONDS]
        recorded = {rank.process.label: rank.recorded() for rank in quiet}
        known = {label: record for label, record in recorded.items() if record is not None}
        found = first_unfinished(known)
        return [one for one in found if self._seconds_since(one) >= WAITING_SECONDS]

    def _seconds_since(self, unfinished: Unfinished) -> float:
        now_seconds = self._living[0].process.follower.epoch_seconds(self.now_ns)
        return now_seconds - unfinished.begin_ns / 1e9

    def _recorded_waiters(self, found: list[Unfinished]) -> tuple[list[Waiter], list[Track]]:
        """(who waits, for whom) where no hook saw it: the job hung before the guest came."""
        one = next((one for one in found if one.missing), None)
        if one is None:
            return [], []
        begin_ns = self.now_ns - int(self._seconds_since(one) * 1e9)
        by_label = {rank.process.label: rank for rank in self._living}
        waiters = [
            Waiter(by_label[label], Arrival(entry.operation, one.group, one.sequence, begin_ns))
            for label, entry in one.issued.items()
            if entry is not None and not entry.is_finished
        ]
        return waiters, [by_label[label] for label in one.missing]

    def _different(self, unfinished: Unfinished) -> Verdict:
        """To blame are those in the collective that the fewest are in; all of them on a tie."""
        places = unfinished.places()
        fewest = min(len(labels) for labels, _ in places)
        odd = {label for labels, _ in places if len(labels) == fewest for label in labels}
        where = ", ".join(f"{labels_text(labels)} {what}" for labels, what in places)
        seconds = self._seconds_since(unfinished)
        return self._found(
            "mismatched collectives",
            f"different collectives under one number for {age_text(seconds)}: {where}",
            [rank for rank in self.ranks if rank.process.label in odd],
            [],
            self.now_ns - int(seconds * 1e9),
        )

    def _mismatched(self, waiters: list[Waiter]) -> Verdict:
        """To blame are those in the collective that the fewest are in; all of them on a tie."""
        places: dict[str, list[Waiter]] = {}
        for waiter in waiters:
            places.setdefault(str(waiter.arrival), []).append(waiter)
        fewest = min(map(len, places.values()))
        odd = [w.rank for group in places.values() if len(group) == fewest for w in group]
        where = "; ".join(map(waits_text, places.values()))
        summary = f"collectives do not match for {seconds_text(self._age(waiters))}: {where}"
        since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
        return self._found("mismatched collectives", summary, odd, [], since_ns)

    def _all_arrived(self, waiters: list[Waiter], to_blame: list[Track]) -> Verdict:
        """Everybody known is there; others may not be known."""
        age, where = self._age(waiters), waits_text(waiters)
        summary = f"{where} for {seconds_text(age)}"
        first = waiters[0].arrival
        if any(w.arrival.sequence is None and w.arrival.peer is None for w in waiters):
            if age < NO_PROGRESS_SECONDS:
                return self._verdict("clear", summary)
            return self._verdict("insufficient evidence", f"{summary}: for whom is not known")
        if age < max(UNFINISHED_SECONDS, *(self._usual_seconds(w.arrival) for w in waiters)):
            return self._verdict("clear", summary)
        unseen = self._unseen_text(first)
        if unseen:
            return self._verdict(
                "insufficient evidence", f"{summary}: {unseen} not seen by this agent"
            )
        since_ns = min(waiter.arrival.begin_ns for waiter in waiters)
        summary = f"{summary}: all have arrived and it does not finish"
        if first.peer is not None:
            to_blame = [waiters[0].rank, *self._members(first)]
        return self._found("collective does not finish", summary, to_blame, [], since_ns)

    def _unseen_text(self, arrival: Arrival) -> str:
        """Who of those that it waits for is not known here; "" when all are."""
        if arrival.peer is not None:
            return "" if self._members(arrival) else f"rank {arrival.peer} is"
        num_unseen = self._num_unseen()
        if num_unseen:
            return f"{num_unseen} of its ranks are"
        return "other members are" if len(self._members(arrival)) < 2 else ""

    def _usual_seconds(self, arrival: Arrival) -> float:
        """Five times what such a collective takes."""
        key = f"{arrival.operation}@{arrival.group}"
        known = [ns for rank in self.ranks for ns in rank.collective_durations.get(key, ())]
        return 5 * median(known) / 1e9 if known else 0.0

    def _num_unseen(self) -> int:
        world_size = max(rank.process.follower.identity.world_size for rank in self.ranks)
        return max(0, world_size - len(self.ranks))

    def _no_progress(self, quiet_seconds: float) -> Verdict:
        """A run in which nothing moves anywhere, outside rollout, validation and checkpoint."""
        state, summary = standstill(
            self._living, quiet_seconds, self.now_ns, lambda rank: bool(self._excuse(rank).fault)
        )
        if state != "found":
            return Verdict("hang", state, self.name, summary)
        since_ns = max(rank.moved_ns for rank in self._living)
        return self._found("no progress", summary, [], [], since_ns)

    def _found(
        self, cause: str, summary: str, ranks: list[Track], lines: list[str], since_ns: int
    ) -> Verdict:
        first = (ranks or self._living)[0]
        return Verdict(
            kind="hang",
            state="found",
            role=self.name,
            summary=summary,
            ranks=tuple(rank.process.label for rank in ranks),
            stage=first.stage,
            cause=cause,
            step=first.process.step,
            since_seconds=first.process.follower.epoch_seconds(since_ns),
            evidence=(
                *lines,
                *flight_lines(self.ranks),
                *stack_lines(self.ranks, self.now_ns),
            ),
        )

    def _verdict(
        self, state: VerdictState, summary: str, evidence: tuple[str, ...] = ()
    ) -> Verdict:
        cause = LONG_WAIT if state == "insufficient evidence" else ""
        return Verdict("hang", state, self.name, summary, cause=cause, evidence=evidence)


def _have_other_operations(waiters: Iterable[Waiter]) -> bool:
    """Whether one number of one group is one operation here and another one there."""
    places = {w.arrival[:3] for w in waiters if w.arrival.operation}
    return len({(group, sequence) for _, group, sequence in places}) < len(places)
