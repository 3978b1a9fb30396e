import pytest
import torch

from dfx_agent.commands.demo import grpo


def test_group_advantages_are_standardised_within_each_group():
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0, 5.0, 6.0, 7.0, 8.0])

    advantages = grpo.group_advantages(rewards, group_size=4).view(2, 4)

    torch.testing.assert_close(advantages.mean(dim=1), torch.zeros(2))
    torch.testing.assert_close(advantages.std(dim=1), torch.ones(2), rtol=0, atol=1e-4)
    assert advantages[0].tolist() == pytest.approx([-0.866, 0.866, -0.866, 0.866], abs=1e-3)


def test_a_group_of_equal_rewards_teaches_nothing():
    assert grpo.group_advantages(torch.full((4,), 0.7), group_size=4).tolist() == [0, 0, 0, 0]


def terms_at_ratios(ratios, advantage):
    logprobs = torch.tensor([ratios]).log()
    zeros = torch.zeros_like(logprobs)
    return grpo.policy_terms(logprobs, zeros, zeros, torch.tensor([advantage]), clip_ratio=0.2)


@pytest.mark.parametrize(
    ("advantage", "losses", "clipped"),
    [
        (1.0, [-0.5, -1.0, -1.2], [False, False, True]),
        (-1.0, [0.8, 1.0, 1.5], [True, False, False]),
    ],
)
def test_clipping_stops_only_what_goes_further_the_rewarded_way(advantage, losses, clipped):
    terms = terms_at_ratios([0.5, 1.0, 1.5], advantage)

    torch.testing.assert_close(terms.policy_loss, torch.tensor([losses]))
    assert terms.clipped.tolist() == [clipped]


def test_clipped_tokens_have_no_gradient():
    logprobs = torch.tensor([[0.5, 1.1, 1.5]]).log().requires_grad_()
    zeros = torch.zeros(1, 3)

    terms = grpo.policy_terms(logprobs, zeros, zeros, torch.tensor([1.0]), clip_ratio=0.2)
    terms.policy_loss.sum().backward()

    torch.testing.assert_close(logprobs.grad, torch.tensor([[-0.5, -1.1, 0.0]]))


def test_old_new_kl_is_the_drop_in_log_probability():
    terms = terms_at_ratios([0.5, 1.0, 2.0], advantage=1.0)

    torch.testing.assert_close(terms.old_new_kl, -torch.tensor([[0.5, 1.0, 2.0]]).log())


def test_k3_estimates_the_true_kl_and_is_never_negative():
    generator = torch.Generator().manual_seed(0)
    policy = torch.randn(5, generator=generator).log_softmax(0)
    reference = (policy + 0.7 * torch.randn(5, generator=generator)).log_softmax(0)
    drawn = torch.multinomial(policy.exp(), 200_000, replacement=True, generator=generator)

    estimates = grpo.k3_kl(policy[drawn], reference[drawn])

    assert estimates.min() >= -1e-6
    true_kl = (policy.exp() * (policy - reference)).sum()
    assert estimates.mean().item() == pytest.approx(true_kl.item(), rel=0.02)
