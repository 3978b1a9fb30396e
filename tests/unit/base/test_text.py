"""Text of others as it may be shown, and numbers that they write."""

import pytest

from dfx_agent.base.text import plain, whole_number


def test_what_is_not_to_be_seen_is_escaped():
    assert plain("a\nb\x1b\udcff") == "a\\nb\\x1b\\udcff"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("2147483647", 2147483647),
        ("2147483648", None),
        ("9" * 5000, None),  # Python refuses to make a number of so many digits
        ("-1", None),
        ("", None),
        ("1.5", None),
        ("\u0663", None),
        ("\u00b2", None),
    ],
)
def test_a_number_is_whole_and_has_31_bits_at_most(text, number):
    assert whole_number(text) == number


def test_another_bound_is_inclusive():
    assert (whole_number("65535", 65535), whole_number("65536", 65535)) == (65535, None)
