"""Samples between prompt and training: queues, groups, turns, partial rollouts."""

from dfx_agent.catalogue.spec import native

_LIGHTRFT = (
    "LightRFT has partial rollouts since its pull request 29, in no release; the guest measures "
    "them there. Any job can send it under its name for a pipeline."
)

# fmt: off
_NATIVE = (
    native(
        "dfx_queue_seconds", "seconds", ("queue", "stat"),
        "Time in the queue, of the items that were removed from it in the step.",
    ),
    native(
        "dfx_group_age_seconds", "seconds", ("stat",),
        "From the first request of a prompt group to its training.",
    ),
    native(
        "dfx_group_survivor_ratio", "ratio", ("stat",),
        "Share of a prompt group's samples that were returned; the others failed.",
    ),
    native(
        "dfx_step_rollouts", "", ("outcome",),
        "Rollouts that ended since the last report: accepted or rejected, failed ones among these.",
    ),
    native(
        "dfx_turn_seconds", "seconds", ("part", "stat", "env"),
        "Time of an episode in one part (generation, tool, environment, scoring) / its turns; "
        "env is all or one environment.",
    ),
    native(
        "dfx_slot_usage_ratio", "ratio", ("pool",),
        "Share of the slots for rollouts in flight that are in use, by pool.",
    ),
    native(
        "dfx_partial_rollout_ratio", "ratio", (),
        "Share of trajectories whose weights changed while they were generated.",
    ),
    native(
        "dfx_partial_rollouts", "", (),
        "Trajectories whose weights changed while they were generated.",
    ),
    native(
        "dfx_partial_span_versions", "", ("stat",),
        "Weight versions within one trajectory; with stat: 1 when none changed, without: 0.",
    ),
    native(
        "dfx_partial_batch_ratio", "ratio", (),
        "Share of a full batch that a partial rollout sends to the learner, as configured.",
        upstream=_LIGHTRFT,
    ),
    native(
        "dfx_partial_budget_tokens", "tokens", (),
        "Tokens that a partial rollout generates at most before the sample is put aside, as it is "
        "set.",
    ),
    native(
        "dfx_step_budget_hits", "", (),
        "Outputs of the step that used up the token budget of a partial rollout.",
    ),
    native(
        "dfx_budget_hit_ratio", "ratio", (),
        "Outputs of the step that used up the token budget / all outputs under it.",
    ),
    native(
        "dfx_partial_buffer_samples", "", ("buffer",),
        "Samples in a buffer of the partial rollout: incomplete, to be continued (regen), or "
        "complete and reserved for a later batch (noregen).",
        upstream=_LIGHTRFT,
    ),
    native(
        "dfx_partial_buffer_age_versions", "", ("buffer", "of", "stat"),
        "Weight updates since samples came into the buffer, of what was taken out of it in the "
        "step (taken) and of what is left (waiting).",
        upstream=_LIGHTRFT,
    ),
    native(
        "dfx_step_resumed_samples", "", (),
        "Samples of the step that were generated on after they had been put aside.",
    ),
    native(
        "dfx_step_regenerated_tokens", "tokens", (),
        "Tokens generated for samples that had been put aside.",
    ),
)
# fmt: on
