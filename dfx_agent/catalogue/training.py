"""What torch itself shows of a training loop, with or without a framework around it."""

from dfx_agent.catalogue.spec import PER_RANK, Metric

GRAD_NORM = Metric(
    "dfx_grad_norm", "gauge", "", (*PER_RANK, "model"),
    "Global gradient norm before clipping, from torch's own clipping; actor and critic have their "
    "own metrics.", "shim",
)  # fmt: skip
LOSS = Metric(
    "dfx_loss", "gauge", "", (*PER_RANK, "model"),
    "Loss of the newest step: the sum of what backward() was called on since the step before, as "
    "the job scales it.", "shim",
)  # fmt: skip
MICRO_BATCHES = Metric(
    "dfx_micro_batches", "counter", "", PER_RANK, "Backward passes.", "shim",
)  # fmt: skip
OPTIMIZER_STEPS = Metric(
    "dfx_optimizer_steps", "counter", "", PER_RANK, "Steps of any optimizer.", "shim",
)  # fmt: skip
SKIPPED_UPDATES = Metric(
    "dfx_skipped_updates", "counter", "", PER_RANK,
    "Updates the gradient scaler left out because a gradient was not finite.", "shim",
)  # fmt: skip
NONFINITE_GRADIENTS = Metric(
    "dfx_nonfinite_gradients", "counter", "", PER_RANK,
    "Gradient norms before clipping that were NaN or infinite.", "shim",
)  # fmt: skip

METRICS = (
    GRAD_NORM,
    LOSS,
    MICRO_BATCHES,
    OPTIMIZER_STEPS,
    SKIPPED_UPDATES,
    NONFINITE_GRADIENTS,
)
