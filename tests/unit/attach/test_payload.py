"""The guest as files: all of them, in folders as they are, and nobody's torch but the job's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dfx_agent.attach.payload import guest_files

PACKAGE = Path(__file__).resolve().parents[3] / "dfx_agent"

PROBE = """
import importlib.util, pkgutil, sys
sys.path.insert(0, sys.argv[1])
import dfx_agent.shim
for module in pkgutil.walk_packages(dfx_agent.shim.__path__, "dfx_agent.shim."):
    importlib.import_module(module.name)
assert "torch" not in sys.modules
spec = importlib.util.find_spec("torch")
print(spec.origin if spec else "")
"""


def test_every_file_of_the_guest_travels_also_from_folders_in_folders() -> None:
    there = [*(PACKAGE / "shim").rglob("*.py"), *(PACKAGE / "wire").rglob("*.py")]
    paths = {"dfx_agent/__init__.py", *(f"dfx_agent/{p.relative_to(PACKAGE)}" for p in there)}
    assert set(guest_files()) == paths
    assert "dfx_agent/shim/torch/collectives.py" in paths


def test_the_folder_called_torch_is_not_found_as_torch(tmp_path: Path) -> None:
    for name, source in guest_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
    where = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert str(tmp_path) not in where
