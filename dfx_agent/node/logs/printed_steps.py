"""Finds the step that a printed line belongs to: ``Step 3``, ``Epoch [2][10/500]``, ``upd 790``."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dfx_agent.node.logs.run import Record

# a line that says only which step the lines below it are of: "=== Update 3 ==="
_HEADING = re.compile(r"[\s=*#>~-]*(?P<text>[A-Za-z][A-Za-z _]*\d{1,18}(?:/\d+)?)[\s=*#<:~-]*")
_STEP_WORDS = (
    "global_step", "global step", "step", "iteration", "iter", "update", "round", "episode",
    "batch", "epoch",
)  # fmt: skip
_STEP = re.compile(
    r"(?<![\w/])(?P<word>(?:train(?:ing)?[ _/])?(?:global[ _]?step|step|iteration|iter|update|"
    r"round|episode|batch|epoch)s?)\s*[#=:]?\s*\[?\s*(?P<step>\d{1,18}(?:,\d{3}\b)*)"
    r"(?=$|[\s,;:|)\]}/.-](?!\d)|\s*/\s*\d|[,/])",
    re.IGNORECASE,
)
# short words for a step count only in front of the line
_AT_START = re.compile(
    r"\W{0,9}(?:(?:upd|it|ep|game|gen|rollout|trial|t)\b[\s#=:\[(]*)?(?P<step>\d[\d,]{0,17})"
    r"\s*/\s*\d[\d,]*(?=$|[\s,;:|)\]}])|"
    r"\W{0,9}(?:upd|it|ep)\b[\s#=:\[(]*(?P<short>\d[\d,]{0,17})(?=$|[\s:|)\]}])",
    re.IGNORECASE,
)
# batches of an epoch, and the bar of tqdm
_OF_EPOCH = re.compile(r"[\[(]\s*(\d{1,12})\s*/\s*\d[\d,]*\s*[\])]")
_PROGRESS = re.compile(r"(\d{1,12})/\d{1,12} \[")
_MAX_HEADING_CHARS = 80


def step_of_heading(line: str) -> float | None:
    """The step of "=== Update 3 ===" or "Epoch 3/10:"; None for any other line."""
    if len(line) > _MAX_HEADING_CHARS or (found := _HEADING.fullmatch(line.rstrip())) is None:
        return None
    step = _STEP.match(found["text"])
    return _number(step["step"]) if step else None


def steps_of_line(text: str, line: str) -> tuple[Record, str]:
    """The "step" of a line, its "epoch" where the step is another word's; the text without both.

    ``text`` is the line without times.
    """
    found = list(_STEP.finditer(text))
    if not found:
        start = _AT_START.match(text)
        if start:
            return {"step": _number(start["step"] or start["short"])}, text[start.end() :]
        progress = _PROGRESS.search(line)
        return ({"step": float(progress[1])} if progress else {}), text
    best = min(found, key=lambda match: _place_of_word(match["word"]))
    rest = _STEP.sub(" | ", text)
    epochs = [match for match in found if match["word"].lower().startswith("epoch")]
    if epochs and best in epochs:
        batch = _OF_EPOCH.search(text, best.end("step") + 1)
        if batch is None:
            return {"step": _number(best["step"])}, rest
        return {"step": float(batch[1]), "epoch": _number(best["step"])}, rest
    steps = {"step": _number(best["step"])}
    return steps | ({"epoch": _number(epochs[0]["step"])} if epochs else {}), rest


def second_step(text: str) -> int | None:
    """Where a word for a step comes again with another number; None where none does."""
    first: dict[str, float] = {}
    for match in _STEP.finditer(text):
        step = _number(match["step"])
        if first.setdefault(match["word"].lower(), step) != step:
            return match.start()
    return None


def step_word_of(names: Iterable[str]) -> str | None:
    """The name that most clearly means the step."""
    words = [name for name in names if _STEP.fullmatch(f"{name} 1")]
    return min(words, key=_place_of_word) if words else None


def _place_of_word(word: str) -> int:
    lowered = word.lower()
    return next(i for i, name in enumerate(_STEP_WORDS) if name.replace("_", "") in
                lowered.replace("_", "").replace(" ", "") or name in lowered)  # fmt: skip


def _number(text: str) -> float:
    return float(text.replace(",", ""))
