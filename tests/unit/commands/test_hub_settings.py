"""A hub honours the settings that say who may read."""

import os

import pytest

from dfx_agent.agent.config import Config
from dfx_agent.commands.hub.hub_service import Hub


@pytest.mark.parametrize("is_open", [True, False])
def test_every_local_user_may_read_a_hub_if_the_setting_says_so(tmp_path, is_open):
    config = Config(str(tmp_path), "127.0.0.1:0", open_to_local_users=is_open)
    access = Hub(config)._access
    assert access.is_open_to_local_users is is_open
    assert access.uids == {0, os.getuid()}
