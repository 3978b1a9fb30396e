"""The token that an agent makes for itself."""

from __future__ import annotations

import stat

import pytest

from dfx_agent.agent import folder_token


def test_it_is_made_once_and_private(dfx_dir):
    assert folder_token.read(str(dfx_dir)) is None
    token = folder_token.made(str(dfx_dir))
    assert len(token) == 32
    assert folder_token.made(str(dfx_dir)) == folder_token.read(str(dfx_dir)) == token
    assert stat.S_IMODE((dfx_dir / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize("text", ["", "short", "\xff" * 40])
def test_what_is_no_token_is_replaced(dfx_dir, text):
    (dfx_dir / "token").write_text(text)
    assert folder_token.read(str(dfx_dir)) is None
    assert len(folder_token.made(str(dfx_dir))) == 32


def test_a_link_is_not_followed(dfx_dir, tmp_path):
    (tmp_path / "known").write_text("a" * 32)
    (dfx_dir / "token").symlink_to(tmp_path / "known")
    assert folder_token.read(str(dfx_dir)) is None
    assert folder_token.made(str(dfx_dir)) != "a" * 32
    assert (tmp_path / "known").read_text() == "a" * 32
