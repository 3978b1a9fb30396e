"""The shape ledger: batches where one stage hands them to the next."""

from dfx_agent.catalogue.spec import PER_NODE, PER_RANK, Metric

_AT = (*PER_RANK, "boundary")

BATCHES = Metric(
    "dfx_ledger_crossings", "counter", "", _AT, "Batches that crossed the boundary.", "shim",
)  # fmt: skip
SAMPLES = Metric(
    "dfx_ledger_samples", "gauge", "", _AT,
    "Samples that crossed the boundary in the latest step.", "shim",
)  # fmt: skip
TOKENS = Metric(
    "dfx_ledger_tokens", "gauge", "tokens", _AT,
    "Tokens that count in the response mask of the batch that crossed the boundary in the latest "
    "step.", "shim",
)  # fmt: skip
MASK_RATIO = Metric(
    "dfx_ledger_mask_ratio", "gauge", "ratio", _AT,
    "Tokens that count in the response mask / all tokens of it, latest step.", "shim",
)  # fmt: skip
GROUP_SAMPLES = Metric(
    "dfx_ledger_group_samples", "gauge", "", (*_AT, "stat"),
    "Samples of the smallest (stat=min) and the largest (stat=max) group in the latest step.",
    "shim",
)  # fmt: skip
NONFINITE = Metric(
    "dfx_ledger_nonfinite_samples", "counter", "", _AT,
    "Samples that hold NaN or Inf, one for each tensor; the data verdict names the tensor.",
    "shim",
)  # fmt: skip
MISALIGNED = Metric(
    "dfx_ledger_misaligned_samples", "counter", "", _AT,
    "Samples with a per-token tensor or a length that does not fit the mask, one for each tensor.",
    "shim",
)  # fmt: skip
UNREAD = Metric(
    "dfx_ledger_unread_columns", "counter", "", _AT,
    "Columns of a batch that the guest could not read, or not in full; they are not compared.",
    "shim",
)  # fmt: skip
LEFT_OUT = Metric(
    "dfx_ledger_left_out_crossings", "counter", "", _AT,
    "Batches that crossed the boundary and were not checked: of steps shorter than 0.25 s only "
    "every 2nd, 4th, 8th, ... is.", "shim",
)  # fmt: skip
SAMPLED = Metric(
    "dfx_ledger_sampled_rows", "gauge", "", _AT,
    "Rows read of a column too large to read in full; absent when all were read in full.", "shim",
)  # fmt: skip
SCHEMA = Metric(
    "dfx_ledger_schema", "info", "", (*_AT, "schema"),
    "Checksum of names, types and dimensions of all columns in the latest step.", "shim",
)  # fmt: skip
SHAPES = Metric(
    "dfx_ledger_shapes_checksum", "gauge", "", _AT,
    "Checksum of rows and widths of all columns in the latest step; equal at two boundaries with "
    "the same columns unless something was cut or padded.", "shim",
)  # fmt: skip
MISMATCHES = Metric(
    "dfx_ledger_mismatches", "counter", "", (*PER_NODE, "boundary", "kind"),
    "What did not fit at a boundary: samples, ids, mask, shapes or moved (against the boundary "
    "before), nonfinite, lengths, schema.", "derived",
)  # fmt: skip
JUDGED_STEPS = Metric(
    "dfx_ledger_judged_steps", "counter", "", PER_NODE,
    "Steps whose boundaries were compared.", "derived",
)  # fmt: skip
SKIPPED_STEPS = Metric(
    "dfx_ledger_skipped_steps", "counter", "", PER_NODE,
    "Steps that could not be compared: records were lost, or a process started or ended.",
    "derived",
)  # fmt: skip
INCOMPLETE = Metric(
    "dfx_ledger_incomplete_crossings", "counter", "", PER_NODE,
    "Batches with records that were overwritten before the agent read them.", "derived",
)  # fmt: skip
