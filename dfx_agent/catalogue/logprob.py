"""Log-probabilities of the samples under the policies that matter."""

from dfx_agent.catalogue.spec import native

# fmt: off
_NATIVE = (
    native(
        "dfx_logprob_mean_nats", "nats", ("stat", "scope", "policy"),
        "Mean log-probability of response tokens by policy (old, new, ref, rollout, teacher).",
    ),
)
# fmt: on
