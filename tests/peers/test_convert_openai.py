"""What the converters write is what the openai package reads, and its objects are what they take."""

from typing import Any

import pytest

pytest.importorskip("openai")

from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from nemo_gym.chat_streaming import replay as replay_completion
from nemo_gym.convert import sse
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.responses_streaming import replay, replay_failure

COMPLETION: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 7,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {
                "role": "assistant",
                "content": "<think>hm</think>ok",
                "refusal": None,
                "reasoning_content": "why",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        }
    ],
    "usage": {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}


@pytest.fixture
def response() -> dict[str, Any]:
    """A response made from a completion object of the openai package."""
    converter = ResponsesConverter(return_token_id_information=False)
    made = converter.chat_completion_to_response({"input": "q", "model": "m"}, ChatCompletion(**COMPLETION))
    # Their usage type demands counts that older servers never report; their client does not insist on them.
    return made.model_dump(mode="json") | {"usage": None}


def test_a_completion_object_becomes_a_response_the_package_reads(response: dict[str, Any]) -> None:
    """Folders build objects of the openai package and hand them to us."""
    theirs = Response.model_validate(response)

    assert [item.type for item in theirs.output] == ["reasoning", "message", "function_call"]
    assert theirs.output_text == "ok"
    assert [part["text"] for part in response["output"][0]["summary"]] == ["why", "hm"]


def test_replayed_responses_are_events_the_package_reads(response: dict[str, Any]) -> None:
    """Clients built on the package stream from our model servers."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

    events = [adapter.validate_python(event) for event in sse.decode(b"".join(replay(response)))]
    failure = [adapter.validate_python(event) for event in sse.decode(b"".join(replay_failure("boom", "m")))]

    types = [event.type for event in events]
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    assert types.count("response.output_item.added") == types.count("response.output_item.done") == 3
    assert {"response.output_text.delta", "response.function_call_arguments.delta"} <= set(types)
    assert failure[-1].response.error.message == "boom"


def test_replayed_completions_are_chunks_the_package_reads() -> None:
    """Chat clients built on the package stream from our model servers."""
    chunks = [
        ChatCompletionChunk.model_validate(chunk) for chunk in sse.decode(b"".join(replay_completion(COMPLETION, True)))
    ]

    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "<think>hm</think>ok"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8
