"""The converter class model servers use: wire types in, wire types out."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from nemo_gym import responses_converter
from nemo_gym.convert.json_access import warn_once
from nemo_gym.errors import ConversionError
from nemo_gym.responses_converter import (
    ResponsesConverter,
    ResponsesConverterState,
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
    _usage_detail,
    split_responses_input_output_items,
)
from nemo_gym.wire.chat_completions import NeMoGymChatCompletion, NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.wire.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseReasoningItem,
)

CHAT_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOKENS: dict[str, Any] = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


@pytest.fixture
def converter() -> ResponsesConverter:
    return ResponsesConverter(return_token_id_information=False)


def completion(finish: str = "stop", **message: Any) -> NeMoGymChatCompletion:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    return NeMoGymChatCompletion(
        id="x", object="chat.completion", created=7, model="served", choices=[choice], usage=usage
    )


def params(**fields: Any) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming(**{"input": "hi", **fields})


def test_a_request_becomes_a_chat_request_with_its_set_fields_only(converter: ResponsesConverter) -> None:
    """Unset options stay unset: a server's own defaults apply."""
    items = [
        NeMoGymEasyInputMessage(role="user", content="hi"),
        NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f"),
        NeMoGymFunctionCallOutput(call_id="c", output="42"),
    ]

    chat = converter.responses_to_chat_completion_create_params(params(input=items, max_output_tokens=9))

    assert isinstance(chat, NeMoGymChatCompletionCreateParamsNonStreaming)
    assert chat.model_dump(exclude_unset=True) == {
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
        ],
        "max_tokens": 9,
    }


def test_strict_is_not_printed_into_the_prompt(converter: ResponsesConverter) -> None:
    """Chat templates print a tool as it is; a model trained without the word must not meet it."""
    request = params(tools=[TOOL])

    chat = converter.responses_to_chat_completion_create_params(request)

    assert chat.model_dump(exclude_unset=True)["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ]
    assert request.tools[0]["strict"] is True  # type: ignore[typeddict-item]


def test_the_converted_request_is_one_the_wire_type_accepts(converter: ResponsesConverter) -> None:
    """It is built without validation, so the promise needs a test."""
    request = params(
        input=[{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}],
        instructions="be",
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        reasoning={"effort": "low"},
        metadata={"a": "b"},
        top_logprobs=2,
    )

    chat = converter.responses_to_chat_completion_create_params(request).model_dump(exclude_unset=True)

    validated = NeMoGymChatCompletionCreateParamsNonStreaming(**chat)
    assert validated.model_dump(exclude_unset=True) == chat
    assert chat["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}},
    }


def test_a_completion_becomes_typed_items(converter: ResponsesConverter) -> None:
    """Code of server folders distinguishes items by class and reads status and usage from the response."""
    answer = completion("tool_calls", content="<think>hm</think>ok", tool_calls=[CHAT_CALL])

    response = converter.chat_completion_to_response(params(model="asked", temperature=0.5), answer)

    assert isinstance(response, NeMoGymResponse)
    assert [type(item) for item in response.output] == [
        NeMoGymResponseReasoningItem,
        NeMoGymResponseOutputMessage,
        NeMoGymResponseFunctionToolCall,
    ]
    assert (response.output_text, response.model, response.temperature) == ("ok", "asked", 0.5)
    assert (response.status, response.created_at, response.incomplete_details) == ("completed", 7, None)
    assert response.usage is not None
    assert response.usage.model_dump() == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": None},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": None},
        "total_tokens": 8,
    }
    assert NeMoGymResponse(**response.model_dump()).model_dump() == response.model_dump()


def test_a_completion_that_ran_out_of_tokens_is_incomplete(converter: ResponsesConverter) -> None:
    """A truncated answer that counts as complete hides a limit that is too low."""
    response = converter.chat_completion_to_response(params(), completion("length", content="x"))

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_token_fields_make_the_last_item_a_training_item() -> None:
    """Trainers select items by that class; without it the rollout yields no training data."""
    converter = ResponsesConverter(return_token_id_information=True)
    answer = completion(content="<think>hm</think>ok", tool_calls=[CHAT_CALL], **TOKENS)

    last = converter.chat_completion_to_response(params(), answer).output[-1]

    assert isinstance(last, NeMoGymResponseFunctionToolCallForTraining)
    assert last.generation_token_ids == [3]


def test_token_fields_travel_back_by_reference() -> None:
    """A conversation of thirty turns holds each prompt again; copying them all would dominate a turn."""
    converter = ResponsesConverter(return_token_id_information=True)
    item = NeMoGymResponseOutputMessageForTraining(
        id="m", content=[{"type": "output_text", "text": "x", "annotations": []}], **TOKENS
    )
    request = params(input=[item])

    chat = converter.responses_to_chat_completion_create_params(request)

    assert chat.messages[0]["prompt_token_ids"] is item.prompt_token_ids  # type: ignore[typeddict-item]


def test_token_fields_are_left_out_unless_requested(converter: ResponsesConverter) -> None:
    """They multiply the size of every stored rollout of a plain evaluation."""
    response = converter.chat_completion_to_response(params(), completion(content="ok", **TOKENS))

    assert type(response.output[0]) is NeMoGymResponseOutputMessage


def test_thoughts_stay_in_the_text_without_a_reasoning_parser() -> None:
    """For such a model the tags are part of the answer that is graded and trained on."""
    converter = ResponsesConverter(return_token_id_information=False, uses_reasoning_parser=False)

    response = converter.chat_completion_to_response(params(), completion(content="<think>a</think>b"))

    assert response.output_text == "<think>a</think>b"


def test_a_subclass_may_find_thoughts_its_own_way() -> None:
    """Models with another notation are supported by overriding one method."""

    class BracketConverter(ResponsesConverter):
        @classmethod
        def _extract_reasoning_from_content(cls, content: str) -> tuple[list[str], str]:
            thought, _, rest = content.partition("]]")
            return [thought], rest

    response = BracketConverter(return_token_id_information=False).chat_completion_to_response(
        params(), completion(content="hm]]ok")
    )

    assert response.output_text == "ok"
    assert response.output[0].model_dump()["summary"] == [{"text": "hm", "type": "summary_text"}]


def test_ids_come_from_the_modules_own_uuid4(converter: ResponsesConverter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of server folders patch that name to get ids they can compare."""
    monkeypatch.setattr(responses_converter, "uuid4", lambda: SimpleNamespace(hex="123"))

    response = converter.chat_completion_to_response(params(), completion(content="<think>a</think>b"))

    assert [response.id, *(item.id for item in response.output)] == ["resp_123", "rs_123", "msg_123"]


def test_a_chat_conversation_becomes_typed_items(converter: ResponsesConverter) -> None:
    """Datasets in chat form must reach agents as the item classes they expect."""
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]

    items = converter.chat_completions_messages_to_responses_items(messages)

    assert [type(item) for item in items] == [
        NeMoGymEasyInputMessage,
        NeMoGymEasyInputMessage,
        NeMoGymResponseFunctionToolCall,
        NeMoGymFunctionCallOutput,
    ]


def test_a_chat_request_becomes_a_responses_request(converter: ResponsesConverter) -> None:
    """Chat clients reach models that only implement Responses; limits and tools must not get lost."""
    chat = NeMoGymChatCompletionCreateParamsNonStreaming(
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=5,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        response_format={"type": "json_object"},
    )

    request = converter.chat_completion_to_responses_create_params(chat)

    assert isinstance(request, NeMoGymResponseCreateParamsNonStreaming)
    assert request.model_dump(exclude_unset=True) == {
        "input": [{"type": "message", "role": "user", "content": "hi"}],
        "max_output_tokens": 5,
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": False}],
        "text": {"format": {"type": "json_object"}},
    }


def test_a_choice_and_its_message_become_the_same_items(converter: ResponsesConverter) -> None:
    """Existing folders call either method and must get the same rollout."""
    choice = completion(content="ok", reasoning_content="why").choices[0]

    of_choice = converter.postprocess_chat_response(choice)
    of_dict = converter.postprocess_assistant_message_dict(choice.message.model_dump())

    assert [type(item) for item in of_choice] == [NeMoGymResponseReasoningItem, NeMoGymResponseOutputMessage]
    assert [type(item) for item in of_dict] == [type(item) for item in of_choice]


def test_an_invalid_value_is_one_clear_error(converter: ResponsesConverter) -> None:
    """A KeyError from inside the converter would not say which part of the answer is wrong."""
    with pytest.raises(ConversionError, match=r"choices\[0\]: 'message' is missing"):
        converter.chat_completion_to_response({"input": ""}, {"choices": [{}], "created": 1})
    with pytest.raises(ConversionError, match=r"NeMoGymResponse.model"):
        converter.chat_completion_to_response({"input": ""}, {"choices": [{"message": {}}], "created": 1})


def test_a_lost_hint_is_logged_once(converter: ResponsesConverter, caplog: pytest.LogCaptureFixture) -> None:
    """Once per process: a run converts the same request thousands of times."""
    warn_once.cache_clear()
    request = params(truncation="auto")

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            converter.responses_to_chat_completion_create_params(request)

    assert [record.getMessage() for record in caplog.records] == [
        "'truncation' is not sent to the model: Chat Completions has no such option"
    ]


def test_a_lost_hint_is_logged_once_for_each_server(caplog: pytest.LogCaptureFixture) -> None:
    """Model servers share a process; without the name of the server the user cannot find the client."""
    warn_once.cache_clear()

    with caplog.at_level(logging.WARNING):
        for name in ("policy", "judge", "policy"):
            converter = ResponsesConverter(return_token_id_information=False, server_name=name)
            converter.responses_to_chat_completion_create_params(params(truncation="auto"))

    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["policy", "judge"]


def test_the_think_tag_helpers_are_available_on_the_class() -> None:
    """Existing folders call these private names."""
    assert ResponsesConverter._wrap_reasoning_in_think_tags(["a", "b"]) == "<think>a</think><think>b</think>"
    assert ResponsesConverter._parse_think_tags("<think>a</think>b") == (["a"], "b")
    assert ResponsesConverter._extract_reasoning_from_content("b") == ([], "b")
    assert ResponsesConverter.THINK_TAG_PATTERN.findall("<think>a\n</think>") == ["a\n"]


def test_the_older_names_are_the_same_classes() -> None:
    """Existing folders import them and subclass them."""
    assert VLLMConverter is ResponsesConverter
    assert VLLMConverterResponsesToChatCompletionsState is ResponsesConverterState


def test_a_state_collects_a_turn_and_writes_it_once() -> None:
    """Existing subclasses use the state; a second flush must not add an empty turn."""
    state = ResponsesConverterState(return_token_id_information=True)
    state.content_buffer += "x"
    state.tool_calls_buffer.append(CHAT_CALL)

    state.flush_assistant()
    state.flush_assistant()

    assert state.messages == [{"role": "assistant", "content": "x", "tool_calls": [CHAT_CALL]}]


@pytest.mark.parametrize(
    ("items", "cut"),
    [
        ([], 0),
        ([{"role": "user"}, {"role": "system"}], 2),
        ([{"role": "user"}, {"role": "assistant"}, {"role": "user"}], 1),
        ([{"role": "user"}, {"type": "reasoning"}, {"role": "assistant"}], 1),
        ([{"type": "function_call"}, {"type": "function_call_output"}], 0),
        ([NeMoGymEasyInputMessage(role="user", content="x"), NeMoGymResponseReasoningItem(id="r", summary=[])], 1),
    ],
)
def test_a_trajectory_is_cut_where_the_model_begins(items: list[Any], cut: int) -> None:
    """Trainers mask the prompt; one item too many and the model learns the question."""
    assert split_responses_input_output_items(items) == (items[:cut], items[cut:])


def test_usage_details_are_read_from_objects_and_dicts() -> None:
    """Providers return either; a missed count would make cost metrics wrong."""
    usage = {"prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": None, "total_tokens": 9}
    reported = completion(content="x").usage

    assert _usage_detail(usage, "prompt_tokens_details", "cached_tokens") == 3
    assert _usage_detail(usage, "completion_tokens_details", "reasoning_tokens") is None
    assert _usage_detail(usage, "total_tokens") == 9
    assert _usage_detail(reported, "prompt_tokens_details", "cached_tokens") is None
    assert _usage_detail(reported, "prompt_tokens") == 5


def test_parts_of_older_datasets_without_a_type_are_converted(converter: ResponsesConverter) -> None:
    """Their type follows from their fields; a conversation with them must reach the model."""
    message = {"type": "message", "id": "m", "role": "assistant", "content": [{"text": "4", "annotations": []}]}
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [message]})

    chat = converter.responses_to_chat_completion_create_params(params)

    assert chat.messages == [{"role": "assistant", "content": "4"}]
