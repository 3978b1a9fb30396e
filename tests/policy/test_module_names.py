"""Modules that are named in strings exist: a move of a file breaks no late import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dfx_agent", "bench", "tests", "dashboards", "alert_rules")
# "dfx_agent.web.app", also "dfx_agent.web.app.create_app" as monkeypatch takes it
DOTTED = re.compile(r"dfx_agent(\.[a-z_]+)+")


def modules() -> set[str]:
    paths = (p.relative_to(ROOT).with_suffix("") for p in (ROOT / "dfx_agent").rglob("*.py"))
    return {".".join(path.parts).removesuffix(".__init__") for path in paths}


KNOWN = modules()
# a logger, a library for tracing and a file, not modules
OTHERS = {"dfx_agent.test", "dfx_agent.otlp", "dfx_agent.pth"}
CHILDREN = {name.removeprefix("dfx_agent.") for name in KNOWN}
ROOMS = {name.split(".")[0] for name in CHILDREN}


def unknown(text: str) -> bool:
    """Whether a string that looks like one of our modules names none."""
    head = text.rpartition(".")[0]
    return text not in KNOWN | OTHERS and head not in KNOWN - {"dfx_agent"}


def late_imports(tree: ast.AST) -> list[str]:
    """Strings in calls and loops that import by name: ``import_module(f"dfx_agent.{name}")``."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and "import_module" in ast.unparse(node):
            found += [n.value for n in ast.walk(node.iter) if isinstance(n, ast.Constant)]
    return [text for text in found if isinstance(text, str) and text.split(".")[0] in ROOMS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_that_a_string_names_exists(folder: str) -> None:
    missing = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        named = [text for text in strings if DOTTED.fullmatch(text) and unknown(text)]
        named += [text for text in late_imports(tree) if text not in CHILDREN]
        missing += [(path.name, text) for text in named]
    assert missing == []
