"""Alerts as the agent itself evaluates and delivers them."""

from dfx_agent.catalogue.spec import PER_NODE, Metric

_RECEIVER = ("kind", "target")

ALERT_ACTIVE = Metric(
    "dfx_alert_active", "gauge", "", (*PER_NODE, "alertname", "severity"),
    "1 while the alert fires in the agent's own evaluation, even if another alert inhibits it; no "
    "series otherwise.", "agent",
)  # fmt: skip
EVALUATIONS = Metric(
    "dfx_alert_evaluations", "counter", "", (), "Times the agent evaluated all alerts.", "agent",
)  # fmt: skip
EVALUATION_ERRORS = Metric(
    "dfx_alert_evaluation_errors", "counter", "", (),
    "Evaluations that failed: alerts stay as they were.", "agent",
)  # fmt: skip
SENT = Metric(
    "dfx_alert_notifications_sent", "counter", "", _RECEIVER,
    "Notifications that the receiver accepted, repetitions included.", "agent",
)  # fmt: skip
FAILED = Metric(
    "dfx_alert_notifications_failed", "counter", "", _RECEIVER,
    "Failed posts to the receiver; their notifications are posted again.", "agent",
)  # fmt: skip
DROPPED = Metric(
    "dfx_alert_notifications_dropped", "counter", "", _RECEIVER,
    "Dropped notifications: too many were waiting, the receiver rejected them for good, or the "
    "agent ended first.", "agent",
)  # fmt: skip
WAITING = Metric(
    "dfx_alert_notifications_waiting", "gauge", "", _RECEIVER,
    "Notifications that the receiver has not accepted yet.", "agent",
)  # fmt: skip
