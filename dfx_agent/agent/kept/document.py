"""A small JSON document in the agent's own folder, for those who build on the agent."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from dfx_agent.node.segments.owned_files import open_existing, open_state, state_directory
from dfx_agent.wire import SegmentError


class KeptDocument:
    """``load`` and ``save`` do not raise; what went wrong last is in ``problem``."""

    def __init__(self, directory: str, name: str) -> None:
        self.problem = ""
        self._directory = directory
        self._name = name

    def load(self) -> Any:
        """None when there is none that can be read."""
        try:
            with closing(open_existing(state_directory(self._directory))) as folder:
                return json.loads(folder.read(self._name))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.problem = f"cannot use {self._name} ({error})"
            return None

    def save(self, document: Any) -> None:
        try:
            with closing(open_state(self._directory)) as folder:
                folder.write(self._name, json.dumps(document).encode())
        except (OSError, ValueError, SegmentError) as error:
            self.problem = f"cannot keep {self._name} ({error})"
