"""What the agent writes to trackers: TensorBoard, Weights & Biases, SwanLab, stdout, JSONL."""

from dfx_agent.catalogue.spec import Metric

_WRITING = ("run", "tracker")

ACTIVE = Metric(
    "dfx_tracker_active", "gauge", "", _WRITING,
    "1 while closed steps of the run are written to the tracker, 0 after it failed.", "agent",
)  # fmt: skip
STEPS = Metric(
    "dfx_tracker_steps", "counter", "", _WRITING, "Closed steps written to the tracker.", "agent",
)  # fmt: skip
DROPPED_STEPS = Metric(
    "dfx_tracker_dropped_steps", "counter", "", _WRITING,
    "Closed steps that the tracker did not take: it failed at the first of them.", "agent",
)  # fmt: skip
LATE_VALUES = Metric(
    "dfx_tracker_late_values", "counter", "", _WRITING,
    "Values and ranks that came after their step was written, or repeat it after a restart of the "
    "job: they are not in the tracker.", "agent",
)  # fmt: skip
