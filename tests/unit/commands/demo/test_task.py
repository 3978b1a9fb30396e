import pytest
import torch

from dfx_agent.commands.demo import task


def prompts(*texts):
    return torch.tensor([task.encode(text.rjust(task.PROMPT_WIDTH)) for text in texts])


def responses(*texts, width=12):
    """Tokens and mask as sampling returns them: end tokens with mask 0 after the text."""
    tokens = torch.tensor([task.encode(text.ljust(width, ".")) for text in texts])
    mask = torch.tensor([[column < len(text) for column in range(width)] for text in texts])
    return tokens, mask


def test_right_responses_are_reversed_and_ended():
    answers = task.right_responses(prompts("4071=", "12345678="))

    assert [task.decode(answer) for answer in answers] == ["1704.....", "87654321."]


def test_prompt_lengths_leave_the_spaces_out():
    assert task.prompt_lengths(prompts("407=", "12345678=")).tolist() == [4, 9]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("1704.", 1.0),
        ("1704", 4 / 5),  # cut off before the end token
        ("1700.", 4 / 5),
        ("17.", 2 / 5),
        (".", 0.0),
        ("", 0.0),  # aborted
        ("01704.", 0.0),  # all there, nothing in its place
        ("170455555555", 4 / 12),  # chatter is paid by its own length
    ],
)
def test_score_is_the_share_of_right_tokens(response, expected):
    tokens, mask = responses(response)

    scores = task.score(prompts("4071="), tokens, mask)

    assert scores.item() == pytest.approx(expected)


def test_score_of_responses_narrower_than_the_answer():
    tokens, mask = responses("87", width=2)

    assert task.score(prompts("12345678="), tokens, mask).item() == pytest.approx(2 / 9)


def test_drawn_prompts_are_well_formed_and_repeatable():
    drawn = task.draw_prompts(500, torch.Generator().manual_seed(3))

    texts = [task.decode(prompt) for prompt in drawn]
    assert all(text.endswith("=") and text[:-1].lstrip(" ").isdigit() for text in texts)
    lengths = set((task.prompt_lengths(drawn) - 1).tolist())
    assert lengths == set(range(task.MIN_DIGITS, task.MAX_DIGITS + 1))
    assert torch.equal(drawn, task.draw_prompts(500, torch.Generator().manual_seed(3)))


def test_encode_refuses_strangers():
    with pytest.raises(ValueError, match="substring not found"):
        task.encode("4a")
