"""The update of the actor; its times are stages (forward, backward, optimizer)."""

from dfx_agent.catalogue.spec import native

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
