"""What one guest has reported about parallel layout, models and devices."""

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


class ReportedLayout:
    """Layout, models and devices of one rank, updated from the texts of its name table."""

    def __init__(self) -> None:
        self.version = 0  # unique per change and rank; 0 before the first text
        self.groups: dict[str, ProcessGroup] = {}
        self.places: dict[str, tuple[int, int]] = {}  # axis -> (index, size)
        self.peers: tuple[int, ...] = ()  # ranks that it exchanges data with
        self.models: dict[str, job_description.ModelDescription] = {}  # by class name
        self.device: tuple[str, str] | None = None  # (kind, name) of the compute device
        # variables that hide devices, None if unset
        self.visible: dict[str, str | None] = {}
        self.num_untold = 0  # groups that did not fit into the name table
        self.num_texts = 0  # texts read so far

    def read(self, texts: Iterable[str]) -> None:
        """Read new texts of the name table; texts that make no sense are skipped."""
        for text in texts:
            self.num_texts += 1
            if text.startswith(job_description.MARK):
                parsed = job_description.parse_description(text)
                if parsed is not None and self._update(parsed.kind, parsed.fields):
                    self.version = next(_versions)

    def _update(self, kind: str, fields: tuple[str, ...]) -> bool:
        """Whether the layout has changed."""
        if kind == job_description.GROUP:
            return self._update_group(fields)
        if kind == job_description.POSITION:
            self.places = {
                plain(axis): place for axis, place in job_description.parse_position(fields).items()
            }
            return True
        if kind in {job_description.COMPUTE, job_description.MODEL}:
            self._update_model(kind, fields)
            return False  # not part of the layout
        if kind == job_description.VISIBLE:
            variable = job_description.parse_visible(fields)
            self.visible |= dict([variable] if variable else [])
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

    def _update_model(self, kind: str, fields: tuple[str, ...]) -> None:
        if kind == job_description.COMPUTE and len(fields) == 2:
            self.device = plain(fields[0]), plain(fields[1])
        model = job_description.parse_model(fields) if kind == job_description.MODEL else None
        if model is not None and (model.name in self.models or len(self.models) < _MOST_MODELS):
            name, reason = plain(model.name), plain(model.reason)
            uncounted = tuple(map(plain, model.uncounted))
            self.models[model.name] = model._replace(name=name, reason=reason, uncounted=uncounted)

    def _update_group(self, fields: tuple[str, ...]) -> bool:
        part = job_description.parse_group_part(fields)
        group = self.groups.get(plain(part.name)) if part is not None else None
        if part is None or (group is None and len(self.groups) >= _MOST_GROUPS):
            return False
        members = part.members
        name, description = plain(part.name), plain(part.description)
        if part.part and group is not None:
            description, members = group.description, (*group.members, *members)
        if len(members) > job_description.MAX_PARTS * 200:
            return False
        self.groups[name] = ProcessGroup(name, description, part.num_ranks, members)
        return True
