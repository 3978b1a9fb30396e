"""What one guest has told of the layout of its job, its models and its devices, as it comes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from dfx_agent.base.text import plain
from dfx_agent.facts.layout import ProcessGroup
from dfx_agent.wire import job_description

_MOST_GROUPS = 512
_MOST_PEERS = 64
_MOST_MODELS = 16
_versions = itertools.count(1)


class ToldLayout:
    """``places``: index and size by axis; ``peers``: whom it sends to or hears from.

    ``models``: those that it runs, by class; ``device``: what computes them, kind and name.
    ``visible``: variables that hide devices as they are in it now, None where one is not set.
    ``num_untold``: groups for which its guest had no room. ``version``: another one, of no other
    rank, when something came; 0 before anything has. ``num_texts``: looked at so far.
    """

    def __init__(self) -> None:
        self.version = 0
        self.groups: dict[str, ProcessGroup] = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.peers: tuple[int, ...] = ()
        self.models: dict[str, job_description.ModelDescription] = {}
        self.device: tuple[str, str] | None = None
        self.visible: dict[str, str | None] = {}
        self.num_untold = 0
        self.num_texts = 0

    def take(self, texts: Iterable[str]) -> None:
        """New texts of its name table; what makes no sense is passed over."""
        for text in texts:
            self.num_texts += 1
            if text.startswith(job_description.MARK):
                read = job_description.parse_description(text)
                if read is not None and self._take(read.kind, read.fields):
                    self.version = next(_versions)

    def _take(self, kind: str, fields: tuple[str, ...]) -> bool:
        if kind == job_description.GROUP:
            return self._take_group(fields)
        if kind == job_description.POSITION:
            self.places = {
                plain(axis): at for axis, at in job_description.parse_position(fields).items()
            }
            return True
        if kind in {job_description.COMPUTE, job_description.MODEL}:
            self._take_model(kind, fields)
            return False  # nothing of the layout
        if kind == job_description.VISIBLE:
            known = job_description.parse_visible(fields)
            self.visible |= dict([known] if known else [])
            return False
        try:
            if kind == job_description.PEERS:
                rows = job_description.parse_ranges(fields[0])
                ranks = (range(row.first, row.last + 1, row.step) for row in rows)
                self.peers = tuple(itertools.islice(itertools.chain(*ranks), _MOST_PEERS))
            elif kind == job_description.MISSING_GROUPS:
                self.num_untold = int(fields[0])
        except (IndexError, ValueError):
            return False
        return kind in {job_description.PEERS, job_description.MISSING_GROUPS}

    def _take_model(self, kind: str, fields: tuple[str, ...]) -> None:
        if kind == job_description.COMPUTE and len(fields) == 2:
            self.device = plain(fields[0]), plain(fields[1])
        model = job_description.parse_model(fields) if kind == job_description.MODEL else None
        if model is not None and (model.name in self.models or len(self.models) < _MOST_MODELS):
            name, reason = plain(model.name), plain(model.reason)
            uncounted = tuple(map(plain, model.uncounted))
            self.models[model.name] = model._replace(name=name, reason=reason, uncounted=uncounted)

    def _take_group(self, fields: tuple[str, ...]) -> bool:
        part = job_description.parse_group_part(fields)
        known = self.groups.get(plain(part.name)) if part is not None else None
        if part is None or (known is None and len(self.groups) >= _MOST_GROUPS):
            return False
        members = part.members
        name, description = plain(part.name), plain(part.description)
        if part.part and known is not None:
            description, members = known.description, (*known.members, *members)
        if len(members) > job_description.MAX_PARTS * 200:
            return False
        self.groups[name] = ProcessGroup(name, description, part.num_ranks, members)
        return True
