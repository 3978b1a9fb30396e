"""What is declared as the oldest version is what `make test-oldest` installs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("otel", "tensorboard")  # those that `make test-oldest` installs


def declared() -> dict[str, str]:
    """Name -> lower bound of the dependencies and of ``EXTRAS``."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = [re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)]
    lists += [re.search(rf"^{extra} = \[(.*?)\]", text, re.MULTILINE) for extra in EXTRAS]
    assert all(lists)
    return dict(re.findall(r'"([\w-]+)>=([\w.]+)"', "".join(found[1] for found in lists if found)))


def pinned() -> dict[str, str]:
    text = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))


def whole(version: str) -> tuple[int, ...]:
    """Without zeros at its end: 6.0 is 6.0.0."""
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))


def test_every_bound_is_the_version_that_is_tested() -> None:
    bounds, tested = declared(), pinned()
    assert len(bounds) >= 10
    assert {name: whole(version) for name, version in bounds.items()} == {
        name: whole(version) for name, version in tested.items()
    }
