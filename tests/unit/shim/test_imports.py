"""Functions that run right after somebody else's import, and imports that do not notice."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
import threading
import zipfile
from importlib.machinery import SourceFileLoader

import pytest

from dfx_agent.shim import imports
from dfx_agent.shim.imports import when_imported

NAME = "dfx_imported_here"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """``write(text)``: the module's source; nothing of it is left afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = list(sys.meta_path)

    def write(text: str) -> None:
        (tmp_path / f"{NAME}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    yield write
    sys.modules.pop(NAME, None)
    assert [f for f in sys.meta_path if f not in before and f.__class__.__name__ != "_Finder"] == []
    sys.meta_path[:] = before


def finders():
    return [finder for finder in sys.meta_path if isinstance(finder, imports._Finder)]


def test_called_after_the_modules_own_code_and_before_its_importer(write):
    write("value = 1")
    seen = []
    when_imported(NAME, lambda: seen.append(sys.modules[NAME].value))
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [1]
    assert type(module.__loader__) is type(module.__spec__.loader) is SourceFileLoader
    assert finders() == []


def test_called_at_once_when_it_is_there(write):
    write("")
    importlib.import_module(NAME)
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    assert seen == [1]


def test_two_wait_and_one_asks_twice(write):
    write("")
    seen = []
    first, second = (lambda: seen.append(1)), (lambda: seen.append(2))
    for call in (first, second, first):
        when_imported(NAME, call)
    assert len(finders()) == 1
    importlib.import_module(NAME)
    assert seen == [1, 2]


def test_who_only_asks_whether_it_is_there_gets_an_ordinary_spec(write):
    write("")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    for _ in range(3):
        spec = importlib.util.find_spec(NAME)
        assert type(spec.loader) is SourceFileLoader
        assert spec.loader.get_source(NAME) == ""
    assert seen == []
    importlib.import_module(NAME)
    assert seen == [1]


def test_executed_by_hand(write):
    write("")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    spec = importlib.util.find_spec(NAME)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == [1]


def test_an_import_that_fails_and_then_does_not(write):
    write("raise RuntimeError('not now')")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="not now"):
        importlib.import_module(NAME)
    assert seen == []
    write("value = 22")
    importlib.import_module(NAME)
    assert seen == [1]


def test_a_module_that_is_not_there(write):
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    assert importlib.util.find_spec(NAME) is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert seen == []


def test_a_reload_calls_nobody_again(write):
    write("")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    module = importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [1]


def test_an_error_of_ours_does_not_reach_the_importer(write):
    write("")
    seen = []
    when_imported(NAME, lambda: 1 / 0)
    when_imported(NAME, lambda: seen.append(1))
    importlib.import_module(NAME)
    assert seen == [1]


def test_imported_in_another_thread_and_half_way_when_we_ask(write):
    write(
        """
        import threading
        started, go_on = threading.begin, threading.go_on
        started.set()
        assert go_on.wait(20)
        value = 1
        """
    )
    threading.begin, threading.go_on = threading.Event(), threading.Event()
    called = threading.Event()
    values = []
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    try:
        assert threading.begin.wait(20)
        when_imported(NAME, lambda: (values.append(sys.modules[NAME].value), called.set()))
        assert not called.wait(0.1)
    finally:
        threading.go_on.set()
        thread.join()
        del threading.begin, threading.go_on
    assert called.wait(20)
    assert values == [1]


def test_imported_by_many_threads_at_once(write):
    write("import time; time.sleep(0.05)")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    threads = [threading.Thread(target=importlib.import_module, args=(NAME,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1]


def test_a_loader_that_serves_many_modules(write, tmp_path, monkeypatch):
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{NAME}.py", f"import {NAME}_other\nvalue = 1\n")
        file.writestr(f"{NAME}_other.py", "")
    monkeypatch.syspath_prepend(str(archive))
    seen = []
    when_imported(NAME, lambda: seen.append(sys.modules[NAME].value))
    importlib.import_module(NAME)
    assert seen == [1]
    del sys.modules[f"{NAME}_other"]


def test_forgotten(write):
    write("")
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    spec = importlib.util.find_spec(NAME)
    imports.cancel_all()
    assert finders() == []
    importlib.import_module(NAME)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []


def test_called_for_a_package_without_code_of_its_own(write, tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "part.py").write_text("value = 1")
    importlib.invalidate_caches()
    seen = []
    when_imported(NAME, lambda: seen.append(1))
    when_imported(f"{NAME}.part", lambda: seen.append(sys.modules[f"{NAME}.part"].value))
    importlib.import_module(f"{NAME}.part")
    assert seen == [1, 1]
    assert finders() == []
    sys.modules.pop(f"{NAME}.part")
