"""Episodes: turns, tools between them, and what the last answer is worth."""

import asyncio

import pytest

from dfx_agent.commands.demo import task
from examples.async_rl import environment
from examples.async_rl.environment import ENVIRONMENTS, Calculator, give_rewards, play
from examples.async_rl.groups import Sample

PROMPT = task.encode("    4071=")


def answering(*texts):
    left = list(texts)

    async def answer(prompt):
        tokens = task.encode(left.pop(0))
        return Sample(prompt, tokens, [-0.5] * len(tokens), [0] * len(tokens))

    return answer


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [
        (ENVIRONMENTS[0], "    4071=", 1),
        (ENVIRONMENTS[1], "     407=", 2),
        (ENVIRONMENTS[1], "    4071=", 3),
    ],
)
def test_turns_depend_on_the_prompt_alone(name, prompt, expected):
    assert environment.num_turns(name, task.encode(prompt)) == expected


def test_the_last_answer_counts_and_a_tool_is_called_between_two(monkeypatch):
    calls = []
    monkeypatch.setattr(environment, "TOOL_SECONDS", (0.0, 0.0))
    calculator = Calculator(0, lambda: calls.append(1) or 0.0)

    sample = asyncio.run(play(ENVIRONMENTS[1], PROMPT, answering("1.", "17.", "1704."), calculator))

    assert task.decode(environment.torch.tensor(sample.tokens)) == "1704."
    assert (sample.num_turns, len(calls)) == (3, 2)
    assert sample.tool_seconds > 0
    assert sample.generation_seconds > 0


@pytest.mark.parametrize(("answer", "expected"), [("1704.", True), ("4071.", True), ("1.", False)])
def test_the_calculator_compares_sums_of_digits(monkeypatch, answer, expected):
    monkeypatch.setattr(environment, "TOOL_SECONDS", (0.0, 0.0))
    checking = Calculator(0, lambda: 0.0).digit_sums_agree(PROMPT, task.encode(answer))

    assert asyncio.run(checking) is expected


def test_rewards_are_those_of_the_task_whatever_the_lengths():
    samples = [
        Sample(PROMPT, task.encode(text), [0.0] * len(text), [0] * len(text))
        for text in ("1704.", "17.", "9")
    ]

    give_rewards(samples)

    assert [sample.reward for sample in samples] == pytest.approx([1.0, 0.4, 0.0])
