"""Texts for people: sentences of verdicts declared as data, durations, printable names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

LARGEST_COUNT = (1 << 31) - 1
MOST_HEADLINE_WORDS = 12

_SENTENCE_END = re.compile(r"(?<=[.!?])\s(?=[A-Z0-9`])")
_CLAUSE_END = re.compile(r"[:;](?=\s)|,(?=\s[^\d\s])|\s(?=\(|(?:while|after|because|since)\s)")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence with named fields: who or what, how much, since when, because.

    Judges declare their sentences in modules called ``sentences``; the docs generate one page from
    these modules. Calling a sentence returns its text:

    >>> FAILED = Sentence("{ranks} failed with {how}.", {"ranks": "Rank 1", "how": "exit code 1"})
    >>> FAILED(ranks="Rank 3", how="exit code 2")
    'Rank 3 failed with exit code 2.'
    """

    template: str
    """Text with ``str.format`` fields, each filled with words and not with raw values."""
    example: Mapping[str, object] = field(default_factory=dict)
    """A value for every field of the template and of the action."""
    action: str = ""
    """What the reader should do first; "" where the runbook of the alert says it."""

    def __call__(self, **values: object) -> str:
        """The text; KeyError if a field of the template has no value."""
        return self.template.format(**values)

    def action_text(self, **values: object) -> str:
        """What to do, with the same values."""
        return self.action.format(**values)


def headline(text: str) -> str:
    """Who and what: the first sentence, or its first clauses if it has more than 12 words.

    >>> headline("Rank 1 failed with exit code 1: `OSError: no space on device` at `train.py`.")
    'Rank 1 failed with exit code 1.'
    """
    first = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    if len(first.split()) <= MOST_HEADLINE_WORDS:
        return first
    clauses = [first[: end.start()].rstrip(",;:") for end in _CLAUSE_END.finditer(first)]
    whole = [clause for clause in clauses if _is_whole(clause)] or [first.rstrip(".")]
    short = [clause for clause in whole if len(clause.split()) <= MOST_HEADLINE_WORDS]
    return f"{short[-1] if short else whole[0]}."


def _is_whole(clause: str) -> bool:
    return clause.count("(") == clause.count(")") and clause.count("`") % 2 == 0


def full_sentence(text: str) -> str:
    """The same text as a sentence: with a capital and a full stop.

    A first word that is a name, such as ``actor/kl`` or ``all_reduce``, does not change.
    """
    text = text.strip()
    first = text.split(maxsplit=1)[0] if text else ""
    if first.removesuffix(",").removesuffix(":").isalpha():
        text = capitalized(text)
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def capitalized(text: str) -> str:
    """The same text with a capital: for the first field of a sentence."""
    return text[:1].upper() + text[1:]


def joined(texts: Iterable[str]) -> str:
    """Texts one after the other as full sentences, each text once."""
    return " ".join(dict.fromkeys(map(full_sentence, filter(None, texts))))


def rounded(value: float) -> str:
    """Three digits, as in "0.0042", "1.25", "4,790", "2.49e+07"."""
    return f"{float(f'{value:.3g}'):,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.3g}"


def listed(names: Sequence[str]) -> str:
    """As in "loss", "loss and reward", "KL, loss and reward"."""
    head = ", ".join(names[:-1])
    return f"{head} and {names[-1]}" if head else "".join(names)


def seconds_text(seconds: float) -> str:
    """As in "0.035 s", "14.2 s", "140 s"."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def bytes_text(num_bytes: float) -> str:
    """As in "20.1 MiB", "8 GiB"."""
    unit, name = (1 << 30, "GiB") if abs(num_bytes) >= 1 << 30 else (1 << 20, "MiB")
    return f"{num_bytes / unit:.3g} {name}"


def age_text(seconds: float) -> str:
    """As in "14 s", "14 min", "3.2 h"."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def plain(text: str) -> str:
    """One line of valid UTF-8. Unprintable characters become Python escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def whole_number(text: str, most: int = LARGEST_COUNT) -> int | None:
    """Parse a rank, a size or a port. None if it is no whole number, or above ``most``."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        return None
    number = int(text)
    return number if number <= most else None
