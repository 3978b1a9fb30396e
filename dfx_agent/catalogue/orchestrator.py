"""The process that holds an asynchronous job together: event loop, scheduler."""

from dfx_agent.catalogue.spec import native

# fmt: off
EVENT_LOOP_LAG = native(
    "dfx_event_loop_lag_seconds", "seconds", ("stat",),
    "How late the orchestrator's event loop wakes.",
)
_NATIVE = (
    native(
        "dfx_event_loop_lag_samples", "", (),
        "Samples behind dfx_event_loop_lag_seconds.",
    ),
    native(
        "dfx_concurrency", "", ("which",),
        "Settings and decisions of the scheduler, under the framework's own names.",
    ),
    native(
        "dfx_ckpt_disk_free_ratio", "ratio", (),
        "Share of the checkpoint disk that is free.",
    ),
    native(
        "dfx_ckpt_disk_bytes", "bytes", ("which",),
        "Bytes of the checkpoint disk that are free, used, and there (which).",
    ),
    native(
        "dfx_global_step", "", ("variant",),
        "Step as the framework itself counts it.",
    ),
    native(
        "dfx_epoch", "", (),
        "Epoch as the framework itself counts it.",
    ),
)
# fmt: on
