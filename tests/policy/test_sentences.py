"""Sentences of verdicts are plain English, as far as a machine can check."""

from __future__ import annotations

import re
import string

import pytest

from bench.sentences_page import Declared, declared, render
from dfx_agent.base.text import MOST_HEADLINE_WORDS, Sentence, headline

MOST_WORDS = 25
BANNED = re.compile(
    r"\b(told|tells|telling|heard|let go|kept|keeps|goes on|went on|anew|once more|as of which"
    r"|of which|whose|whom|cannot be had|families|cells)\b|@\d|#\d",
    re.IGNORECASE,
)
SENTENCES = list(declared())
# these say that no rank is slow; other modules write the headlines of a bottleneck and of a node
NO_HEADLINES = {"straggler.NOTHING", "straggler.NO_SLOW_PEER", "straggler.PARTITION"}


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def faults(sentence: Sentence) -> list[str]:
    """What is wrong with it; empty for a good one."""
    needed = fields(sentence.template) | fields(sentence.action)
    found = [f"no example of {{{name}}}" for name in sorted(needed - sentence.example.keys())]
    if found:
        return found
    for text in (sentence(**sentence.example), sentence.action_text(**sentence.example)):
        found += _faults_of(text) if text else []
    return found


def _faults_of(text: str) -> list[str]:
    plain = re.sub(r"`[^`]*`", "X", text)  # code is one word
    found = [] if plain[0].isupper() or plain[0].isdigit() else ["begins with a small letter"]
    found += [] if plain[-1] in ".?" else ["does not end with a full stop"]
    found += [f"banned: {word[0]}" for word in BANNED.finditer(plain)]
    for part in re.split(r"(?<=[.?:])\s+(?=[A-Z])", plain):
        num_words = len(re.findall(r"[^\s]*\w[^\s]*", part))
        if num_words > MOST_WORDS:
            found.append(f"{num_words} words: {part}")
    return found


@pytest.mark.parametrize("each", SENTENCES, ids=str)
def test_a_sentence_of_a_verdict_is_plain_english(each: Declared) -> None:
    assert faults(each.sentence) == []


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        (Sentence("{ranks} failed."), "no example of {ranks}"),
        (Sentence("rank 1 failed."), "begins with a small letter"),
        (Sentence("Rank 1 failed"), "does not end with a full stop"),
        (Sentence("Rank 1 was told to end."), "banned: told"),
        (Sentence("Rank 1 waits in all_reduce #41."), "banned: #4"),
        (Sentence("Rank 1 failed.", action="restart it."), "begins with a small letter"),
        (Sentence("A " * 26 + "failed."), "27 words: " + "A " * 26 + "failed."),
    ],
)
def test_what_is_wrong_with_a_sentence_is_named(sentence: Sentence, fault: str) -> None:
    assert fault in faults(sentence)


def test_the_page_shows_every_sentence() -> None:
    page = render()
    for item in SENTENCES:
        assert item.sentence(**item.sentence.example).replace("|", "\\|") in page


@pytest.mark.parametrize("each", SENTENCES, ids=str)
def test_a_headline_has_at_most_12_words(each: Declared) -> None:
    text = headline(each.sentence(**each.sentence.example))
    if each.kind not in {"bottleneck", "node"} and str(each) not in NO_HEADLINES:
        assert len(text.split()) <= MOST_HEADLINE_WORDS, text
    assert text[-2] not in ",;:(", text
    assert text[-1] in ".?", text
