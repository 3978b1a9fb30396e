"""The guest as files of its own: the target needs nothing installed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from dfx_agent.wire import SegmentError

_PACKAGE = Path(__file__).resolve().parent.parent
_GUEST = ("__init__.py", "wire", "shim")


def guest_files() -> dict[str, bytes]:
    """Path -> source of ``dfx_agent`` with nothing but wire and shim, sorted."""
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
    """A folder for PYTHONPATH: ``sitecustomize.py`` and ``guest/``; written once per content.

    A folder and not a zip: Python keeps compiled files beside the sources, and every child would
    compile a zip's again. OSError when ``directory`` cannot be written, SegmentError when full.
    """
    import hashlib  # noqa: PLC0415 (attach is to be quick, and needs neither of the two)

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
    """Complete or not at all: another agent may write the same folder now."""
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
