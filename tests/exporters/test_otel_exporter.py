"""The spans of a rollout: what is in a trace, with which names, times and attributes."""

from typing import Any

from nemo_gym.exporters.otel_exporter import OTelExporter, SpanFacts, rollout_span
from nemo_gym.exporters.registry import without_payloads

CALLS = [{"type": "function_call", "name": name, "call_id": f"c-{name}"} for name in ("weather", "map")]
OUTPUTS = [{"type": "function_call_output", "call_id": each["call_id"], "output": "secret"} for each in CALLS]
ROLLOUT: dict[str, Any] = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "agent_ref": {"name": "mine"},
    "reward": 1.0,
    "responses_create_params": {"input": "secret question"},
    "response": {
        "model": "small",
        "output": [*CALLS, *OUTPUTS, {"type": "message", "role": "assistant", "content": "secret"}],
        "usage": {"input_tokens": 30, "output_tokens": 9, "total_tokens": 39},
    },
    "_ng_turns": [[2, 10, 0, 5, 0], [1, 20, 0, 4, 0]],
    "_ng_turn_seconds": [[2.0, 1.0], [3.0, 0.0]],
}


def captured_call(start: float, end: float, **fields: Any) -> dict[str, Any]:
    times = {"started_at": start, "completed_at": end, "latency_ms": (end - start) * 1000}
    return {**times, "model": "small", "status_code": 200, "tokens_in": 10, "tokens_out": 5, **fields}


def with_calls(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**ROLLOUT, "ng_model_call_capture": {"calls": list(calls)}, **fields}


def outline(span: SpanFacts) -> list[Any]:
    return [span.name, span.start, span.end, *[outline(child) for child in span.children]]


def test_a_rollout_is_one_trace_of_model_and_tool_calls() -> None:
    """A trace view must show where the time of a rollout went."""
    span = rollout_span(with_calls(captured_call(10, 12), captured_call(13, 16)))

    assert outline(span) == [
        "invoke_agent mine", 10, 16,
        ["chat small", 10, 12], ["chat small", 13, 16],
        ["execute_tool weather", 12, 13], ["execute_tool map", 12, 13],
    ]  # fmt: skip


def test_attributes_have_the_names_of_the_conventions_and_no_texts() -> None:
    """Tools find tokens and models by these names; conversations may be confidential."""
    span = rollout_span(with_calls(captured_call(10, 12), captured_call(13, 14)))

    assert span.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "mine",
        "gen_ai.response.model": "small",
        "gen_ai.conversation.id": "3-1",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 9,
        "nemo_gym.task_index": 3,
        "nemo_gym.rollout_index": 1,
        "nemo_gym.reward": 1.0,
    }
    assert span.children[0].attributes["gen_ai.usage.input_tokens"] == 10
    assert span.children[0].is_client
    assert span.children[2].attributes["gen_ai.tool.call.id"] == "c-weather"
    assert "secret" not in repr(span)


def test_without_captures_the_recorded_seconds_are_used() -> None:
    """Most runs capture no calls; their durations are in every record."""
    span = rollout_span(ROLLOUT, now=100)

    assert outline(span)[:5] == ["invoke_agent mine", 94, 100, ["chat small", 94, 96], ["chat small", 97, 100]]
    assert outline(span)[5] == ["execute_tool weather", 96, 97]
    assert span.children[0].attributes["gen_ai.usage.output_tokens"] == 5


def test_calls_of_sub_agents_are_in_a_span_of_theirs() -> None:
    """Twenty flat model calls do not show which agent made them."""
    run = {"kind": "agent_invocation", "invocation_id": "a-1", "parent_invocation_id": "root"}
    records = [{"kind": "agent_invocation", "invocation_id": "root"}, run]
    calls = [
        captured_call(1, 2, client_session_id="root"),
        captured_call(3, 4, client_session_id="a-1"),
        captured_call(5, 6),
    ]

    span = rollout_span(with_calls(*calls, ng_agent_observations={"source": "x", "records": records}))

    assert outline(span)[3:6] == [
        ["chat small", 1, 2],
        ["chat small", 5, 6],
        ["invoke_agent a-1", 3, 4, ["chat small", 3, 4]],
    ]


def tools_of(span: SpanFacts) -> list[list[Any]]:
    return [outline(child) for child in span.children if child.name.startswith("execute_tool")]


MESSAGE = {"type": "message", "role": "assistant", "content": "Which city?"}
QUESTION_FIRST = {
    "response": {"output": [MESSAGE, {"role": "user", "content": "Oslo"}, CALLS[0], OUTPUTS[0], MESSAGE]},
    "_ng_turns": [[1, 1, 0, 1, 0], [1, 2, 0, 2, 0], [1, 3, 0, 3, 0]],
    "_ng_turn_seconds": [[1.0, 0.0], [1.0, 5.0], [1.0, 0.0]],
}
USER = {"kind": "agent_invocation", "invocation_id": "user", "parent_invocation_id": "root"}
SEGMENT = {"kind": "agent_invocation", "invocation_id": "root-segment-2", "parent_invocation_id": "root"}
OBSERVATIONS = {"source": "x", "records": [{"kind": "agent_invocation", "invocation_id": "root"}, USER, SEGMENT]}


def test_a_tool_belongs_to_the_turn_that_called_it() -> None:
    """A turn without a call, and calls of a simulated user, must not move a tool to another model call."""
    calls = [
        captured_call(0, 1, client_session_id="root"),
        captured_call(2, 3, client_session_id="user"),
        captured_call(4, 5, client_session_id="root", status_code=503, error_category="server_error"),
        captured_call(6, 7, client_session_id="root"),
        captured_call(12, 13, client_session_id="root-segment-2"),
    ]

    captured = rollout_span(with_calls(*calls, **QUESTION_FIRST, ng_agent_observations=OBSERVATIONS))
    recorded = rollout_span({**ROLLOUT, **QUESTION_FIRST}, now=108)

    assert tools_of(captured) == [["execute_tool weather", 7, 12]]
    assert ["invoke_agent user", 2, 3, ["chat small", 2, 3]] in outline(captured)
    assert ["chat small", 12, 13] in outline(captured)
    assert tools_of(recorded) == [["execute_tool weather", 102, 107]]


def test_tools_have_no_times_if_the_calls_do_not_match_the_turns() -> None:
    """A wrong time is worse than none: with calls of several conversations nothing says which one the tool followed."""
    seconds = [*QUESTION_FIRST["_ng_turn_seconds"], [2.0, 0.0]]

    captured = rollout_span(with_calls(captured_call(0, 1), captured_call(4, 5), **QUESTION_FIRST))
    recorded = rollout_span({**ROLLOUT, **QUESTION_FIRST, "_ng_turn_seconds": seconds}, now=110)

    assert tools_of(captured) == [["execute_tool weather", 0, 5]]
    assert tools_of(recorded) == [["execute_tool weather", 100, 110]]
    assert not any("gen_ai.usage.input_tokens" in child.attributes for child in recorded.children)


def test_failures_are_errors() -> None:
    """An error must be found by its status."""
    failed = with_calls(
        captured_call(1, 2, status_code=500, error_category="server_error"), _ng_failure_class="model_error"
    )

    span = rollout_span(failed)

    assert (span.error, span.children[0].error) == ("model_error", "server_error")
    assert "nemo_gym.reward" not in span.attributes


def test_a_record_of_another_tool_is_still_a_trace() -> None:
    """Malformed fields must not end the report of a run."""
    for record in ({}, {"response": 3, "_ng_turn_seconds": [1, [2]], "ng_agent_observations": {"records": [5]}}):
        (slim,) = without_payloads([record])
        assert rollout_span(slim, now=5).name == "invoke_agent agent"


def test_the_exporter_is_used_if_an_endpoint_is_set() -> None:
    """The keys decide, as for the other trackers."""
    assert not OTelExporter.config_class().is_available
    assert OTelExporter.config_class(otel_endpoint="http://127.0.0.1:4318").is_available
