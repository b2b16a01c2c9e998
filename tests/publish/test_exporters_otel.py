"""What an OpenTelemetry collector receives: a real OTLP server on loopback, and the real exporter."""

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from nemo_gym.config_types import OTelConfig
from nemo_gym.exporters.otel_exporter import OTelExporter
from tests.exporters.test_otel_exporter import captured_call, with_calls


class Collector(ThreadingHTTPServer):
    """Stores the spans and headers of every request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.services: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.server.services.add(attributes["service.name"])
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()} | {"path": self.path})
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_each_rollout_arrives_as_one_trace(collector: Collector) -> None:
    """The ids must join the spans, and the times must be those of the calls, not of the export."""
    url = f"http://127.0.0.1:{collector.server_address[1]}"
    exporter = OTelExporter(OTelConfig(otel_endpoint=url, otel_api_key="k", otel_service_name="tests"))
    exporter.setup({})

    exporter._log_rollouts(with_calls(captured_call(10, 12), captured_call(13, 16)) for _ in range(3))
    exporter.teardown()
    exporter.teardown()

    assert len({span.trace_id for span in collector.spans}) == 3
    assert len(collector.spans) == 3 * 5
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [span.name for span in roots] == ["invoke_agent mine"] * 3
    assert {(span.start_time_unix_nano, span.end_time_unix_nano) for span in roots} == {(10 * 10**9, 16 * 10**9)}
    by_trace = {span.trace_id: span.span_id for span in roots}
    assert all(span.parent_span_id == by_trace[span.trace_id] for span in collector.spans if span.parent_span_id)
    assert collector.services == {"tests"}
    assert {(each["path"], each["authorization"]) for each in collector.headers} == {("/v1/traces", "Bearer k")}


def test_an_unreachable_collector_is_an_error_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run must not wait for a collector that is down; the registry turns the error into a warning."""
    monkeypatch.setattr("nemo_gym.exporters.otel_exporter.TIMEOUT_SECONDS", 1)
    exporter = OTelExporter(OTelConfig(otel_endpoint="http://127.0.0.1:9"))
    exporter.setup({})
    try:
        with pytest.raises(ConnectionError, match="did not accept the spans"):
            exporter._log_rollouts([with_calls(captured_call(1, 2))])
    finally:
        exporter.teardown()
