"""The guest imports the standard library and nothing else, installed or shipped as a zip."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dfx_agent"
MINORS = range(10, 15)

# Imports every module of the guest, then prints each module that is neither stdlib nor guest.
PROBE = """
import sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
import importlib, pkgutil
import dfx_agent.shim, dfx_agent.wire
for guest in (dfx_agent.wire, dfx_agent.shim):
    for module in pkgutil.walk_packages(guest.__path__, guest.__name__ + "."):
        importlib.import_module(module.name)
for name in sorted(set(sys.modules) - before):
    top = name.partition(".")[0]
    ours = name == "dfx_agent" or name.startswith(("dfx_agent.wire", "dfx_agent.shim"))
    if not ours and top not in sys.stdlib_module_names:
        print(name)
print("loaded", len([name for name in sys.modules if name.startswith("dfx_agent.")]))
"""


def starts(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def interpreters() -> dict[str, str]:
    """Version -> path: this Python, and each other one from 3.10 to 3.14 that starts here."""
    found = {sys.version_info.minor: sys.executable}
    for minor in sorted(set(MINORS) - set(found)):
        pyenv = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python3")
        candidates = [shutil.which(f"python3.{minor}"), *map(str, pyenv)]
        works = next((path for path in candidates if path and starts(path)), None)
        if works:
            found[minor] = works
    return {f"3.{minor}": found[minor] for minor in sorted(found)}


INTERPRETERS = interpreters()


@pytest.fixture(scope="module")
def guest_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guest") / "guest.zip"
    sources = [
        PACKAGE / "__init__.py",
        *(PACKAGE / "wire").rglob("*.py"),
        *(PACKAGE / "shim").rglob("*.py"),
    ]
    with zipfile.ZipFile(path, "w") as archive:
        for source in sources:
            archive.write(source, source.relative_to(ROOT))
    return path


def foreign_modules(python: str, where: Path, *flags: str) -> list[str]:
    probe = subprocess.run(
        [python, *flags, "-c", PROBE, str(where)], capture_output=True, text=True, check=False
    )
    assert probe.returncode == 0, probe.stderr
    *foreign, loaded = probe.stdout.splitlines()
    modules = sum(len(list((PACKAGE / part).rglob("*.py"))) for part in ("wire", "shim"))
    assert loaded == f"loaded {modules}", "the probe did not import every module of the guest"
    return foreign


def test_installed_guest_imports_only_the_standard_library() -> None:
    assert foreign_modules(sys.executable, ROOT) == []


@pytest.mark.parametrize("python", INTERPRETERS.values(), ids=INTERPRETERS)
def test_zipped_guest_needs_nothing_installed(python: str, guest_zip: Path) -> None:
    assert foreign_modules(python, guest_zip, "-I", "-S") == []
