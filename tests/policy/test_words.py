"""Words that only this project's authors would understand do not grow back.

The test reads identifiers, docstrings, comments, messages and docs. CONTRIBUTING.md names a plain
replacement for each word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dfx_agent", "alert_rules", "dashboards", "deploy", "docs", "examples")
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
TEXT_SUFFIXES = {".md", ".yaml", ".yml", ".js", ".css", ".html", ".toml", ".sh"}

# folders and files that may have private words; all are clean
NOT_YET: set[str] = set()

# a word of an identifier: `_told_by_rank` and `ToldValues` both contain `told`
WORDS_OF_NAMES = {
    "told", "tell", "tells", "telling", "heard", "kept", "keeps", "anew", "farewell", "pulse",
    "crossings", "newest", "whom", "beside", "brief", "letting", "alike", "everybody", "ought",
}  # fmt: skip
# a whole identifier that does not say what the value is
WHOLE_NAMES = {"of", "each", "known", "said", "here", "taken"}
PARTS_OF_NAMES = re.compile(r"(^|_)(let_go|lets_go|once_more|goes_on|go_on|went_on|of_which)(_|$)")

PHRASES = (
    "told", "tells", "telling", "heard", "kept", "keeps", "anew", "farewell", "pulse", "crossings",
    "newest", "whom", "beside", "brief", "let go", "lets go", "letting go", "once more", "goes on",
    "go on", "went on", "going on", "of which", "a look", "the own", "of nothing", "by nothing",
    "cannot be had", "to be had", "is had", "are had", "whoever",
)  # fmt: skip
# a person can tell two things apart; a process tells nobody anything
TELL = r"(?<!cannot\s)(?<!can\s)tell(?!\s+(apart|which|whether|if|from)\b)"
WORDS_OF_PROSE = re.compile(
    rf"\b({'|'.join([*PHRASES, TELL])})\b".replace(" ", r"\s+"), re.IGNORECASE
)

# names that users have in their files, queries and scripts: they cannot change
USER_NAMES = {
    "beside-hub": "file that `dfx-agent assets` writes",
    "beside_allocator": "field of /api/v1",
    "heard_seconds": "field of /api/v1",
    "num_crossings": "field of /api/v1",
    "num_incomplete_crossings": "field of /api/v1",
}

# keys that jobs report, so that text may contain them
USER_KEYS = ("pipeline/lag/newest",)

Hit = tuple[int, str]


def words(name: str) -> list[str]:
    """The words of a snake_case or CamelCase name, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def banned_in_name(name: str) -> str | None:
    """The first banned word of an identifier."""
    if name in USER_NAMES:
        return None
    if name.strip("_") in WHOLE_NAMES:
        return name.strip("_")
    phrase = PARTS_OF_NAMES.search(name)
    return phrase[2] if phrase else next((w for w in words(name) if w in WORDS_OF_NAMES), None)


def banned_in_prose(text: str, first_line: int = 1) -> Iterator[Hit]:
    """Banned words of a text with their lines; names between backquotes are no prose."""
    code = rf"`[^`\n]*`|{'|'.join(map(re.escape, USER_KEYS))}"
    plain = re.sub(code, lambda match: "X" * len(match[0]), text)
    # a phrase may be broken over two lines, of a comment too
    plain = re.sub(r"(?<=\n)[ \t#*/]+", lambda indent: " " * len(indent[0]), plain)
    for match in WORDS_OF_PROSE.finditer(plain):
        line = first_line + plain.count("\n", 0, match.start())
        yield line, " ".join(match[0].split())


def names_defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Identifiers that a module defines, not those that it only uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.asname:
            yield node.lineno, node.asname


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments that follow each other are one text, so that a phrase may span two lines."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != block[-1][0] + 1:
                yield block[0][0], "\n".join(text for _, text in block)
                block = []
            block.append((token.start[0], token.string))
    if block:
        yield block[0][0], "\n".join(text for _, text in block)


def sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """String constants with a blank: docstrings and messages, not keys and names of fields."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text.strip():
            yield node.lineno, text


def hits_of_python(source: str) -> list[Hit]:
    tree = ast.parse(source)
    hits = [(line, f"{word} (in {name})")
            for line, name in names_defined(tree) if (word := banned_in_name(name))]  # fmt: skip
    for line, text in (*comments(source), *sentences(tree)):
        hits += banned_in_prose(text, line)
    return sorted(set(hits))


def hits_of_script(source: str) -> list[Hit]:
    """Hits of JavaScript, where backquotes enclose texts and `of` is a keyword."""
    hits = list(banned_in_prose(source.replace("`", '"')))
    for line, text in enumerate(source.splitlines(), start=1):
        names = set(re.findall(r"[A-Za-z_]\w*", text)) - WHOLE_NAMES
        hits += [(line, f"{word} (in {name})") for name in names if (word := banned_in_name(name))]
    return sorted(set(hits))


def hits_of_file(path: Path) -> list[Hit]:
    text = path.read_text(encoding="utf-8")
    word = banned_in_name(path.stem)
    hits = [(1, f"{word} (name of the file)")] if word else []
    by_suffix = {".py": hits_of_python, ".js": hits_of_script}
    return hits + list(by_suffix.get(path.suffix, banned_in_prose)(text))


def searched_files() -> list[str]:
    """Paths relative to the root."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    texts = [path for path in paths if path.suffix in {".py", *TEXT_SUFFIXES}]
    return [*PAGES, *(path.relative_to(ROOT).as_posix() for path in texts)]


FILES = searched_files()


def is_excused(file: str) -> bool:
    return any(file == entry or file.startswith(f"{entry}/") for entry in NOT_YET)


def group(file: str) -> str:
    """Two folders deep, so that a failure is shown by owner."""
    return "/".join(file.split("/")[:-1][:2]) or file


GROUPS = sorted({group(file) for file in FILES})


@pytest.mark.parametrize("folder", GROUPS)
def test_words_are_those_of_the_reader(folder: str) -> None:
    searched = [file for file in FILES if group(file) == folder and not is_excused(file)]
    hits = [
        f"{file}:{line}: {word}" for file in searched for line, word in hits_of_file(ROOT / file)
    ]
    assert not hits, "private words, see CONTRIBUTING.md:\n" + "\n".join(hits)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("told_by_rank = {}", ["told (in told_by_rank)"]),
        ("class NewestRow: ...", ["newest (in NewestRow)"]),
        ("def f(known): ...", ["known (in known)"]),
        ("self.let_go_at = 3", ["let_go (in let_go_at)"]),
        ("num_known_ranks = 1", []),
        ("print('the hub was told')", ["told"]),
        ("x = 1  # the rank goes\n# on", ["goes on"]),
        ('def f():\n    """Of which\n\n    one is kept."""', ["Of which", "kept"]),
        ("print('Cannot tell which rank is slow.')", []),
        ("print('What the agent keeps in `kept`.')", ["keeps"]),
    ],
)
def test_private_words_are_found(source: str, expected: list[str]) -> None:
    assert [word for _, word in hits_of_python(source)] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("const newestStep = 1;", ["newest (in newestStep)"]),
        ("text = `${count} nodes were told`;", ["told", "told (in told)"]),
        ("for (const row of rows) show(row.heard_seconds);", []),
    ],
)
def test_private_words_of_scripts_are_found(source: str, expected: list[str]) -> None:
    assert [word for _, word in hits_of_script(source)] == expected
