"""Streaming requests and answers of the Responses API."""

from typing import Any

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.response_events import response_from_events
from nemo_gym.errors import ConversionError
from nemo_gym.responses_streaming import replay, replay_failure, sanitise_request
from nemo_gym.wire.engine_options import with_engine_options
from nemo_gym.wire.responses import NeMoGymResponseCreateParamsNonStreaming

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


def test_an_agents_request_becomes_one_our_strict_type_accepts() -> None:
    """Coding agents send more than the API reference says; none of it may stop a rollout."""
    body = {
        "model": "m",
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "prompt_cache_key": "k",
        "store": False,
        "reasoning": {"effort": "low", "novelty": {"deep": 1}},
        "include": ["reasoning.encrypted_content"],
        "client_metadata": {"a": 1},
        "top_k": 5,
        "input": [
            {"role": "developer", "content": [{"type": "input_text", "text": "be"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "telepathy"},
            {"type": "additional_tools", "tools": [TOOL]},
        ],
        "tools": [
            {"type": "namespace", "name": "ns", "tools": [{**TOOL, "novelty": 1}]},
            {"type": "levitation"},
        ],
    }

    request, dropped = sanitise_request(body)

    assert request == {
        "model": "m",
        "prompt_cache_key": "k",
        "store": False,
        "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"],
        "top_k": 5,
        "input": body["input"][:2],  # type: ignore[index]
        "tools": [{**TOOL, "name": "ns__f"}, TOOL],
    }
    assert dropped == [
        "client_metadata: not a field of a request",
        "input: telepathy: Unknown item type 'telepathy'",
        "tools: function.novelty: unknown field",
        "tools: levitation: unknown type 'levitation'",
        "reasoning.novelty: unknown field",
    ]
    with_engine_options(NeMoGymResponseCreateParamsNonStreaming)(**request)
    assert body["stream"] is True


def test_a_clean_request_loses_only_stream() -> None:
    """Any other change would alter what the client asked the model."""
    body = {"input": "hi", "model": "m", "stream": True, "tools": [TOOL]}

    assert sanitise_request(body) == ({"input": "hi", "model": "m", "tools": [TOOL]}, [])


def test_wrong_values_of_known_fields_are_left_for_validation_to_explain() -> None:
    """Dropping them would answer another question than was asked."""
    request, dropped = sanitise_request({"input": "hi", "temperature": "warm", "tool_choice": {"type": 3}})

    assert (request["temperature"], request["tool_choice"], dropped) == ("warm", {"type": 3}, [])


def test_a_misspelt_field_and_a_tool_without_a_name_stay_for_validation_to_explain() -> None:
    """A misspelt sampling parameter must not silently do nothing, streamed or not."""
    body = {"input": "hi", "temprature": 1, "tools": [{"type": "function"}]}

    assert sanitise_request(body) == (body, [])


@pytest.mark.parametrize("body", [None, [], "x", {"input": "x", "tools": 3}])
def test_a_body_that_is_not_a_request_is_one_clear_error(body: Any) -> None:
    """The client gets a message about its request instead of a server error."""
    with pytest.raises(ConversionError):
        sanitise_request(body)


def test_a_replayed_response_equals_the_original() -> None:
    """A client that streams must see exactly what one that waits sees."""
    message = {"type": "message", "id": "m", "content": "é"}
    response = {"id": "r", "status": "completed", "output": [message], "usage": None}

    stream = b"".join(replay(response))

    assert stream.startswith(b'event: response.created\ndata: {"type":"response.created"')
    assert response_from_events(sse.decode(stream)) == response


def test_a_failure_is_reported_inside_the_stream() -> None:
    """The status line has already said 200."""
    events = list(sse.decode(b"".join(replay_failure("boom", "m"))))

    assert [event["type"] for event in events] == ["response.created", "response.failed"]
    assert events[1]["response"]["error"] == {"code": "server_error", "message": "boom"}
    assert events[0]["response"]["id"] == events[1]["response"]["id"]
