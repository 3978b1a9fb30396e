"""The two commands of the README, the Makefile and continuous integration say the same."""

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(*args: str) -> str:
    if shutil.which("make") is None:
        pytest.skip("no make on PATH; Debian: apt-get install make")
    done = subprocess.run(["make", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def targets() -> set[str]:
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    return set(phony[1].split())


def test_make_alone_lists_every_target_with_one_line() -> None:
    listed = dict(re.findall(r"^  make ([a-z-]+) +(\S.*)$", make(), re.MULTILINE))
    assert set(listed) == targets()


@pytest.mark.parametrize("target", ["demo", "test"])
def test_readme_commands_are_make_targets(target: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"\bmake {target}\b", readme)
    assert target in targets()


def test_continuous_integration_runs_the_readme_test_command() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    tests = ["make check", "make test", "exec make test-frameworks"]
    commands = [line.partition(" ARGS=")[0] for line in lines]
    assert [command for command in commands if command in tests] == tests
    assert commands[-1] == tests[-1]


def test_installation_puts_the_start_file_next_to_the_packages() -> None:
    try:
        installed = importlib.metadata.distribution("dfx-agent")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("dfx-agent is not installed in this interpreter; `make test` installs it")
    source = ROOT / "dfx_agent" / "attach" / "dfx_agent.pth"
    landed = Path(str(installed.locate_file("dfx_agent.pth")))
    assert landed.read_text(encoding="utf-8") == source.read_text(encoding="utf-8")
