"""How much work a step is, against the steps before."""

from dfx_agent.catalogue.spec import PER_NODE, Metric

SUSTAINED_TOKENS_RATIO = Metric(
    "dfx_step_tokens_sustained_ratio", "gauge", "", (*PER_NODE, "role"),
    "Tokens of a step, all ranks of the agent together / median of the 32 steps before the newest "
    "two; the smaller of the newest two steps. Absent until 10 steps had tokens.", "derived",
    of="run", value=lambda run: {(role,): r for role, r in run.sustained_tokens_ratio.items()},
)  # fmt: skip

METRICS = (SUSTAINED_TOKENS_RATIO,)
