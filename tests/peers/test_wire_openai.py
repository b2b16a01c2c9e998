"""Objects of the openai package are accepted wherever ours are expected."""

import pytest

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseUsage,
)
from nemo_gym.wire.run_seed_verify import BaseVerifyRequest

responses = pytest.importorskip("openai.types.responses")
chat = pytest.importorskip("openai.types.chat")
usage = pytest.importorskip("openai.types.responses.response_usage")
shared = pytest.importorskip("openai.types.shared")

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
TEXT = {"type": "output_text", "text": "4", "annotations": []}
BODY = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [TEXT]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "fc"},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_call", "id": "x", "name": "n", "arguments": "{}", "server_label": "s"},
    ],
    "parallel_tool_calls": True,
    "tool_choice": {"type": "function", "name": "f"},
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 3,
    },
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
}


def text():
    return responses.ResponseOutputText(**TEXT)


def message(**extra):
    return responses.ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=[text()], **extra
    )


def test_a_whole_response_becomes_ours_without_loss():
    """Model servers that use the client package return its object."""
    theirs = responses.Response.model_validate(BODY)

    ours = NeMoGymResponse.model_validate(theirs)

    assert ours.model_dump(exclude_unset=True) == BODY
    assert ours.output_text == theirs.output_text == "4"


def test_a_response_made_without_validation_is_accepted_too():
    """The client builds its objects with `construct`, from whatever the server sent."""
    theirs = responses.Response.construct(**{**BODY, "brand_new": {"x": 1}})

    ours = NeMoGymResponse.model_validate(theirs)

    assert ours.model_dump(exclude_unset=True) == {**BODY, "brand_new": {"x": 1}}


def test_items_inside_ours_become_our_classes():
    """Verifiers ask `isinstance(item, NeMoGymResponseOutputMessage)`."""
    reasoning = responses.ResponseReasoningItem(id="r", type="reasoning", summary=[])
    call = responses.ResponseFunctionToolCall(call_id="c", name="f", arguments="{}", type="function_call")

    ours = NeMoGymResponse(**{**BODY, "output": [message(), message(**TOKENS), reasoning, call]})

    assert [type(item) for item in ours.output] == [
        NeMoGymResponseOutputMessage,
        NeMoGymResponseOutputMessageForTraining,
        NeMoGymResponseReasoningItem,
        NeMoGymResponseFunctionToolCall,
    ]


def test_parts_and_usage_inside_ours_become_our_classes():
    """Also one level further down."""
    theirs = usage.ResponseUsage.model_validate(BODY["usage"])

    ours = NeMoGymResponseOutputMessage(id="m", content=[text()])

    assert type(ours.content[0]) is NeMoGymResponseOutputText
    assert NeMoGymResponse(**{**BODY, "usage": theirs}).usage == NeMoGymResponseUsage(**BODY["usage"])


def test_a_request_accepts_their_items_tools_and_options():
    """An agent written on the client package sends back what it received."""
    output = responses.response_input_item.FunctionCallOutput(type="function_call_output", call_id="c", output="4")
    user = responses.EasyInputMessage(role="user", content="2 + 2?")

    request = NeMoGymResponseCreateParamsNonStreaming(
        input=[user, message(), output],
        tools=[responses.FunctionTool(type="function", name="f", parameters={}, strict=True)],
        reasoning=shared.Reasoning(effort="low"),
    )

    assert isinstance(request.input[2], NeMoGymFunctionCallOutput)
    assert request.model_dump(exclude_unset=True) == {
        "input": [{"role": "user", "content": "2 + 2?"}, BODY["output"][1], output.model_dump(exclude_unset=True)],
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        "reasoning": {"effort": "low"},
    }


def test_a_verify_request_accepts_their_response():
    """Tests of server folders build it this way."""
    request = BaseVerifyRequest(
        responses_create_params={"input": "2 + 2?"}, response=responses.Response.model_validate(BODY)
    )

    assert request.response.output_text == "4"


def test_chat_objects_are_accepted_in_both_directions():
    """A chat loop appends the message object it got to the messages it sends."""
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
            }
        ],
    }
    theirs = chat.ChatCompletion.model_validate(body)

    assert NeMoGymChatCompletion.model_validate(theirs).model_dump(exclude_unset=True) == body
    request = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[theirs.choices[0].message])
    assert request.messages == [body["choices"][0]["message"]]


def test_our_dumps_are_valid_for_their_classes():
    """Users of the client package must be able to read our replies."""
    ours = NeMoGymResponse(**BODY)

    theirs = responses.Response.model_validate(ours.model_dump())

    assert theirs.output_text == "4"


def test_field_names_and_their_order_are_those_of_the_package():
    """Later versions only add; what we have must be there in the same order."""
    for ours, theirs in (
        (NeMoGymResponse, responses.Response),
        (NeMoGymResponseOutputMessage, responses.ResponseOutputMessage),
        (NeMoGymResponseOutputText, responses.ResponseOutputText),
        (NeMoGymResponseFunctionToolCall, responses.ResponseFunctionToolCall),
        (NeMoGymChatCompletion, chat.ChatCompletion),
    ):
        names = list(ours.model_fields)
        assert [name for name in theirs.model_fields if name in names] == names
