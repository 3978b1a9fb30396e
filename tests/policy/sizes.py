"""Prints how large files and functions are, in each folder: `make check`.

A table for whoever reviews a change, no limit: a limit on a folder was met by moving lines about,
or by raising it with the feature. Hard limits stand in test_sizes.py.
"""

import ast
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def num_code_lines(text: str) -> int:
    """Lines with code: no blank lines, comments and docstrings, which a reader is glad of."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return sum(1 for i, line in lines if line and not line.startswith("#") and i not in prose)


def function_lengths(text: str) -> list[int]:
    """Lines of each function, its docstring included."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]


def git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def growth(folder: Path, since: str) -> int:
    """Lines added less lines removed below ``folder`` since the commit."""
    changes = git("diff", "--numstat", since, "--", str(folder)).splitlines()
    counts = [line.split()[:2] for line in changes]
    return sum(int(added) - int(removed) for added, removed in counts if added != "-")


def spread(sizes: list[int]) -> str:
    """Median, p90 and largest."""
    ordered = sorted(sizes)
    p90 = ordered[int(0.9 * (len(ordered) - 1))]
    return f"{statistics.median(ordered):6.0f} {p90:5} {ordered[-1]:7}"


def row(folder: Path, since: str) -> str | None:
    """None for a folder without functions."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    functions = [length for text in texts for length in function_lengths(text)]
    if not functions:
        return None
    files = [len(text.splitlines()) for text in texts]
    num_code = sum(map(num_code_lines, texts))
    return (
        f"{folder.relative_to(ROOT).as_posix():22} {len(texts):5} {num_code:7}"
        f" {growth(folder, since):+7}   {spread(files)}   {spread(functions)}"
    )


def main() -> None:
    since = git("describe", "--tags", "--abbrev=0") or git("rev-list", "--max-parents=0", "HEAD")
    columns = "median   p90 largest"
    print(f"{'':43}   {'lines of a file':20}   {'lines of a function':20}")
    print(f"{'folder':22} files    code  growth   {columns}   {columns}")
    folders = sorted(path for path in (ROOT / "dfx_agent").iterdir() if path.is_dir())
    for folder in [*folders, ROOT / "bench", ROOT / "tests"]:
        line = row(folder, since)
        if line:
            print(line)
    print(f"growth: lines added less lines removed since {since[:12]}")


if __name__ == "__main__":
    main()
