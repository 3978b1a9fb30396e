"""A small JSON document in the agent's own folder, for code that is built on the agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Generic, TypeVar

from dfx_agent.node.segments.owned_files import open_existing, open_state, state_directory
from dfx_agent.snapshot.document import Document, reason
from dfx_agent.wire import SegmentError

T = TypeVar("T")


class StoredDocument(Generic[T]):
    """``load`` and ``save`` never raise. ``problem`` is the last error; ``report`` receives it."""

    def __init__(
        self,
        directory: str,
        name: str,
        document: Document[T],
        report: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        self.problem = ""
        self._report = report
        self._directory = directory
        self._name = name
        self._document = document

    def load(self) -> T | None:
        """None when there is none that can be read."""
        try:
            with closing(open_existing(state_directory(self._directory))) as folder:
                return self._document.read(folder.read(self._name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._note(f"cannot use {self._name} ({reason(error)})")
            return None

    def save(self, value: T) -> None:
        try:
            with closing(open_state(self._directory)) as folder:
                folder.write(self._name, self._document.dumped(value))
        except (OSError, ValueError, SegmentError) as error:
            self._note(f"cannot keep {self._name} ({error})")

    def _note(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._report(problem)
