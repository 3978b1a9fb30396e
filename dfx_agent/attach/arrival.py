"""What runs inside a job that an agent attaches to; sent as text, with the guest's files in it.

It needs nothing installed and leaves nothing on disk but the segment. It may be run by the thread
that trains, at any point of it: there it only starts a thread, by the primitive that takes no lock
and with modules that every interpreter has loaded. Standard library, Python 3.10 and newer.
"""

import _thread
import sys

_PACKAGE = "dfx_agent"
_CLAIM = "_dfx_attach"
_CLAIM_SECONDS = 10.0


class _Guest:
    """Imports the guest from memory: finder and loader of its modules."""

    def __init__(self, sources):  # noqa: ANN001
        # type: (dict[str, str]) -> None
        self._sources = sources

    def install(self):  # noqa: ANN201
        # type: () -> None
        sys.meta_path.insert(0, self)

    def unload(self):  # noqa: ANN201
        # type: () -> None
        for name, module in list(sys.modules.items()):
            if getattr(getattr(module, "__spec__", None), "loader", None) is self:
                del sys.modules[name]
        # a new list: another thread may be half-way through the old one, and would skip a finder
        sys.meta_path = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(self, name, path=None, target=None):  # noqa: ANN001, ANN201, ARG002
        if name.partition(".")[0] != _PACKAGE or self._file(name) is None:
            return None
        from importlib.machinery import ModuleSpec  # noqa: PLC0415

        is_package = self._file(name).endswith("/__init__.py")
        return ModuleSpec(name, self, origin="dfx-agent attach", is_package=is_package)

    def create_module(self, spec):  # noqa: ANN001, ANN201, ARG002
        return None

    def exec_module(self, module):  # noqa: ANN001, ANN201
        path = self._file(module.__name__)
        code = compile(self._sources[path], f"<attached>/{path}", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 (this is a loader)

    def get_source(self, name):  # noqa: ANN001, ANN201
        path = self._file(name)
        return None if path is None else self._sources[path]

    def _file(self, name):  # noqa: ANN001, ANN202
        stem = name.replace(".", "/")
        return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in self._sources), None)
