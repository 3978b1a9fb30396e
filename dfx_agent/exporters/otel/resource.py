"""Who it is that pushes, as OpenTelemetry says it."""

from __future__ import annotations

import socket

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

SCOPE = "dfx_agent"
# the job of deploy/prometheus.yml: receivers make ``job`` and ``instance`` of name and id
_SERVICE = "dfx"


def resource_of(instance: str, version: str) -> Resource:
    """What ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` say counts more."""
    ours = {
        "service.name": _SERVICE,
        "service.instance.id": instance,
        "service.version": version,
        "host.name": socket.gethostname(),
    }
    return Resource(ours).merge(OTELResourceDetector().detect())
