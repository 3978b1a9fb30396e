"""Which addresses only this machine reaches."""

import pytest

from dfx_agent.base.loopback import is_loopback


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_loopback(host, is_it):
    assert is_loopback(host) is is_it
