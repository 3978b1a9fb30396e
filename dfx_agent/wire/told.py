"""What a guest says of its job's layout, models and device, as texts in the name table.

The table is append-only and no record overwrites it: who comes late reads it too. No record names
these ids, so who does not know them passes them over. A text begins with ``MARK``; its fields are
separated by ``SEPARATOR``:

    group, name, number of ranks, part, description, members   members as "0-14/2,16", see strides
    place, axis=index/size, ...                                as a framework tells it
    peers, members                                             whom this rank sends to or hears from
    untold, number                                             groups for which there was no room
    compute, kind, name                                        the device that models compute on
    model, class, parameters, trained, attentions, reason, uncounted
    visible, variable, =value         which devices it was left; no value where it is not set

A group of many odd members has several parts, each a text; its part 0 begins it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dfx_agent.wire.layout import MAX_NAME_BYTES

MARK, SEPARATOR = "dfx:", "|"  # printable: readers replace what is not
GROUP, PLACE, PEERS, UNTOLD = "group", "place", "peers", "untold"
COMPUTE, MODEL, VISIBLE = "compute", "model", "visible"
# variables that hide devices from a process
HIDING = (
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
)  # fmt: skip
MAX_PARTS = 8
MAX_BYTES = 16 * 1024  # of the table, a quarter of it
_MAX_NAME, _MAX_DESCRIPTION = 48, 64
_MAX_REASON, _MAX_UNCOUNTED = 60, 32
_MOST = 1 << 31


class Stride(NamedTuple):
    """Ranks from ``first`` to ``last``, both included, ``step`` apart."""

    first: int
    last: int
    step: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"{self.first}"
        return f"{self.first}-{self.last}" + (f"/{self.step}" if self.step > 1 else "")


class GroupPart(NamedTuple):
    """Some members of a group of ``num_ranks``."""

    name: str
    num_ranks: int
    part: int
    description: str
    members: tuple[Stride, ...]


class ToldModel(NamedTuple):
    """A model that a process runs; ``reason``: why nobody knows what it multiplies, "" known."""

    name: str
    num_parameters: int
    num_trained: int
    num_attentions: int
    reason: str
    uncounted: tuple[str, ...]


class TextFields(NamedTuple):
    """``kind`` and what follows it."""

    kind: str
    fields: tuple[str, ...]


def strides(ranks: Iterable[int]) -> list[Stride]:
    """The same ranks, in order, as few rows: three or more in line are one."""
    ordered, found, at = sorted(set(ranks)), list[Stride](), 0
    while at < len(ordered):
        end = at + 1
        step = ordered[end] - ordered[at] if end < len(ordered) else 1
        while end < len(ordered) and ordered[end] - ordered[end - 1] == step:
            end += 1
        if end - at == 2 and step > 1:
            end -= 1
        found.append(Stride(ordered[at], ordered[end - 1], step if end - at > 1 else 1))
        at = end
    return found


def group_texts(name: str, description: str, ranks: Iterable[int]) -> list[str]:
    """At most ``MAX_PARTS``; what does not fit into them is missing, the number of ranks is not."""
    known = set(ranks)
    name, description = _plain(name, _MAX_NAME), _plain(description, _MAX_DESCRIPTION)
    rows, texts = strides(known), list[str]()
    while len(texts) < MAX_PARTS and (rows or not texts):
        head = (GROUP, name, str(len(known)), str(len(texts)), "" if texts else description)
        room = MAX_NAME_BYTES - len(_text(*head, "").encode())
        members, rows = _fitting(rows, room)
        texts.append(_text(*head, members))
    return texts


def place_text(places: Mapping[str, tuple[int, int]]) -> str:
    """``places``: index and size by axis."""
    rows = (f"{_plain(axis, 16)}={index}/{size}" for axis, (index, size) in places.items())
    return _text(PLACE, *rows)


def peers_text(ranks: Iterable[int]) -> str:
    """As many as fit: pipelines have two."""
    room = MAX_NAME_BYTES - len(_text(PEERS, "").encode())
    return _text(PEERS, _fitting(strides(ranks), room)[0])


def untold_text(num_groups: int) -> str:
    return _text(UNTOLD, str(num_groups))


def compute_text(kind: str, name: str) -> str:
    """``kind`` as in "cuda", ``name`` as its driver says it, "" where nobody does."""
    return _text(COMPUTE, _plain(kind, 16), _plain(name, _MAX_DESCRIPTION))


def visible_text(name: str, value: str | None) -> str:
    """As many whole devices as fit; None: it is not set."""
    if value is None:
        return _text(VISIBLE, name)
    room = MAX_NAME_BYTES - len(_text(VISIBLE, name, "=").encode())
    cut = _plain(value, room)
    if len(value.encode(errors="replace")) > room:
        cut = cut.rpartition(",")[0]
    return _text(VISIBLE, name, f"={cut}")


def visible_of(fields: tuple[str, ...]) -> tuple[str, str | None] | None:
    """(variable, value); None where it makes no sense."""
    if not 1 <= len(fields) <= 2 or fields[0] not in HIDING:
        return None
    if len(fields) == 1:
        return fields[0], None
    return (fields[0], fields[1][1:]) if fields[1].startswith("=") else None


def model_text(
    name: str, num_parameters: int, num_trained: int, num_attentions: int, reason: str,
    uncounted: Iterable[str],
) -> str:  # fmt: skip
    """``reason``: why its FLOPs are not known; ``uncounted``: modules that are not in them."""
    numbers = str(num_parameters), str(num_trained), str(num_attentions)
    left_out = _plain(",".join(uncounted), _MAX_UNCOUNTED)
    return _text(MODEL, _plain(name, _MAX_NAME), *numbers, _plain(reason, _MAX_REASON), left_out)


def model_of(fields: tuple[str, ...]) -> ToldModel | None:
    """None where it makes no sense."""
    try:
        name, num_parameters, num_trained, num_attentions, reason, uncounted = fields
        left_out = tuple(filter(None, uncounted.split(",")))
        return ToldModel(
            name, _whole(num_parameters), _whole(num_trained), _whole(num_attentions), reason,
            left_out,
        )  # fmt: skip
    except ValueError:
        return None


def fields_of(text: str) -> TextFields | None:
    """None where it is a name as all others."""
    if not text.startswith(MARK):
        return None
    kind, *fields = text[len(MARK) :].split(SEPARATOR)
    return TextFields(kind, tuple(fields))


def group_part(fields: tuple[str, ...]) -> GroupPart | None:
    """None where it makes no sense."""
    try:
        name, num_ranks, part, description, members = fields
        known = tuple(strides_of(members))
        return GroupPart(name, _number(num_ranks), _number(part), description, known)
    except ValueError:
        return None


def place_of(fields: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Index and size by axis, of those that make sense."""
    found = {}
    for field in fields:
        axis, _, place = field.partition("=")
        index, _, size = place.partition("/")
        try:
            found[axis] = _number(index), _number(size)
        except ValueError:
            continue
    return found


def strides_of(text: str) -> Iterator[Stride]:
    """ValueError where it is none."""
    for row in filter(None, text.split(",")):
        span, _, step = row.partition("/")
        first, _, last = span.partition("-")
        stride = Stride(_number(first), _number(last or first), _number(step or "1"))
        if stride.last < stride.first or stride.step < 1:
            raise ValueError(row)
        yield stride


def _number(text: str) -> int:
    """ValueError where it is none, or larger than any rank."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) < _MOST):
        raise ValueError(text)
    return int(text)


def _whole(text: str) -> int:
    """ValueError where it is none; as large as parameters are many."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise ValueError(text)
    return int(text)


def _fitting(rows: list[Stride], room: int) -> tuple[str, list[Stride]]:
    """As many as fit into so many bytes, and the others."""
    text = ""
    for number, row in enumerate(rows):
        longer = f"{text},{row}" if text else str(row)
        if len(longer) > room:
            return text, rows[number:]
        text = longer
    return text, []


def _plain(text: str, most: int) -> str:
    """Without what separates, and cut: bytes that a character is cut into are left out."""
    cleaned = "".join(c if c.isprintable() and c != SEPARATOR else "?" for c in text)
    return cleaned.encode(errors="replace")[:most].decode(errors="ignore")


def _text(kind: str, *fields: str) -> str:
    return MARK + SEPARATOR.join((kind, *fields))
