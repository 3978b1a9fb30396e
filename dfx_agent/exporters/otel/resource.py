"""OpenTelemetry resource attributes of the agent."""

from __future__ import annotations

import socket

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from dfx_agent.base.loopback import is_loopback

SCOPE = "dfx_agent"
# job name in deploy/prometheus.yml: receivers build ``job`` and ``instance`` from name and id
_SERVICE = "dfx"


def resource_of(instance: str, version: str) -> Resource:
    """``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` take precedence."""
    ours = {
        "service.name": _SERVICE,
        "service.instance.id": _unique(instance),
        "service.version": version,
        "host.name": socket.gethostname(),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())


def _unique(instance: str) -> str:
    """Host and port that are unique between machines: each machine has a 127.0.0.1:9931."""
    host, _, port = instance.rpartition(":")
    return f"{socket.gethostname()}:{port}" if is_loopback(host.strip("[]")) else instance
