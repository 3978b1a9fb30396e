"""How a guest describes its job (process groups, layout, models, devices) in the name table.

The name table is append-only and no record overwrites it, so an agent that connects late reads the
descriptions too. No record refers to them: a reader that does not know a description ignores it. A
description begins with ``MARK`` and has fields between ``SEPARATOR``:

    group, name, number of ranks, part, description, members   members as in "0-14/2,16"
    place, axis=index/size, ...       position of this rank, as the framework reports it
    peers, members                    ranks that this rank sends to or receives from
    untold, number                    groups that had no room in the table
    compute, kind, name               the device that models compute on
    model, class, parameters, trained, attentions, reason, uncounted
    visible, variable, =value         a variable that hides devices; no value if it is not set

A group with many irregular members has several parts, each one text. Part 0 starts the list again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dfx_agent.wire.layout import MAX_NAME_BYTES

MARK, SEPARATOR = "dfx:", "|"  # printable: readers replace what is not
GROUP, POSITION, PEERS, MISSING_GROUPS = "group", "place", "peers", "untold"
COMPUTE, MODEL, VISIBLE = "compute", "model", "visible"
# variables that hide devices from a process
HIDING_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)  # fmt: skip
MAX_PARTS = 8
MAX_BYTES = 16 * 1024  # of the table, a quarter of it
_MAX_NAME, _MAX_DESCRIPTION = 48, 64
_MAX_REASON, _MAX_UNCOUNTED = 60, 32
_MAX_RANK = 1 << 31


class RankRange(NamedTuple):
    """Every ``step``-th rank from ``first`` to ``last``, both included."""

    first: int
    last: int
    step: int

    @property
    def num_ranks(self) -> int:
        """How many ranks it contains; at least 0, even if the guest sent an invalid range."""
        return max(0, (self.last - self.first) // max(1, self.step) + 1)

    def has(self, rank: int) -> bool:
        """Whether it contains this rank."""
        is_between = self.first <= rank <= self.last
        return is_between and (rank - self.first) % max(1, self.step) == 0

    def __str__(self) -> str:
        if self.first == self.last:
            return f"{self.first}"
        return f"{self.first}-{self.last}" + (f"/{self.step}" if self.step > 1 else "")


class GroupPart(NamedTuple):
    """One part of the description of a process group."""

    name: str
    num_ranks: int
    """Size of the group, even if its members do not all fit."""
    part: int
    """Number of this part, from 0."""
    description: str
    """The text that its creator gave it; only in part 0."""
    members: tuple[RankRange, ...]


class ModelDescription(NamedTuple):
    """A model that a process runs."""

    name: str
    """Its class."""
    num_parameters: int
    num_trained: int
    """Parameters that require gradients."""
    num_attentions: int
    """Attention layers."""
    reason: str
    """Why its FLOPs are unknown; "" if they are known."""
    uncounted: tuple[str, ...]
    """Classes of modules that its FLOPs do not include."""


class DescriptionFields(NamedTuple):
    """A description split into its kind and its fields."""

    kind: str
    fields: tuple[str, ...]


def rank_ranges(ranks: Iterable[int]) -> list[RankRange]:
    """Compress ranks into few ranges: three or more ranks at equal distance are one range."""
    ordered, ranges, at = sorted(set(ranks)), list[RankRange](), 0
    while at < len(ordered):
        end = at + 1
        step = ordered[end] - ordered[at] if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - at == 2 and step > 1:
            end -= 1
        ranges.append(RankRange(ordered[at], ordered[end - 1], step if end - at > 1 else 1))
        at = end
    return ranges


def format_group(name: str, description: str, ranks: Iterable[int]) -> list[str]:
    """Describe a group in at most ``MAX_PARTS`` texts. Members that do not fit are left out."""
    unique = set(ranks)
    name, description = _plain(name, _MAX_NAME), _plain(description, _MAX_DESCRIPTION)
    ranges, texts = rank_ranges(unique), list[str]()
    while len(texts) < MAX_PARTS and (ranges or not texts):
        head = (GROUP, name, str(len(unique)), str(len(texts)), "" if texts else description)
        room = MAX_NAME_BYTES - len(_text(*head, "").encode())
        members, ranges = _fit(ranges, room)
        texts.append(_text(*head, members))
    return texts


def format_position(positions: Mapping[str, tuple[int, int]]) -> str:
    """Describe the position of this rank: (index, size) by axis."""
    rows = (f"{_plain(axis, 16)}={index}/{size}" for axis, (index, size) in positions.items())
    return _text(POSITION, *rows)


def format_peers(ranks: Iterable[int]) -> str:
    """Describe the ranks that this rank exchanges data with, as many as fit."""
    room = MAX_NAME_BYTES - len(_text(PEERS, "").encode())
    return _text(PEERS, _fit(rank_ranges(ranks), room)[0])


def format_missing_groups(num_groups: int) -> str:
    """Describe how many groups had no room in the table."""
    return _text(MISSING_GROUPS, str(num_groups))


def format_compute(kind: str, name: str) -> str:
    """Describe the device of the models: kind as in "cuda", name of the driver or ""."""
    return _text(COMPUTE, _plain(kind, 16), _plain(name, _MAX_DESCRIPTION))


def format_visible(name: str, value: str | None) -> str:
    """Describe a variable that hides devices, cut after a device; None if it is not set."""
    if value is None:
        return _text(VISIBLE, name)
    room = MAX_NAME_BYTES - len(_text(VISIBLE, name, "=").encode())
    cut = _plain(value, room)
    if len(value.encode(errors="replace")) > room:
        cut = cut.rpartition(",")[0]
    return _text(VISIBLE, name, f"={cut}")


def parse_visible(fields: tuple[str, ...]) -> tuple[str, str | None] | None:
    """Parse (variable, value); None if the fields are invalid."""
    if not 1 <= len(fields) <= 2 or fields[0] not in HIDING_VARIABLES:
        return None
    if len(fields) == 1:
        return fields[0], None
    return (fields[0], fields[1][1:]) if fields[1].startswith("=") else None


def format_model(
    name: str, num_parameters: int, num_trained: int, num_attentions: int, reason: str,
    uncounted: Iterable[str],
) -> str:  # fmt: skip
    """Describe a model; for the arguments see ``ModelDescription``."""
    numbers = str(num_parameters), str(num_trained), str(num_attentions)
    left_out = _plain(",".join(uncounted), _MAX_UNCOUNTED)
    return _text(MODEL, _plain(name, _MAX_NAME), *numbers, _plain(reason, _MAX_REASON), left_out)


def parse_model(fields: tuple[str, ...]) -> ModelDescription | None:
    """Parse a model; None if the fields are invalid."""
    try:
        name, num_parameters, num_trained, num_attentions, reason, uncounted = fields
        left_out = tuple(filter(None, uncounted.split(",")))
        return ModelDescription(
            name,
            _parse_count(num_parameters),
            _parse_count(num_trained),
            _parse_count(num_attentions),
            reason,
            left_out,
        )
    except ValueError:
        return None


def parse_description(text: str) -> DescriptionFields | None:
    """Split a description into its fields; None if ``text`` is an ordinary name."""
    if not text.startswith(MARK):
        return None
    kind, *fields = text[len(MARK) :].split(SEPARATOR)
    return DescriptionFields(kind, tuple(fields))


def parse_group_part(fields: tuple[str, ...]) -> GroupPart | None:
    """Parse one part of a group; None if the fields are invalid."""
    try:
        name, num_ranks, part, description, members = fields
        ranges = tuple(parse_ranges(members))
        return GroupPart(name, _parse_rank(num_ranks), _parse_rank(part), description, ranges)
    except ValueError:
        return None


def parse_position(fields: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Parse (index, size) by axis; invalid fields are left out."""
    positions = {}
    for field in fields:
        axis, _, position = field.partition("=")
        index, _, size = position.partition("/")
        try:
            positions[axis] = _parse_rank(index), _parse_rank(size)
        except ValueError:
            continue
    return positions


def parse_ranges(text: str) -> Iterator[RankRange]:
    """Parse ranges as in "0-14/2,16". Raises ValueError if one is invalid."""
    for row in filter(None, text.split(",")):
        span, _, step = row.partition("/")
        first, _, last = span.partition("-")
        ranks = RankRange(_parse_rank(first), _parse_rank(last or first), _parse_rank(step or "1"))
        if ranks.last < ranks.first or ranks.step < 1:
            raise ValueError(row)
        yield ranks


def _parse_rank(text: str) -> int:
    """Parse a rank. Raises ValueError for other text and for numbers no job has."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < _MAX_RANK):
        raise ValueError(text)
    return int(text)


def _parse_count(text: str) -> int:
    """Parse a count of up to 16 digits. Raises ValueError for other text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise ValueError(text)
    return int(text)


def _fit(ranges: list[RankRange], room: int) -> tuple[str, list[RankRange]]:
    """Write as many ranges as fit into ``room`` bytes. Returns the text and the other ranges."""
    text = ""
    for number, ranks in enumerate(ranges):
        longer = f"{text},{ranks}" if text else str(ranks)
        if len(longer) > room:
            return text, ranges[number:]
        text = longer
    return text, []


def _plain(text: str, max_bytes: int) -> str:
    """Replace separators by "?" and cut to ``max_bytes``, without half a character at the end."""
    cleaned = "".join(c if c.isprintable() and c != SEPARATOR else "?" for c in text)
    return cleaned.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def _text(kind: str, *fields: str) -> str:
    return MARK + SEPARATOR.join((kind, *fields))
