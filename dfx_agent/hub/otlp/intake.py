"""Accepts the documents of nodes for a hub, and tracks which nodes send and what was refused.

Nothing is stored that the nodes could not send again. A restarted hub requests the complete state,
and is correct once every node has sent it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from dfx_agent.base.log import OncePerPlace
from dfx_agent.facts.envelope import SEND_SECONDS
from dfx_agent.hub.otlp.requests import FactsRecord, OtlpRequest
from dfx_agent.snapshot import NodeRow

MAX_AGENTS = 20_000
# an agent without a report for longer is no target any more
FORGET_SECONDS = 3600.0
# an agent without a report for longer is not waited for
PRESENT_SECONDS = 15.0
# up to so many agents may report twice as often: stalls are known sooner, at little cost
_FEW_AGENTS, _FEW_SECONDS = 32, SEND_SECONDS / 2
# so many agents may report per second; more agents are asked to report less often
_AGENTS_PER_SECOND = 300
_MAX_EVERY_SECONDS = 5.0
_MAX_RUNS = 64  # of one agent, that are named
_MAX_NAMES = 2 * MAX_AGENTS


class FactsReceiver(Protocol):
    """Turns the documents of nodes into facts of the job."""

    def receive(self, document: bytes, node: str) -> bool:
        """False requests the complete state of ``node``, because earlier documents are missing.

        Raises ValueError, with one line, for a document that cannot be used.
        """

    def called(self, node: str, run: str) -> str:
        """The hub's name for this run of a node; differs if two runs have the same name."""


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """Result of one request."""

    num_refused: int  # documents that could not be used
    message: str  # why the first of them was refused
    wants_all: bool
    # node's name of a run -> name on the hub, if they differ
    called: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """An agent of a node; ``url``: its address; ``runs``: runs that it has reported."""

    node: str
    url: str
    runs: tuple[str, ...]


@dataclass(slots=True)
class _Agent:
    node: str
    last_report_ns: int = 0  # monotonic
    url: str = ""
    has_left: bool = False
    runs: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _NodeCounts:
    heard_seconds: float = 0.0
    num_taken: int = 0
    num_refused: int = 0
    num_missed: int = 0
    message: str = ""


class Intake:
    """``take`` may be called from several threads; the receiver is asked by one at a time.

    ``delivers``: whether alerts on the job are delivered here.
    """

    def __init__(self, receiver: FactsReceiver, *, delivers: bool = False) -> None:
        self.delivers = delivers
        self.hub_id = uuid.uuid4().hex
        self._receiver = receiver
        self._lock = threading.Lock()
        self._agents: dict[str, _Agent] = {}
        self._counts: dict[str, _NodeCounts] = {}
        self._swept_ns = 0
        self._log = OncePerPlace("dfx_agent.otlp")

    @property
    def every_seconds(self) -> float:
        """Interval in which agents are asked to report, in seconds."""
        num_agents = len(self._agents)
        usual_seconds = SEND_SECONDS if num_agents > _FEW_AGENTS else _FEW_SECONDS
        return min(_MAX_EVERY_SECONDS, max(usual_seconds, num_agents / _AGENTS_PER_SECOND))

    def take(self, request: OtlpRequest[FactsRecord], node: str) -> IntakeResult:
        """``node``: the sender, if the records do not name it."""
        num_refused, message, wants_all = request.num_left_out, "", False
        with self._lock:
            now = time.time()
            self._forget_silent()
            if num_refused:
                message = "a log record that no dfx-agent has written"
                self._refuse(node, message, num_refused, now)
            for record in request.items:
                refusal, is_missing = self._take(record, now)
                num_refused += bool(refusal)
                message = message or refusal
                wants_all |= is_missing
            names = {(r.node, r.run): self._receiver.called(r.node, r.run) for r in request.items}
        called = {run: name for (_, run), name in names.items() if name != run}
        return IntakeResult(num_refused, message, wants_all, called)

    def refuse(self, node: str, message: str) -> None:
        """A request of ``node`` could not be read."""
        with self._lock:
            self._refuse(node, message, 1, time.time())

    def nodes(self) -> tuple[NodeRow, ...]:
        """All nodes, by name."""
        with self._lock:
            left = {agent.node: True for agent in self._agents.values()}
            for agent in self._agents.values():
                left[agent.node] &= agent.has_left
            return tuple(
                NodeRow(
                    node,
                    counts.heard_seconds,
                    counts.num_taken,
                    counts.num_refused,
                    counts.num_missed,
                    counts.message,
                    left.get(node, False),
                )
                for node, counts in sorted(self._counts.items())
            )

    def present(self) -> tuple[str, ...]:
        """Nodes with an agent that has reported lately and has not disconnected."""
        since_ns = time.monotonic_ns() - int(PRESENT_SECONDS * 1e9)
        with self._lock:
            agents = self._agents.values()
            return tuple(
                sorted({a.node for a in agents if not a.has_left and a.last_report_ns >= since_ns})
            )

    def targets(self) -> tuple[AgentTarget, ...]:
        """Agents that have not disconnected, by node, including those that stopped reporting."""
        with self._lock:
            found = {
                agent.url: AgentTarget(agent.node, agent.url, tuple(sorted(agent.runs)))
                for agent in self._agents.values()
                if agent.url and not agent.has_left
            }
        return tuple(sorted(found.values(), key=lambda target: (target.node, target.url)))

    def _take(self, record: FactsRecord, now: float) -> tuple[str, bool]:
        """(reason for refusing it, whether an earlier document is missing)."""
        agent = self._agents.get(record.agent)
        if agent is None and len(self._agents) >= MAX_AGENTS:
            return self._refuse(record.node, f"more than {MAX_AGENTS:,} agents", 1, now), False
        if agent is None:
            agent = self._agents[record.agent] = _Agent(record.node)
        agent.last_report_ns, agent.has_left = time.monotonic_ns(), record.is_last
        agent.url = record.url or agent.url
        counts = self._counts_of(record.node)
        counts.heard_seconds = now
        if record.run and len(agent.runs) < _MAX_RUNS:
            agent.runs.add(record.run)
        return self._hand_over(record, counts, now)

    def _hand_over(self, record: FactsRecord, counts: _NodeCounts, now: float) -> tuple[str, bool]:
        try:
            is_whole = self._receiver.receive(record.document, record.node)
        except Exception as error:  # noqa: BLE001 (a strange document costs nothing but itself)
            if not isinstance(error, ValueError):
                self._log.error(f"facts of {record.node}", error)
            reason = " ".join(str(error).split()) or type(error).__name__
            return self._refuse(record.node, reason[:300], 1, now), False
        counts.num_taken += 1
        counts.num_missed += not is_whole
        return "", not is_whole

    def _refuse(self, node: str, message: str, num_documents: int, now: float) -> str:
        counts = self._counts_of(node)
        counts.heard_seconds = now
        counts.num_refused += num_documents
        counts.message = message
        return message

    def _counts_of(self, node: str) -> _NodeCounts:
        """Counts of a node; nodes above the limit share a row."""
        if node not in self._counts and len(self._counts) >= _MAX_NAMES:
            node = "others"
        return self._counts.setdefault(node, _NodeCounts())

    def _forget_silent(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._swept_ns < 10**9:
            return
        self._swept_ns = now_ns
        old_ns = now_ns - int(FORGET_SECONDS * 1e9)
        gone: Iterable[str] = [
            a for a, agent in self._agents.items() if agent.last_report_ns < old_ns
        ]
        for agent in gone:
            del self._agents[agent]
