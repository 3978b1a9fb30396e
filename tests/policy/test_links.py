"""Links and anchors of all Markdown files lead somewhere, here and on the site of ``docs/``."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NOT_OURS = {"dist", "shared"}

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^ *\2`*~* *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# [text](target "title"), also around a picture; [name]: target; <a href="target">
LINKS = (
    re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+[\"'][^)]*)?\)"),
    re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)", re.MULTILINE),
    re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)=[\"']([^\"']*)"),
)
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
IDENTIFIER = re.compile(r"\b(?:id|name)=[\"']([^\"']+)")
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
NAV = re.compile(r"^ +- [^#\n]*?:? ([\w./-]+\.md)$", re.MULTILINE)


def pages() -> list[Path]:
    """Markdown files of the checkout; what tools keep lies in folders with a dot."""
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        and path.relative_to(ROOT).parts[0] not in NOT_OURS
        and not {"artifacts", "node_modules"} & {*path.parts}
    )


def prose(text: str) -> str:
    """Without code and comments, where brackets are no links and # is no heading."""
    return COMMENT.sub("", FENCE.sub("", text))


def targets(text: str) -> Iterator[str]:
    bare = CODE.sub("", prose(text))
    for form in LINKS:
        yield from form.findall(bare)


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings; mkdocs.yml asks for the same form."""
    found: set[str] = set(IDENTIFIER.findall(prose(text)))
    seen: dict[str, int] = {}
    for heading in HEADING.findall(prose(text)):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def wrong(page: Path, target: str, site: Path) -> str | None:
    """What is wrong with one link inside the checkout, None when it leads somewhere."""
    path, _, anchor = unquote(target).partition("#")
    to = (page.parent / path).resolve() if path else page
    is_on_site = page.is_relative_to(site)
    if path.startswith("/"):
        return "begins with /: write it relative to the page"
    if not to.exists():
        return "is not there"
    if is_on_site and (to.is_dir() or not to.is_relative_to(site)):
        return "is no page of the site: name a page below docs/, or write the path as `code`"
    if anchor and to.suffix == ".md" and anchor not in anchors(to.read_text(encoding="utf-8")):
        return "has no such heading"
    return None


def broken(page: Path, site: Path = DOCS) -> list[str]:
    text = page.read_text(encoding="utf-8")
    inside = [target for target in targets(text) if not ELSEWHERE.match(target)]
    reported = [(target, wrong(page, target, site)) for target in inside]
    return [f"{page.name}: {target} {what}" for target, what in reported if what]


def test_there_are_pages_with_links() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages()]
    assert len(texts) > 20
    assert sum(1 for text in texts for _ in targets(text)) > 100


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_every_page_of_the_site_is_listed() -> None:
    """In the navigation; decisions, of which there are many, on their own page."""
    index = DOCS / "decisions" / "index.md"
    listed = set(NAV.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    listed |= {f"decisions/{target}" for target in targets(index.read_text(encoding="utf-8"))}
    there = {str(path.relative_to(DOCS)) for path in pages() if path.is_relative_to(DOCS)}
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize(
    "line",
    [
        "[a](other.md#two-words) [a](#here) ![p](picture.png) [a](https://example.org/#x)",
        "`[a](nowhere.md)`\n\n```\n[a](nowhere.md)\n```\n",
        "[a][b]\n\n[b]: other.md#two-words-1",
    ],
)
def test_a_sound_link_is_passed(tmp_path: Path, line: str) -> None:
    (tmp_path / "other.md").write_text("# Two words\n\n```\n# Not one\n```\n\n## Two words\n")
    (tmp_path / "picture.png").touch()
    (tmp_path / "page.md").write_text(f"# Here\n\n{line}\n")
    assert broken(tmp_path / "page.md", tmp_path) == []


@pytest.mark.parametrize(
    "line",
    [
        "[a](nowhere.md)",
        "![p](nowhere.png)",
        '[![p](picture.png)](nowhere.md "title")',
        "[a](other.md#not-one)",
        "[a](#there)",
        "[a](/other.md)",
        "[a](../page.md)",
        "[a](folder)",
        "[a][b]\n\n[b]: nowhere.md",
        '<a href="nowhere.md">a</a>',
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "page.md").touch()
    site = tmp_path / "site"
    (site / "folder").mkdir(parents=True)
    (site / "other.md").write_text("# Two words\n\n```\n# Not one\n```\n")
    (site / "picture.png").touch()
    (site / "page.md").write_text(f"# Here\n\n{line}\n")
    assert len(broken(site / "page.md", site)) == 1
