"""Bytes of a terminal as names of keys."""

from __future__ import annotations

import pytest

from dfx_agent.commands.top.screen import keys_in


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ("q", ["q"]),
        ("\x1b[A\x1b[Bq", ["up", "down", "q"]),
        ("\x1bOA\x1b[5~", ["up", "pageup"]),
        ("\x1b", ["escape"]),
        ("\x1bx", ["escape", "x"]),
        ("\r\x7f\t", ["enter", "backspace", "tab"]),
        ("\x1b[99;5u", []),
        ("\x1b[", []),
        ("\x01é", ["é"]),
    ],
)
def test_keys(given, keys):
    assert keys_in(given) == keys
