"""The agent opens, lists and removes files of the folder of segments in one module only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "dfx_agent"
ROOMS = ("agent", "judge", "node")
# of node, what reads the kernel, drivers, engines and logs that people name: never the folder
OUTSIDE = ("host", "devices", "engines", "logs")
# by descriptor of the folder, without following links or waiting for pipes
OWNER = "owned_files.py"
# the settings: files that the operator names
SETTINGS = ("config.py", "model_configs.py")
# lock.py holds its descriptor; that it opens nothing by path is below
TOUCHING = frozenset(
    {
        "open", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "makedirs", "glob",
        "rglob", "iterdir", "scandir", "listdir", "rename", "replace", "unlink", "remove", "touch",
        "chown", "chmod", "symlink", "link", "truncate", "mkfifo",
    }
)  # fmt: skip
MODULES = frozenset({"os", "shutil", "io"})


def calls_on_files(source: str) -> list[str]:
    """Calls that take a path: of ``os``, of ``Path``, and ``open`` itself; not those of /proc."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or _is_of_proc(node) or _is_by_descriptor(node):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            found.append("open")
        elif isinstance(function, ast.Attribute) and function.attr in TOUCHING:
            base = function.value
            name = base.id if isinstance(base, ast.Name) else type(base).__name__
            if name in MODULES or name.endswith("path") or name == "Call":
                found.append(f"{name}.{function.attr}")
    return found


def _is_of_proc(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    if isinstance(first, ast.JoinedStr):
        first = first.values[0]
    text = first.value if isinstance(first, ast.Constant) else None
    return isinstance(text, str) and text.startswith("/proc")


def _is_by_descriptor(call: ast.Call) -> bool:
    return any(keyword.arg in {"dir_fd", "src_dir_fd"} for keyword in call.keywords)


@pytest.mark.parametrize(
    "path",
    [
        path
        for room in ROOMS
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if path.name not in {OWNER, *SETTINGS} and path.relative_to(PACKAGE).parts[1] not in OUTSIDE
    ],
    ids=str,
)
def test_files_of_the_folder_are_opened_in_one_module(path: Path) -> None:
    assert calls_on_files(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("open(path)", ["open"]),
        ("os.open(path, 0)", ["os.open"]),
        ("Path(a, b).read_text()", ["Call.read_text"]),
        ("path.unlink()", ["path.unlink"]),
        ("os.listdir(folder)", ["os.listdir"]),
        ("os.open(name, flags, dir_fd=fd)", []),
        ("open(f'/proc/{pid}/stat')", []),
        ("text.replace('a', 'b')", []),
    ],
)
def test_the_rule_sees_what_it_should(source: str, found: list[str]) -> None:
    assert calls_on_files(source) == found
