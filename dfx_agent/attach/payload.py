"""The guest as files of its own: the target needs nothing installed."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_GUEST = ("__init__.py", "wire", "shim")


def guest_zip() -> bytes:
    """``dfx_agent`` with nothing but wire and shim; the same bytes for the same sources."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for top in _GUEST:
            path = _PACKAGE / top
            for source in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                name = (Path("dfx_agent") / source.relative_to(_PACKAGE)).as_posix()
                archive.writestr(zipfile.ZipInfo(name), source.read_bytes())
    return buffer.getvalue()


def write_preload_folder(directory: str) -> str:
    """A folder for PYTHONPATH: ``sitecustomize.py`` and ``guest.zip``; written once per content.

    OSError when ``directory`` cannot be written.
    """
    archive = guest_zip()
    customize = (_PACKAGE / "attach" / "preload_sitecustomize.py").read_bytes()
    digest = hashlib.sha256(archive + customize).hexdigest()[:12]
    folder = os.path.join(directory, f"preload-{digest}")
    if not os.path.isdir(folder):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            made = os.path.join(scratch, "preload")
            os.mkdir(made, 0o700)
            Path(made, "guest.zip").write_bytes(archive)
            Path(made, "sitecustomize.py").write_bytes(customize)
            try:
                os.rename(made, folder)
            except FileExistsError:
                pass
            except OSError:
                if not os.path.isdir(folder):
                    raise
    return folder
