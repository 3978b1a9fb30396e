import pytest
import torch

from dfx_agent.commands.demo import task
from dfx_agent.commands.demo.model import TinyTransformer
from dfx_agent.commands.demo.sampling import Responses, response_logprobs, sample_responses

MAX_RESPONSE_LENGTH = 12


@pytest.fixture(scope="module")
def model():
    """Random weights, large enough that every position and every earlier token matters."""
    torch.manual_seed(0)
    model = TinyTransformer(task.VOCABULARY_SIZE, task.PROMPT_WIDTH + MAX_RESPONSE_LENGTH)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


@pytest.fixture(scope="module")
def prompts():
    return task.draw_prompts(40, torch.Generator().manual_seed(1))


def sample(model, prompts, seed=2):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return sample_responses(model, prompts, MAX_RESPONSE_LENGTH, task.END, generator)


def test_about_a_million_parameters(model):
    assert 900_000 < sum(parameter.numel() for parameter in model.parameters()) < 1_200_000


def test_sampling_logprobs_agree_with_a_full_pass(model, prompts):
    responses = sample(model, prompts)
    logprobs, entropy = response_logprobs(model, prompts, responses.tokens)

    assert logprobs[responses.mask].std() > 0.5, "a model this flat would prove nothing"
    torch.testing.assert_close(
        responses.logprobs[responses.mask], logprobs[responses.mask], rtol=0, atol=1e-4
    )
    assert entropy.min() >= 0
    assert entropy.max() <= torch.tensor(task.VOCABULARY_SIZE).log() + 1e-5


def test_greedy_tokens_are_the_best_of_a_full_pass(model, prompts):
    responses = sample(model, prompts, seed=None)

    inputs = torch.cat([prompts, responses.tokens[:, :-1]], dim=1)
    best = model(inputs)[:, task.PROMPT_WIDTH - 1 :].argmax(dim=-1)

    assert torch.equal(best[responses.mask], responses.tokens[responses.mask])


def test_mask_ends_with_the_end_token(model, prompts):
    responses = sample(model, prompts)

    ended = 0
    for tokens, mask in zip(responses.tokens.tolist(), responses.mask.tolist(), strict=True):
        length = sum(mask)
        assert mask == [True] * length + [False] * (MAX_RESPONSE_LENGTH - length)
        assert task.END not in tokens[: length - 1]
        assert set(tokens[length:]) <= {task.END}
        ended += tokens[length - 1] == task.END
    assert ended > 0


def test_sampling_follows_the_distribution(model, prompts):
    many = prompts[:1].expand(4000, -1)
    first = sample(model, many).tokens[:, 0]

    expected = model(prompts[:1])[0, -1].softmax(dim=-1)
    observed = torch.bincount(first, minlength=task.VOCABULARY_SIZE) / len(first)
    torch.testing.assert_close(observed, expected.detach(), rtol=0, atol=0.03)


def test_equal_seeds_give_equal_responses(model, prompts):
    assert torch.equal(sample(model, prompts).tokens, sample(model, prompts).tokens)
    assert not torch.equal(sample(model, prompts).tokens, sample(model, prompts, seed=3).tokens)


def test_a_later_token_does_not_change_an_earlier_logit(model, prompts):
    changed = prompts.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 10

    torch.testing.assert_close(model(prompts)[:, :5], model(changed)[:, :5])
    assert not torch.allclose(model(prompts)[:, 5:], model(changed)[:, 5:], atol=1e-2)


def part(lengths, width=6):
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return Responses(mask.long(), mask, -mask.float())


def test_joined_is_as_wide_as_the_longest_that_is_kept():
    discarded = torch.tensor([False, True, False])

    joined = Responses.joined([part([2, 6]), part([4])], discarded)

    assert joined.lengths.tolist() == [2, 0, 4]
    assert joined.tokens.shape == joined.mask.shape == joined.logprobs.shape == (3, 4)


def test_joined_keeps_a_column_when_all_are_discarded():
    joined = Responses.joined([part([2, 6])], torch.tensor([True, True]))

    assert joined.mask.tolist() == [[False], [False]]
