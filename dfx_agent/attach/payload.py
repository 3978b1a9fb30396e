"""The guest's source files, which are sent to the target: it needs nothing installed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dfx_agent.wire import SegmentError

_PACKAGE = Path(__file__).resolve().parent.parent
_GUEST = ("__init__.py", "wire", "shim")


def guest_files() -> dict[str, bytes]:
    """Path -> source of the files in ``dfx_agent`` that make up the guest, sorted."""
    sources = [
        source
        for top in _GUEST
        for source in sorted((_PACKAGE / top).rglob("*.py")) or [_PACKAGE / top]
    ]
    return {
        (Path("dfx_agent") / source.relative_to(_PACKAGE)).as_posix(): source.read_bytes()
        for source in sources
    }


def write_preload_folder(directory: str) -> str:
    """Write a folder for PYTHONPATH: ``sitecustomize.py`` and ``guest/``, once per content.

    It is a folder and not a zip, so that Python can cache compiled files; every child would compile
    a zip's files again. Raises OSError if ``directory`` is not writable, SegmentError if full.
    """
    import hashlib  # noqa: PLC0415 (attach should be quick, and needs neither)

    customize = (_PACKAGE / "attach" / "preload_sitecustomize.py").read_bytes()
    files = {f"guest/{name}": source for name, source in guest_files().items()}
    files["sitecustomize.py"] = customize
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    folder = os.path.join(directory, f"preload-{digest}")
    if not os.path.isdir(folder):
        try:
            _write(directory, folder, files)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            needed = sum(map(len, files.values())) >> 10
            raise SegmentError(
                "full",
                f"no room for {needed} KiB in {directory} ({error.strerror}): "
                "free /dev/shm or set DFX_DIR to a folder with space",
            ) from None
    return folder


def _write(directory: str, folder: str, files: dict[str, bytes]) -> None:
    """Write the complete folder or nothing, as another agent may write the same folder now."""
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        made = Path(scratch, "preload")
        for name, data in files.items():
            path = made / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_bytes(data)
        try:
            os.rename(made, folder)
        except OSError:
            if not os.path.isdir(folder):
                raise
