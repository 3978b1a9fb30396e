"""Sizes at which a reader loses the thread, as numbers."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("dfx_agent", "bench", "tests", "dashboards", "alert_rules")
FORBIDDEN_NAMES = {"common", "helper", "helpers", "manager", "managers", "util", "utils"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_500_lines() -> None:
    files = [*sources(*CODE), *(ROOT / "dfx_agent").rglob("*.js")]
    long = {shown(path): num_lines(path) for path in files if num_lines(path) > 500}
    assert long == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for path in sources(*CODE):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > 60:
                    long[f"{shown(path)}:{node.lineno} {node.name}"] = length
    assert long == {}


def test_no_module_is_named_after_nothing() -> None:
    # dashboards/common.py holds the defaults of panels.
    files = sources("dfx_agent", "bench", "tests", "alert_rules")
    assert [shown(path) for path in files if path.stem in FORBIDDEN_NAMES] == []
