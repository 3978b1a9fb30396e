"""What torch itself shows of a training loop, with or without a framework around it."""

from dfx_agent.catalogue.spec import PER_RANK, Metric, native

GRAD_NORM = Metric(
    "dfx_grad_norm", "gauge", "", (*PER_RANK, "model"),
    "Global gradient norm before clipping, from torch's own clipping; actor and critic have their "
    "own metrics.", "shim",
)  # fmt: skip
LOSS = Metric(
    "dfx_loss", "gauge", "", (*PER_RANK, "model"),
    "Loss of the latest step: the sum of the values that backward() was called on since the step "
    "before, as the job scales them.", "shim",
)  # fmt: skip
MICRO_BATCHES = Metric(
    "dfx_micro_batches", "counter", "", PER_RANK, "Backward passes.", "shim",
    subject="guest", value=lambda rank: rank.counters_total.get("micro_batches"),
)  # fmt: skip
OPTIMIZER_STEPS = Metric(
    "dfx_optimizer_steps", "counter", "", PER_RANK, "Steps of any optimizer.", "shim",
    subject="guest", value=lambda rank: rank.counters_total.get("optimizer_steps"),
)  # fmt: skip
SKIPPED_UPDATES = Metric(
    "dfx_skipped_updates", "counter", "", PER_RANK,
    "Updates the gradient scaler left out because a gradient was not finite.", "shim",
    subject="guest", value=lambda rank: rank.counters_total.get("skipped_updates"),
)  # fmt: skip
NONFINITE_GRADIENTS = Metric(
    "dfx_nonfinite_gradients", "counter", "", PER_RANK,
    "Gradient norms before clipping that were NaN or infinite.", "shim",
    subject="guest", value=lambda rank: rank.counters_total.get("nonfinite_gradients"),
)  # fmt: skip

# what the guest counts under these names; others are counted under their own
COUNTERS = frozenset({"micro_batches", "optimizer_steps", "skipped_updates", "nonfinite_gradients"})


# fmt: off
_NATIVE = (
    native(
        "dfx_step_updates", "", (),
        "Optimizer steps or backward passes of the step, as the framework counts them.",
    ),
    native(
        "dfx_samples_used", "", ("which",),
        "Samples that the update used, and that there were.",
    ),
)
# fmt: on
