"""Chat Completions, both directions."""

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChatCompletionMessageToolCall,
    NeMoGymChoice,
    NeMoGymFunction,
)

TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MESSAGES = [
    {"role": "developer", "content": "be brief"},
    {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
    {
        "role": "user",
        "name": "ann",
        "content": [
            {"type": "text", "text": "what is this?"},
            {"type": "image_url", "image_url": {"url": "data:", "detail": "low"}},
            {"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}},
            {"type": "file", "file": {"file_id": "f"}},
            {"type": "video_url", "video_url": {"url": "https://x/v.mp4"}},
        ],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "4"},
    {"role": "assistant", "content": "four", **TOKENS},
]
COMPLETION = {
    "id": "chat_1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "tool_calls": [CALL], "x": 1}}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": None},
    "prompt_logprobs": None,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_dictionaries_and_pass_unchanged(message):
    """Chat servers differ in what they add to a message; a field lost here is a different prompt."""
    request = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[message], model="m")

    assert request.messages == [message]
    assert request.model_dump(exclude_unset=True) == {"messages": [message], "model": "m"}


def test_unknown_fields_of_a_request_are_left_out():
    """The contract ignores them: clients send options of other servers."""
    request = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[], model="m", top_k=3)

    assert request.model_dump(exclude_unset=True) == {"messages": [], "model": "m"}
    assert request.parallel_tool_calls is True


@pytest.mark.parametrize(
    "message",
    [
        "hi",
        {"content": "hi"},
        {"role": "oracle", "content": "hi"},
        {"role": "user"},
        {"role": "tool", "content": "4"},
        {"role": "user", "content": [{"type": "smell"}]},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
        {"role": "assistant", "content": "four", "prompt_token_ids": [1]},
        {"role": "assistant", "content": "four", **TOKENS, "generation_log_probs": ["x"]},
    ],
)
def test_a_message_that_is_none_is_refused_where_it_stands(message):
    """The place in the error is what a dataset's author has to fix."""
    with pytest.raises(ValidationError) as caught:
        NeMoGymChatCompletionCreateParamsNonStreaming(messages=[MESSAGES[0], message])

    assert {error["loc"][:2] for error in caught.value.errors()} == {("messages", 1)}


def test_a_completion_keeps_every_field_of_the_server():
    """Token ids and log-probabilities arrive in fields the API does not have."""
    completion = NeMoGymChatCompletion.model_validate(COMPLETION)

    assert completion.model_dump(exclude_unset=True) == COMPLETION
    assert completion.choices[0].message.tool_calls[0].function.name == "add"


def test_a_reply_without_a_role_is_the_models():
    """Some endpoints leave the role empty; every answer of theirs was an invalid one, which ended the run."""
    choice = {**COMPLETION["choices"][0], "message": {"role": None, "content": "7"}}

    completion = NeMoGymChatCompletion.model_validate({**COMPLETION, "choices": [choice]})

    assert (completion.choices[0].message.role, completion.choices[0].message.content) == ("assistant", "7")


def test_a_completion_is_built_by_keyword():
    """Model servers and their tests build these by hand."""
    call = NeMoGymChatCompletionMessageToolCall(id="c", function=NeMoGymFunction(name="f", arguments="{}"))
    message = NeMoGymChatCompletionMessage(role="assistant", content=None, tool_calls=[call])
    completion = NeMoGymChatCompletion(
        id="c",
        created=1,
        model="m",
        object="chat.completion",
        choices=[NeMoGymChoice(index=0, finish_reason="tool_calls", message=message)],
    )

    assert list(completion.model_dump()) == [
        "id",
        "choices",
        "created",
        "model",
        "object",
        "service_tier",
        "system_fingerprint",
        "usage",
    ]
    assert completion.model_dump()["choices"][0]["message"] == {
        "content": None,
        "refusal": None,
        "role": "assistant",
        "annotations": None,
        "audio": None,
        "function_call": None,
        "tool_calls": [{"id": "c", "function": {"arguments": "{}", "name": "f"}, "type": "function"}],
    }


def test_a_message_with_tokens_becomes_the_training_class_and_half_of_them_an_error():
    """The converter looks at the class to know whether tokens travel on."""

    def choice(**tokens):
        return NeMoGymChoice(index=0, finish_reason="stop", message={"role": "assistant", "content": "4", **tokens})

    assert type(choice().message) is NeMoGymChatCompletionMessage
    assert type(choice(**TOKENS).message) is NeMoGymChatCompletionMessageForTraining
    with pytest.raises(ValidationError, match="Token fields belong together"):
        choice(generation_token_ids=[3])


def test_an_answer_can_be_sent_back_as_a_message():
    """A chat loop appends the model's message object to its messages."""
    message = NeMoGymChatCompletionMessage(role="assistant", content="four")

    request = NeMoGymChatCompletionCreateParamsNonStreaming(messages=[message])

    assert request.messages == [{"role": "assistant", "content": "four"}]
