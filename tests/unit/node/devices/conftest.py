"""Libraries of device makers, built once for each test file, and readers that are closed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from device_library import Reading, Script, build, environment


@pytest.fixture(scope="session")
def libraries(tmp_path_factory) -> Callable[..., Path]:
    """(maker, functions that are missing) -> folder with its library."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: stand-ins for drivers' libraries cannot be built")
    made: dict[tuple[str, ...], Path] = {}

    def library(vendor: str, *missing: str) -> Path:
        key = (vendor, *missing)
        if key not in made:
            made[key] = build(tmp_path_factory.mktemp(vendor), vendor, missing)
        return made[key]

    return library


@pytest.fixture
def script(tmp_path) -> Script:
    return Script(tmp_path / "script")


@pytest.fixture
def reading(libraries, script, tmp_path) -> Iterator[Callable[..., Reading]]:
    """(maker, functions that are missing) -> its backend in a process of its own."""
    opened: list[Reading] = []
    driver = tmp_path / "driver"
    driver.touch()

    def read(vendor: str, *missing: str, has_library: bool = True, has_driver: bool = True, **more):
        library = libraries(vendor, *missing) if has_library else None
        known = {**environment(library, script.path), **more}
        opened.append(Reading(vendor, known, [str(driver)] if has_driver else [str(driver) + "0"]))
        return opened[-1]

    yield read
    for one in opened:
        one.close()
