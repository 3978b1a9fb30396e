"""Settings that would cost without end are refused in one line."""

from __future__ import annotations

import pytest
import yaml

from dfx_agent.agent import config
from dfx_agent.agent.bounded_yaml import loaded
from dfx_agent.base.errors import ConfigError

BOMB = "a: &a [1, 1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: " + "[" * 5000 + "]" * 5000, "nested deeper than 32"),
        ("a: " + "[" * 5000, "nested deeper than 32"),
        ("a: " + "{b: " * 5000, "nested deeper than 32"),
        (BOMB, "more than 100 aliases"),
        ("a: &a 1\nb: [" + "*a, " * 5000 + "]", "more than 100 aliases"),
        ("#" * 300_000, "longer than 262,144 characters"),
    ],
)
def test_what_is_no_settings_is_refused(text, why, tmp_path):
    with pytest.raises(yaml.YAMLError, match=why):
        loaded(text)
    file = tmp_path / "dfx.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        config.load({}, {}, str(file))
    assert "\n" not in str(caught.value)


def test_settings_are_read_as_before():
    assert loaded("a: {b: [1, &x 2, *x]}\n") == {"a": {"b": [1, 2, 2]}}
    assert loaded("") is None
