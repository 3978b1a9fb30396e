"""What the agent pushes to an OpenTelemetry receiver."""

from dfx_agent.catalogue.spec import Metric

_SIGNAL = ("signal",)

ACTIVE = Metric(
    "dfx_otlp_active", "gauge", "", _SIGNAL,
    "1 while the OpenTelemetry receiver accepts this signal (metrics, traces), 0 otherwise.",
    "agent",
)  # fmt: skip
SENT = Metric(
    "dfx_otlp_sent", "counter", "", _SIGNAL,
    "Data points (metrics) and spans (traces) that the receiver accepted.", "agent",
)  # fmt: skip
FAILED = Metric(
    "dfx_otlp_failed", "counter", "", _SIGNAL,
    "Pushes that the receiver did not accept. The next push of metrics has their latest values; "
    "spans are retained and sent again.", "agent",
)  # fmt: skip
DROPPED_SPANS = Metric(
    "dfx_otlp_dropped_spans", "counter", "", (),
    "Dropped spans: the receiver had not accepted any for too long.", "agent",
)  # fmt: skip
MISSED_STEPS = Metric(
    "dfx_otlp_missed_steps", "counter", "", (),
    "Steps of ranks without spans: their records were dropped before they could be exported.",
    "agent",
)  # fmt: skip

LEFT_OUT_SPANS = Metric(
    "dfx_otlp_left_out_spans", "counter", "", (),
    "Spans of a job that became no stage, and its requests that could not be read; the "
    "page shows the first one and its reason.", "agent",
    subject="agent", value=lambda agent: agent.spans.num_left_out if agent.spans else None,
)  # fmt: skip
