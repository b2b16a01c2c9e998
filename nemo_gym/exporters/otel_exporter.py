"""Export rollouts as OpenTelemetry traces over OTLP: one trace per rollout, with the conventions for generative AI.

The span of a rollout (`invoke_agent`) contains one span for each model call (`chat`), tool call (`execute_tool`) and
sub-agent. Texts of conversations are not exported. Times are those of captured calls; without these, the
durations that the record has, ending with the export.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from nemo_gym.config_types import OTelConfig
from nemo_gym.exporters.base import BaseExporter, ExporterKey
from nemo_gym.keys import NG_AGENT_OBSERVATIONS_KEY, NG_TURN_SECONDS_KEY, NG_TURNS_KEY
from nemo_gym.wire.stored_rollout import StoredRollout, finite_float

ROLLOUTS_PER_FLUSH = 200
SPANS_PER_REQUEST = 512
TIMEOUT_SECONDS = 20
TRACES_PATH = "/v1/traces"
_NANOSECONDS = 1_000_000_000
_MODEL_ITEMS = ("function_call", "reasoning")
_SEGMENT = re.compile(r"-segment-\d+\Z")
"""The end of the id of an invocation after a compaction: it continues the one without it."""


@dataclass
class SpanFacts:
    """One span before it is sent: name, seconds since the epoch, attributes and children."""

    name: str
    start: float
    end: float
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    is_client: bool = False
    children: "list[SpanFacts]" = field(default_factory=list)

    def contain(self, children: "Iterable[SpanFacts]") -> None:
        """Add children; the span lasts at least as long as they do."""
        for child in children:
            self.children.append(child)
            self.start, self.end = min(self.start, child.start), max(self.end, child.end)


class OTelExporter(BaseExporter):
    """Export to an OpenTelemetry collector, without touching the tracer of the process."""

    name = "otel"
    title = "OpenTelemetry"
    package = "opentelemetry.sdk"
    install_command = "pip install 'nemo-gym[otel]'"
    config: OTelConfig
    config_class = OTelConfig
    keys = (
        ExporterKey("otel_endpoint", "Address of an OpenTelemetry collector (OTLP over HTTP).", implies_export=True),
        ExporterKey("otel_api_key", "Bearer token of the OpenTelemetry collector.", is_required=False),
        ExporterKey("otel_service_name", "Service name of the traces; nemo-gym by default.", is_required=False),
    )

    def setup(self, global_config: Mapping[str, Any]) -> None:  # noqa: ARG002
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import SimpleSpanProcessor
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        except ImportError as error:
            raise self.not_installed(error) from error
        endpoint = (self.config.otel_endpoint or "").rstrip("/")
        self.url = endpoint if endpoint.endswith(TRACES_PATH) else endpoint + TRACES_PATH
        headers = {"Authorization": f"Bearer {self.config.otel_api_key}"} if self.config.otel_api_key else {}
        resource = Resource.create({"service.name": self.config.otel_service_name or "nemo-gym"})
        self._provider: Any = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._memory = InMemorySpanExporter()
        self._provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._sender: Any = OTLPSpanExporter(endpoint=self.url, headers=headers, timeout=TIMEOUT_SECONDS)
        self._tracer: Any = self._provider.get_tracer("nemo_gym")

    def teardown(self) -> None:
        provider, self._provider = getattr(self, "_provider", None), None
        if provider is not None:
            provider.shutdown()
            self._sender.shutdown()

    def _log_config(self, config: Mapping[str, Any]) -> None:
        """Send nothing: a trace describes a rollout."""

    def _log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Send nothing: metrics of a run are no part of a trace."""

    def _log_rollouts(self, rollouts: Iterable[Mapping[str, Any]]) -> None:
        """Send one trace per rollout.

        Raises:
            ConnectionError: the collector did not accept the spans.
        """
        number = 0
        for number, rollout in enumerate(rollouts, 1):
            self._send(rollout_span(rollout), None)
            if number % ROLLOUTS_PER_FLUSH == 0:
                self._flush()
        if number % ROLLOUTS_PER_FLUSH:
            self._flush()

    def _flush(self) -> None:
        """Send the spans of the rollouts so far; the sender retries within its timeout."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = self._memory.get_finished_spans()
        self._memory.clear()
        for begin in range(0, len(spans), SPANS_PER_REQUEST):
            if self._sender.export(spans[begin : begin + SPANS_PER_REQUEST]) is not SpanExportResult.SUCCESS:
                raise ConnectionError(f"{self.url} did not accept the spans")

    def _send(self, facts: SpanFacts, parent: Any) -> None:
        """Create a span with its children."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        span = self._tracer.start_span(
            facts.name,
            context=Context() if parent is None else set_span_in_context(parent, Context()),
            kind=SpanKind.CLIENT if facts.is_client else SpanKind.INTERNAL,
            attributes=facts.attributes,
            start_time=int(facts.start * _NANOSECONDS),
        )
        if facts.error:
            span.set_attribute("error.type", facts.error)
            span.set_status(Status(StatusCode.ERROR, facts.error))
        for child in facts.children:
            self._send(child, span)
        span.end(end_time=int(facts.end * _NANOSECONDS))


def rollout_span(rollout: Mapping[str, Any], *, now: float | None = None) -> SpanFacts:
    """Return the span of a rollout with the spans of its calls; `now` is the end of a rollout without times."""
    stored = StoredRollout(rollout)
    end = time.time() if now is None else now
    calls = [call for call in stored.captured_calls if _times(call) is not None]
    chats, tools = _captured_spans(calls, rollout, stored) if calls else _recorded_spans(rollout, stored, end)
    start = min((span.start for span in (*chats, *tools)), default=end - (stored.seconds or 0.0))
    last = max((span.end for span in (*chats, *tools)), default=end)
    root = SpanFacts(f"invoke_agent {stored.agent or 'agent'}", start, last, _rollout_attributes(rollout, stored))
    root.error = stored.failure_class
    root.contain(_with_subagents(chats, calls, rollout))
    root.contain(tools)
    return root


def _rollout_attributes(rollout: Mapping[str, Any], stored: StoredRollout) -> dict[str, Any]:
    tokens = stored.tokens_by_kind()
    try:
        key: Any = stored.key
    except ValueError:
        key = None
    values = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": stored.agent,
        "gen_ai.response.model": stored.model or None,
        "gen_ai.conversation.id": str(rollout.get("_ng_rollout_id") or key or "") or None,
        "gen_ai.usage.input_tokens": tokens.get("input"),
        "gen_ai.usage.output_tokens": tokens.get("output"),
        "nemo_gym.task_index": key.task if key else None,
        "nemo_gym.rollout_index": key.rollout if key else None,
        "nemo_gym.reward": stored.reward,
    }
    return _without_none(values)


def _times(call: Mapping[str, Any]) -> tuple[float, float] | None:
    start = finite_float(call.get("started_at"))
    duration = finite_float(call.get("latency_ms"))
    end = finite_float(call.get("completed_at"))
    if start is None:
        return None
    return start, max(start, end if end is not None else start + (duration or 0.0) / 1000)


def _captured_spans(
    calls: Sequence[Mapping[str, Any]], rollout: Mapping[str, Any], stored: StoredRollout
) -> tuple[list[SpanFacts], list[SpanFacts]]:
    """Return the spans of captured model calls, and those of tool calls between them.

    A tool runs between the model call that asked for it and the next one of the same conversation. If the captured
    calls of the main conversation are not one for each turn, the tool calls have the time of the whole rollout.
    """
    chats, main_chats = [], []
    others = _other_invocations(rollout)
    for call in calls:
        start, end = _times(call) or (0.0, 0.0)
        model = str(call.get("model") or stored.model or "model")
        status = call.get("status_code")
        values = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.response.id": call.get("response_id"),
            "gen_ai.usage.input_tokens": call.get("tokens_in"),
            "gen_ai.usage.output_tokens": call.get("tokens_out"),
            "gen_ai.response.finish_reasons": [str(call["finish_reason"])] if call.get("finish_reason") else None,
        }
        failed = isinstance(status, int) and status >= 400
        error = str(call.get("error_category") or status) if failed or call.get("error_category") else None
        chats.append(SpanFacts(f"chat {model}", start, end, _without_none(values), error, is_client=True))
        if not error and _SEGMENT.sub("", str(call.get("client_session_id"))) not in others:
            main_chats.append(chats[-1])
    main_chats.sort(key=lambda span: span.start)
    turns = _tool_calls_by_turn(rollout, stored.output)
    if len(main_chats) != len(turns):
        return chats, _tools_without_times(turns, min(span.start for span in chats), max(span.end for span in chats))
    tools = []
    for chat, after, names in zip(main_chats, [*main_chats[1:], None], turns, strict=True):
        until = max(chat.end, after.start if after else chat.end)
        tools += [_tool_span(item, chat.end, until) for item in names]
    return chats, tools


def _tools_without_times(turns: Iterable[Sequence[Mapping[str, Any]]], start: float, end: float) -> list[SpanFacts]:
    """Return the spans of tool calls of which only the rollout is known in which they ran."""
    return [_tool_span(item, start, end) for items in turns for item in items]


def _recorded_spans(
    rollout: Mapping[str, Any], stored: StoredRollout, end: float
) -> tuple[list[SpanFacts], list[SpanFacts]]:
    """Return the spans of the turns whose seconds are recorded, one after the other.

    If there are not as many as turns in the record, the seconds are also those of other conversations: then the spans
    have no tokens, and the tool calls have the time of the whole rollout.
    """
    seconds = rollout.get(NG_TURN_SECONDS_KEY)
    pairs = [pair for pair in seconds if isinstance(pair, list) and len(pair) == 2] if isinstance(seconds, list) else []
    counts = rollout.get(NG_TURNS_KEY)
    turns = _tool_calls_by_turn(rollout, stored.output)
    begin = moment = end - sum(finite_float(value) or 0.0 for pair in pairs for value in pair)
    chats, tools = [], []
    is_each_turn = len(pairs) == len(turns)
    for number, pair in enumerate(pairs):
        model_seconds, tool_seconds = (finite_float(value) or 0.0 for value in pair)
        row = counts[number] if isinstance(counts, list) and is_each_turn and number < len(counts) else []
        values: dict[str, Any] = {"gen_ai.operation.name": "chat", "gen_ai.request.model": stored.model or "model"}
        if isinstance(row, list) and len(row) >= 4:
            values |= {"gen_ai.usage.input_tokens": row[1], "gen_ai.usage.output_tokens": row[3]}
        name = f"chat {stored.model or 'model'}"
        chats.append(SpanFacts(name, moment, moment + model_seconds, values, is_client=True))
        moment += model_seconds
        names = turns[number] if is_each_turn else []
        tools += [_tool_span(item, moment, moment + tool_seconds) for item in names]
        moment += tool_seconds
    return chats, tools if is_each_turn else _tools_without_times(turns, begin, end)


def _tool_calls_by_turn(rollout: Mapping[str, Any], output: Sequence[Any]) -> list[list[Mapping[str, Any]]]:
    """Return the tool calls of each turn of the model, by the recorded numbers of items.

    Without these, a turn is an unbroken sequence of items of the model.
    """
    rows = rollout.get(NG_TURNS_KEY)
    sizes: list[Any] = (
        [row[0] if isinstance(row, list) and row else None for row in rows] if isinstance(rows, list) else []
    )
    is_from_model = [
        isinstance(item, Mapping) and (item.get("type") in _MODEL_ITEMS or item.get("role") == "assistant")
        for item in output
    ]
    if sizes and all(type(size) is int and size >= 0 for size in sizes) and sum(sizes) == sum(is_from_model):
        model_items = (item for item, is_own in zip(output, is_from_model, strict=True) if is_own)
        groups = [list(islice(model_items, size)) for size in sizes]
    else:
        pairs = zip(output, is_from_model, strict=True)
        groups = [[item for item, _ in group] for is_own, group in groupby(pairs, itemgetter(1)) if is_own]
    return [[item for item in group if item.get("type") == "function_call"] for group in groups]


def _tool_span(item: Mapping[str, Any], start: float, end: float) -> SpanFacts:
    name = str(item.get("name"))
    values = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name, "gen_ai.tool.type": "function"}
    return SpanFacts(f"execute_tool {name}", start, end, {**values, "gen_ai.tool.call.id": str(item.get("call_id"))})


def _with_subagents(
    chats: Sequence[SpanFacts], calls: Sequence[Mapping[str, Any]], rollout: Mapping[str, Any]
) -> Iterator[SpanFacts]:
    """Yield the model calls of the agent, and a span for each other invocation with its calls."""
    others = _other_invocations(rollout)
    spans: dict[str, SpanFacts] = {}
    for span, call in zip(chats, calls or [{}] * len(chats), strict=True):
        invocation = _SEGMENT.sub("", str(call.get("client_session_id")))
        if invocation not in others:
            yield span
            continue
        values = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": invocation}
        facts = SpanFacts(f"invoke_agent {invocation}", span.start, span.end, values)
        spans.setdefault(invocation, facts).contain([span])
    yield from spans.values()


def _other_invocations(rollout: Mapping[str, Any]) -> set[str]:
    """Return the ids of the invocations besides the main conversation, without those of segments of a context."""
    bundle = rollout.get(NG_AGENT_OBSERVATIONS_KEY)
    records = bundle.get("records") if isinstance(bundle, Mapping) else None
    ids = {
        str(each.get("invocation_id"))
        for each in (records if isinstance(records, list) else ())
        if isinstance(each, Mapping) and each.get("parent_invocation_id")
    }
    return {name for name in ids if not _SEGMENT.search(name)}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
