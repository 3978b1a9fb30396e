"""Tests of judges build facts by hand: no process, no sleep, nothing of the machine."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "unit" / "judge"
FILES = sorted(FOLDER.rglob("*.py"))
SCENES = {path.stem for path in (ROOT / "tests" / "unit" / "scenes").glob("*_scene.py")}
OF_THE_MACHINE = {
    *SCENES, "asyncio", "dfx_agent.node", "multiprocessing", "socket",
    "subprocess", "threading", "time",
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Modules, and each package above them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_test_of_a_judge_needs_nothing_of_the_machine(path: Path) -> None:
    assert not imported(path) & OF_THE_MACHINE


@pytest.mark.parametrize("kind", ["crash", "data", "divergence", "hang", "memory", "straggler"])
def test_each_judge_is_tried_with_facts_by_hand(kind: str) -> None:
    assert (FOLDER / kind / "test_from_facts.py").exists()
