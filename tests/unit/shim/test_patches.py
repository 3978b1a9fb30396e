"""What replaces other people's attributes puts the very same objects back."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace

import pytest

from dfx_agent.shim import patches
from dfx_agent.shim.patches import PatchSet


class Base:
    def inherited(self, x):
        """Docs."""
        return x

    @staticmethod
    def static(x):
        return x


class Derived(Base):
    def own(self, x, *, y=1):
        """Own docs."""
        return x + y


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", "")
    before = dict(patches.registry)
    made = PatchSet("under_test")
    yield made
    made.restore()
    patches.registry.clear()
    patches.registry.update(before)


def counting(calls):
    def make(original, switch):
        def wrapper(*args, **kwargs):
            if switch.is_on:
                calls.append(args[1:])
            return original(*args, **kwargs)

        return wrapper

    return make


def install(hook, calls, owner=Derived, *names):
    def change(patches):
        for name in names or ("own",):
            patches.replace(owner, name, counting(calls))

    hook.install(change)


def test_replaced_called_once_and_put_back_identically(hook):
    raw, calls = Derived.__dict__["own"], []
    install(hook, calls)
    assert hook.state == "active"
    assert Derived().own(2, y=3) == 5
    assert calls == [(2,)]
    hook.restore()
    assert Derived.__dict__["own"] is raw
    assert hook.state == "off"
    assert Derived().own(2) == 3
    assert calls == [(2,)]


def test_an_inherited_attribute_leaves_no_trace(hook):
    calls = []
    install(hook, calls, Derived, "inherited")
    assert Derived().inherited(4) == 4
    assert len(calls) == 1
    hook.restore()
    assert "inherited" not in Derived.__dict__


class Odd:
    @staticmethod
    def static(x):
        return x

    @classmethod
    def of_class(cls, x):
        return cls, x

    @property
    def asked(self):
        return 5


class Heir(Odd):
    pass


@pytest.mark.parametrize("owner", [Odd, Heir])
def test_what_is_no_method_is_left_alone_also_where_it_is_inherited(hook, owner):
    for name in ("static", "of_class", "asked"):
        install(hook, [], owner, name)
        assert hook.state == "absent"
    assert (owner().static(1), owner().of_class(2), owner().asked) == (1, (owner, 2), 5)


def test_name_docs_and_signature_stay(hook):
    signature = inspect.signature(Derived.own)
    install(hook, [])
    assert Derived.own.__name__ == "own"
    assert Derived.own.__doc__ == "Own docs."
    assert inspect.signature(Derived.own) == signature


def test_nothing_to_patch_is_absent(hook):
    install(hook, [], Derived, "no_such_method")
    assert hook.state == "absent"
    assert not hook.is_active


def test_installed_twice_is_installed_once(hook):
    calls = []
    install(hook, calls)
    first = Derived.__dict__["own"]
    install(hook, calls)
    assert Derived.__dict__["own"] is first
    Derived().own(1)
    assert len(calls) == 1


def test_an_error_is_undone_and_reported_not_raised(hook):
    raw = Derived.__dict__["own"]

    def change(patches):
        patches.replace(Derived, "own", counting([]))
        raise OSError("half done")

    hook.install(change)
    assert hook.state == "failed"
    assert not hook.is_active
    assert Derived.__dict__["own"] is raw


def test_an_undo_that_fails_does_not_keep_the_others(hook):
    raw = Derived.__dict__["own"]

    def change(patches):
        patches.replace(Derived, "own", counting([]))
        patches.on_restore(lambda: 1 / 0)

    hook.install(change)
    hook.restore()
    assert hook.state == "failed"
    assert Derived.__dict__["own"] is raw


def test_undone_in_reverse_order(hook):
    order = []

    def change(patches):
        for i in range(3):
            patches.on_restore(functools.partial(order.append, i))

    hook.install(change)
    hook.restore()
    assert order == [2, 1, 0]


@pytest.mark.parametrize("keeps_metadata", [True, False])
def test_wrapped_by_somebody_else_since(hook, keeps_metadata):
    owner, calls, theirs = SimpleNamespace(run=lambda self, x: x), [], []
    install(hook, calls, owner, "run")
    ours = owner.run

    def wrapper(*args):
        theirs.append(args)
        return ours(*args)

    owner.run = functools.wraps(ours)(wrapper) if keeps_metadata else wrapper
    for num_rounds in range(1, 4):
        hook.restore()
        before = len(calls)
        assert owner.run(None, 7) == 7
        assert len(calls) == before
        install(hook, calls, owner, "run")
        assert owner.run(None, 7) == 7
        assert len(calls) == before + 1
        assert len(theirs) == 2 * num_rounds
    hook.restore()
    owner.run = ours  # they leave too: ours stays, and stays off
    install(hook, calls, owner, "run")
    before = len(calls)
    owner.run(None, 7)
    assert len(calls) == before + 1


def test_they_put_the_original_back_over_ours(hook):
    original = lambda self, x: x  # noqa: E731
    owner = SimpleNamespace(run=original)
    calls = []
    install(hook, calls, owner, "run")
    owner.run = original
    hook.restore()
    assert owner.run is original


def test_suspended_does_nothing_and_is_not_installed_over(hook):
    raw, calls = Derived.__dict__["own"], []
    install(hook, calls)
    wrapper = Derived.__dict__["own"]
    hook.suspend()
    Derived().own(1)
    install(hook, calls)
    Derived().own(1)
    assert (calls, hook.state) == ([], "off")
    assert Derived.__dict__["own"] is wrapper
    hook.resume("active")
    Derived().own(1)
    assert len(calls) == 1
    hook.restore()
    assert Derived.__dict__["own"] is raw


@pytest.mark.parametrize("words", ["all", "under_test", "other,under_test"])
def test_switched_off_by_the_environment(hook, monkeypatch, words):
    monkeypatch.setenv("DFX_DISABLE_HOOKS", words)
    raw = Derived.__dict__["own"]
    install(hook, [])
    assert hook.state == "off"
    assert Derived.__dict__["own"] is raw
