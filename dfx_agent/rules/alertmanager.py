"""deploy/alertmanager.yml: routes by severity, inhibition from the catalogue."""

from __future__ import annotations

from collections.abc import Iterable

from dfx_agent.rules.alert import Alert
from dfx_agent.rules.prometheus import HEAD, dump, inhibit_rules

_TOP = """\
# Routes: critical to the pager, warning to the chat, info to nobody (it is context on the boards),
# the watchdog to a dead man's switch. One notification for each run of a job. What stands in
# capitals is yours to fill in; keep secrets in files (url_file, credentials_file), not here.
global:
  resolve_timeout: 5m
  # For e-mail:
  # smtp_smarthost: MAIL.EXAMPLE.ORG:587
  # smtp_from: dfx@EXAMPLE.ORG
  # smtp_auth_username: dfx
  # smtp_auth_password_file: /etc/alertmanager/smtp-password

route:
  receiver: chat
  group_by: [job, run]
  group_wait: 5s
  group_interval: 2m
  repeat_interval: 4h
  routes:
    - receiver: deadman
      matchers: [alertname="DfxWatchdog"]
      group_wait: 0s
      group_interval: 1m
      repeat_interval: 1m
    - receiver: nobody
      matchers: [severity="info"]
    # those that one of them speaks for are told in the same moment
    - receiver: pager
      matchers: [severity="critical"]
      group_wait: 1s
    - receiver: chat
      matchers: [severity="warning"]

receivers:
  - name: nobody
  - name: deadman
    webhook_configs:
      - url: http://127.0.0.1:9099/deadman
        send_resolved: false
  - name: pager
    webhook_configs:
      - url: http://127.0.0.1:9099/pager
    # PagerDuty:
    # pagerduty_configs:
    #   - routing_key_file: /etc/alertmanager/pagerduty-key
    #     description: '{{ .CommonAnnotations.summary }} (run {{ .CommonLabels.run }})'
    #     details: {description: '{{ .CommonAnnotations.description }}'}
    #     links: [{text: runbook, href: '{{ .CommonAnnotations.runbook_url }}'}]
    # E-mail (see global above):
    # email_configs:
    #   - to: oncall@EXAMPLE.ORG
  - name: chat
    webhook_configs:
      - url: http://127.0.0.1:9099/chat
    # Slack:
    # slack_configs:
    #   - api_url_file: /etc/alertmanager/slack-url
    #     channel: '#training'
    #     title: '{{ .CommonAnnotations.summary }} (run {{ .CommonLabels.run }})'
    #     title_link: '{{ .CommonAnnotations.dashboard_url }}'
    #     text: >-
    #       {{ range .Alerts }}{{ .Annotations.description }}
    #       <{{ .Annotations.runbook_url }}|runbook> {{ end }}
    # DingTalk: its robots want a body of their own; prometheus-webhook-dingtalk translates.
    # webhook_configs:
    #   - url: http://127.0.0.1:8060/dingtalk/training/send
    # Feishu (Lark): the same with PrometheusAlert.
    # webhook_configs:
    #   - url: 'http://127.0.0.1:8080/prometheusalert?type=fs&tpl=prometheus-fs&fsurl=https://open.feishu.cn/open-apis/bot/v2/hook/TOKEN'

# One alert speaks for others of the same run.
"""


def configuration(alerts: Iterable[Alert]) -> str:
    """The whole file; ``amtool check-config`` accepts it as it is."""
    return HEAD + _TOP + dump({"inhibit_rules": inhibit_rules(alerts)})
