"""Alerts as the agent itself evaluates and delivers them."""

from dfx_agent.catalogue.spec import PER_NODE, Metric

_RECEIVER = ("kind", "target")

ALERT_ACTIVE = Metric(
    "dfx_alert_active", "gauge", "", (*PER_NODE, "alertname", "severity"),
    "1 while the agent itself finds that the alert fires, also when another one speaks for it; no "
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
    "Notifications that the receiver took, repetitions included.", "agent",
)  # fmt: skip
FAILED = Metric(
    "dfx_alert_notifications_failed", "counter", "", _RECEIVER,
    "Posts to the receiver that failed; what was in them is posted again.", "agent",
)  # fmt: skip
DROPPED = Metric(
    "dfx_alert_notifications_dropped", "counter", "", _RECEIVER,
    "Notifications given up: too many were waiting, the receiver refused them for good, or the "
    "agent ended first.", "agent",
)  # fmt: skip
WAITING = Metric(
    "dfx_alert_notifications_waiting", "gauge", "", _RECEIVER,
    "Notifications that the receiver has not taken yet.", "agent",
)  # fmt: skip

METRICS = (
    ALERT_ACTIVE,
    EVALUATIONS,
    EVALUATION_ERRORS,
    SENT,
    FAILED,
    DROPPED,
    WAITING,
)
