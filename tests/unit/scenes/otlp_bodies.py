"""Requests of OTLP logs as an agent sends them."""

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from dfx_agent.facts import envelope


def body(*records, document=b"{}"):
    """Each record is a dict of attributes."""
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for attributes in records:
        record = scope.log_records.add()
        record.body.string_value = document.decode()
        for name, value in attributes.items():
            entry = record.attributes.add(key=name).value
            if isinstance(value, bool):
                entry.bool_value = value
            elif isinstance(value, int):
                entry.int_value = value
            else:
                entry.string_value = value
    return request.SerializeToString()


def known(node="node-a", agent="agent-1", run="r", **more):
    return {envelope.NODE: node, envelope.AGENT: agent, envelope.RUN: run, **more}
