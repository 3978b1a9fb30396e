"""What a node sends to the hub of its job, and what a hub accepts."""

from collections.abc import Callable

from dfx_agent.catalogue.spec import Metric, Values
from dfx_agent.snapshot import AgentRow, NodeRow


def _joined(agent: AgentRow) -> float | None:
    return None if agent.hub is None else float(agent.hub.state == "joined")


def _sent(agent: AgentRow) -> float | None:
    return None if agent.hub is None else float(agent.hub.num_sent)


def _lost(agent: AgentRow) -> float | None:
    return None if agent.hub is None else float(agent.hub.num_lost)


def _by_node(value: Callable[[NodeRow], float]) -> Callable[[AgentRow], Values]:
    return lambda agent: {(row.node,): value(row) for row in agent.nodes}


JOINED = Metric(
    "dfx_hub_joined", "gauge", "", (),
    "1 while the hub accepts the reports of this node; 0 while it does not answer or rejects them.",
    "agent", subject="agent", value=_joined,
)  # fmt: skip
SENT = Metric(
    "dfx_hub_sent_documents", "counter", "", (),
    "Documents of facts that the hub took from this node.", "agent", subject="agent", value=_sent,
)  # fmt: skip
LOST = Metric(
    "dfx_hub_lost_documents", "counter", "", (),
    "Documents of facts that the hub never accepted; the node then sends all facts again.",
    "agent", subject="agent", value=_lost,
)  # fmt: skip

_FROM = ("node",)

TAKEN = Metric(
    "dfx_hub_taken_documents", "counter", "", _FROM,
    "Documents of facts that this hub accepted, by the node that sent them.",
    "agent", subject="agent", value=_by_node(lambda row: row.num_taken),
)  # fmt: skip
REFUSED = Metric(
    "dfx_hub_refused_documents", "counter", "", _FROM,
    "Documents and requests that this hub could not use, by the node that sent them.",
    "agent", subject="agent", value=_by_node(lambda row: row.num_refused),
)  # fmt: skip
MISSED = Metric(
    "dfx_hub_missed_documents", "counter", "", _FROM,
    "Documents that arrived after a lost one; the node then sends all facts again.",
    "agent", subject="agent", value=_by_node(lambda row: row.num_missed),
)  # fmt: skip
LAST_REPORT = Metric(
    "dfx_hub_heard_timestamp_seconds", "gauge", "seconds", _FROM,
    "Unix time of the last report of this node to the hub.",
    "agent", subject="agent", value=_by_node(lambda row: row.heard_seconds),
)  # fmt: skip
