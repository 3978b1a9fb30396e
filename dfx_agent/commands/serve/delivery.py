"""Who alerts are delivered to, by the settings."""

from __future__ import annotations

from dfx_agent.agent.config import Config
from dfx_agent.alerting.alertmanager import API_PATH, alertmanagers
from dfx_agent.alerting.courier import Courier
from dfx_agent.alerting.transport import Endpoint
from dfx_agent.alerting.webhook import webhooks


def receivers(config: Config) -> list[Courier]:
    ca = config.alert_ca_file
    managers = [
        Endpoint(url.rstrip("/").removesuffix(API_PATH) + API_PATH,
                 config.alertmanager_basic_auth_file, config.alertmanager_token_file, ca)
        for url in config.alertmanager
    ]  # fmt: skip
    hooks = [Endpoint(url, token_file=config.webhook_token_file, ca_file=ca)
             for url in config.webhook]  # fmt: skip
    return [*alertmanagers(managers), *webhooks(hooks)]
