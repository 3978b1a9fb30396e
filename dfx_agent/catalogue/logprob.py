"""Log-probabilities of the samples under the policies that matter."""

from dfx_agent.catalogue.spec import native

# fmt: off
_NATIVE = (
    native(
        "dfx_logprob_mean_nats", "nats", ("stat", "scope", "policy"),
        "Mean log-probability of response tokens by policy (old, new, ref, rollout, teacher).",
    ),
    native(
        "dfx_micro_batch_tokens", "tokens", ("stage",),
        "Tokens, padding included, of a micro-batch of this stage: what one pass gets.",
    ),
)
# fmt: on
