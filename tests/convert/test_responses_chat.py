"""Responses ↔ Chat, case by case: what the contract says about each item and option."""

import json
from itertools import count
from typing import Any

import pytest

from nemo_gym.convert.chat_conversation import items_from_messages
from nemo_gym.convert.responses_chat import (
    chat_messages,
    chat_request,
    options_lost_in_chat,
    options_lost_in_responses,
    response_from_completion,
    responses_request,
)
from nemo_gym.errors import ConversionError

Json = dict[str, Any]

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "name": "f", "description": "does f", "parameters": {"type": "object"}, "strict": True}
TOKENS = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}


def ids() -> Any:
    numbers = count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def output_message(text: str, **extra: Any) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content, **extra}


def reasoning_item(*texts: str, **extra: Any) -> Json:
    return {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": t} for t in texts], **extra}


def completion(message: Json, finish: str = "stop", **extra: Any) -> Json:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return {"id": "x", "object": "chat.completion", "created": 7, "model": "served", "choices": [choice], **extra}


def test_a_string_is_one_user_message() -> None:
    """The short form of a request must reach the model as the long form does."""
    assert chat_messages("hi") == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


def test_consecutive_assistant_items_become_one_message() -> None:
    """Chat templates expect one assistant message per turn, thoughts first, calls beside the text."""
    items = [
        reasoning_item("a", "b"),
        output_message("Hello "),
        output_message("you"),
        CALL,
        {"role": "user", "content": "go on"},
    ]

    messages = chat_messages(items)

    assert messages == [
        {"role": "assistant", "content": "<think>a</think><think>b</think>Hello you", "tool_calls": [CHAT_CALL]},
        {"role": "user", "content": "go on"},
    ]


def test_a_call_without_text_has_null_content() -> None:
    """Chat templates print an empty text into the prompt; the model never wrote one."""
    assert chat_messages([CALL]) == [{"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}]


def test_an_empty_answer_stays_in_the_conversation() -> None:
    """Two user messages in a row would be a different conversation."""
    assert chat_messages([output_message("")]) == [{"role": "assistant", "content": ""}]


def test_reasoning_without_text_is_left_out() -> None:
    """Hosted models return reasoning items with nothing readable in them."""
    assert chat_messages([reasoning_item(), {"role": "user", "content": "hi"}]) == [{"role": "user", "content": "hi"}]


def test_full_reasoning_is_used_without_a_summary() -> None:
    """Open models return only the full text; dropping it would change the next prompt."""
    item = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "why"}]}

    assert chat_messages([item])[0]["content"] == "<think>why</think>"


def test_inline_tool_calls_of_a_message_are_kept() -> None:
    """A tool result without the call before it is refused by chat servers."""
    item = {"role": "assistant", "content": "x", "tool_calls": [CHAT_CALL]}

    assert chat_messages([item]) == [{"role": "assistant", "content": "x", "tool_calls": [CHAT_CALL]}]


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_other_roles_keep_their_role_and_end_the_assistant_turn(role: str) -> None:
    """Joining text across a user message would put words into the wrong turn."""
    messages = chat_messages([output_message("a"), {"role": role, "content": "b"}, output_message("c")])

    assert [message["role"] for message in messages] == ["assistant", role, "assistant"]


@pytest.mark.parametrize(
    ("part", "chat"),
    [
        ({"type": "input_text", "text": "t"}, {"type": "text", "text": "t"}),
        (
            {"type": "input_image", "image_url": "http://x/y.png"},
            {"type": "image_url", "image_url": {"url": "http://x/y.png", "detail": "auto"}},
        ),
        (
            {"type": "input_image", "image_url": "u", "detail": "high"},
            {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
        ),
        ({"type": "input_video", "video_url": "v"}, {"type": "video_url", "video_url": {"url": "v"}}),
        ({"type": "input_video", "video": "data:v"}, {"type": "video_url", "video_url": {"url": "data:v"}}),
        (
            {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
        ),
        ({"type": "input_file", "file_id": "f"}, {"type": "file", "file": {"file_id": "f"}}),
    ],
)
def test_content_parts_are_converted_to_chat_form(part: Json, chat: Json) -> None:
    """A part in the wrong form is refused or ignored, and the model answers without the image."""
    assert chat_messages([{"role": "user", "content": [part]}]) == [{"role": "user", "content": [chat]}]


def test_images_of_tool_results_follow_in_a_user_message() -> None:
    """Chat accepts only text in tool messages, and no other message between the results of one turn."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    items = [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "map"}, image]},
        {"type": "function_call_output", "call_id": "b", "output": [image]},
        {"role": "user", "content": "Go on."},
        {"type": "function_call_output", "call_id": "c", "output": [image]},
    ]

    messages = chat_messages(items)

    assert [message["role"] for message in messages] == ["assistant", "tool", "tool", "user", "user", "tool", "user"]
    assert messages[1]["content"] == [{"type": "text", "text": "map"}]
    assert messages[2]["content"] == [{"type": "text", "text": "(see the next message)"}]
    assert [part["type"] for part in messages[3]["content"]] == ["image_url", "image_url"]
    assert messages[6]["content"][0]["image_url"]["url"] == image["image_url"]


def test_tool_results_become_tool_messages() -> None:
    """The model must see which call each result belongs to."""
    items = [
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "t"}]},
    ]

    assert chat_messages(items) == [
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "t"}]},
    ]


def test_a_refusal_stays_a_refusal() -> None:
    """It is not an answer; graders and trainers treat it differently."""
    item = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}

    assert chat_messages([item]) == [{"role": "assistant", "content": None, "refusal": "no"}]


def test_token_fields_of_a_turns_last_item_go_on_its_message() -> None:
    """The next prompt is built on exactly the tokens that were generated."""
    messages = chat_messages(
        [reasoning_item("a"), output_message("b", **TOKENS), {"role": "user", "content": "c"}], with_tokens=True
    )

    assert {key: messages[0][key] for key in TOKENS} == TOKENS
    assert messages[0]["prompt_token_ids"] is TOKENS["prompt_token_ids"]
    assert not TOKENS.keys() & messages[1].keys()


def test_token_fields_are_left_out_unless_requested() -> None:
    """Hosted endpoints refuse requests with unknown fields."""
    assert chat_messages([output_message("b", **TOKENS)]) == [{"role": "assistant", "content": "b"}]


def test_a_custom_tool_becomes_a_function_and_its_call_comes_back() -> None:
    """Codex edits files with a custom tool; without it the model could not change a file."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    custom = {"type": "custom", "name": "patch", "description": "Edit.", "format": grammar}
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "*** Begin"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    params = {"input": [call, output], "tools": [custom, {"type": "web_search"}]}

    chat = chat_request(params)

    (tool,) = chat["tools"]
    assert (tool["function"]["name"], tool["function"]["parameters"]["required"]) == ("patch", ["input"])
    assert "start: WORD" in tool["function"]["description"]
    (sent,) = chat["messages"][0]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"input": "*** Begin"}
    assert chat["messages"][1] == {"role": "tool", "tool_call_id": "c", "content": "done"}
    answer = response_from_completion(params, completion({"content": None, "tool_calls": [sent]}), new_id=ids())
    (item,) = answer["output"]
    assert (item["type"], item["call_id"], item["input"]) == ("custom_tool_call", "c", "*** Begin")
    assert options_lost_in_chat(params) == ["tools: web_search"]


def test_items_of_hosted_tools_and_encrypted_reasoning_are_left_out_and_listed() -> None:
    """They ran or are readable at a provider only; a coding agent sends them back in every request."""
    encrypted = reasoning_item(encrypted_content="x")
    items = [{"type": "web_search_call", "id": "w"}, {"type": "computer_call"}, encrypted]

    assert chat_messages([{"role": "user", "content": "x"}, *items]) == [{"role": "user", "content": "x"}]
    assert options_lost_in_chat({"input": items}) == [
        "input: web_search_call",
        "input: computer_call",
        "input: reasoning",
    ]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"type": "custom_tool_call"}, "input[1]: 'input' is missing"),
        ({"content": "x"}, "input[1]: has neither a type nor a role"),
        ({"role": "critic", "content": "x"}, "input[1]: 'critic' cannot be expressed in Chat Completions as a role"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[1]: 'arguments' is missing"),
        ({**CALL, "arguments": {}}, "input[1].arguments: expected a string, got dict"),
        ({"type": "item_reference", "id": "m"}, "input[1]: 'item_reference' cannot be expressed in Chat Completions"),
        ({"type": "compaction"}, "input[1]: 'compaction' cannot be expressed in Chat Completions"),
        (
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]},
            "input[1].content[0]: 'an image given by file_id' cannot be expressed",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_url": "f"}]},
            "input[1].content[0]: 'a file given by file_url' cannot be expressed",
        ),
        (
            {"role": "user", "content": [{"type": "input_video", "video_url": "a", "video": "b"}]},
            "input[1].content[0]: a video part has exactly one of video_url and video",
        ),
        (
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "file_id": "u"}]},
            "input[1].output[0]: 'an image given by file_id' cannot be expressed",
        ),
    ],
)
def test_items_that_chat_cannot_express_are_located(item: Json, message: str) -> None:
    """A conversation that silently loses an item is graded as if it had happened differently."""
    with pytest.raises(ConversionError) as error:
        chat_messages([{"role": "user", "content": "x"}, item])

    assert str(error.value).startswith(message)
    assert isinstance(error.value, NotImplementedError)


def test_half_a_set_of_token_fields_is_an_error() -> None:
    """A trainer would compute a loss on prompt and generation that do not belong together."""
    with pytest.raises(ConversionError, match=r"input\[0\]: has prompt_token_ids but not generation_token_ids"):
        chat_messages([output_message("x", prompt_token_ids=[1])], with_tokens=True)


def test_instructions_and_opening_system_messages_become_one_message() -> None:
    """Many chat templates accept a single system message, at the start."""
    params = {
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "Use tools."},
            {"role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "later"},
        ],
    }

    assert chat_request(params)["messages"] == [
        {"role": "system", "content": "Be brief.\n\nUse tools.\n\nBe kind."},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "later"},
    ]


def test_empty_instructions_are_left_out() -> None:
    """An empty system message would still change the prompt."""
    assert chat_request({"input": [], "instructions": ""})["messages"] == []


def test_options_are_converted_to_their_chat_names() -> None:
    """An option under its Responses name is ignored by a chat server, and sampling differs."""
    params = {
        "input": [],
        "model": "m",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "reasoning": {"effort": "low"},
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "metadata": {"extra_body": "{}"},
        "seed": 5,
    }

    assert chat_request(params) == {
        "messages": [],
        "model": "m",
        "max_tokens": 9,
        "temperature": 0.5,
        "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        "verbosity": "low",
        "logprobs": True,
        "top_logprobs": 3,
        "metadata": {"extra_body": "{}"},
        "seed": 5,
    }


def test_without_tools_the_options_about_them_are_left_out() -> None:
    """Chat servers refuse them there."""
    params = {"input": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}

    assert chat_request(params) == {"messages": []}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_required_call_without_tools_is_an_error(choice: Any) -> None:
    """The model cannot comply; an ordinary answer would count as a failed rollout."""
    with pytest.raises(ValueError, match="there are no tools"):
        chat_request({"input": [], "tool_choice": choice})


@pytest.mark.parametrize(
    "option",
    [
        {"previous_response_id": "r"},
        {"background": True},
        {"prompt": {"id": "p"}},
        {"conversation": "c"},
        {"tools": [TOOL], "tool_choice": {"type": "mcp", "server_label": "s"}},
        {"text": {"format": {"type": "grammar"}}},
    ],
)
def test_options_that_chat_cannot_express_are_refused(option: Json) -> None:
    """Without them the model would answer another question than the one in the request."""
    with pytest.raises(ConversionError, match="cannot be expressed in Chat Completions"):
        chat_request({"input": [], **option})


def test_options_without_counterpart_in_chat_are_listed() -> None:
    """They do not change the request, so it is sent; the caller can log them."""
    params = {
        "input": [],
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "truncation": "auto",
        "max_tool_calls": 3,
        "reasoning": {"effort": "low", "summary": "auto"},
    }

    chat_request(params)

    assert options_lost_in_chat(params) == [
        "max_tool_calls",
        "truncation",
        "include: reasoning.encrypted_content",
        "reasoning.summary",
    ]
    assert options_lost_in_chat({"input": [], "truncation": "disabled"}) == []


def test_an_assistant_message_becomes_reasoning_text_and_calls() -> None:
    """The example of the user's own documentation."""
    message = {"role": "assistant", "content": "<think>I'm thinking</think>Hi there!", "tool_calls": [CHAT_CALL]}

    assert items_from_messages([message], new_id=ids()) == [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I'm thinking"}]},
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hi there!", "annotations": []}],
        },
        {**CALL, "id": "c1", "status": "completed"},
    ]


@pytest.mark.parametrize("fields", [("reasoning_content",), ("reasoning",), ("reasoning_content", "reasoning")])
def test_reasoning_a_server_parsed_out_is_kept_once(fields: tuple[str, ...]) -> None:
    """Some servers send the same thoughts under an old and a new name."""
    message = {"role": "assistant", "content": "Hi", **dict.fromkeys(fields, "why")}

    items = items_from_messages([message], new_id=ids())

    assert [item["type"] for item in items] == ["reasoning", "message"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "why"}]


def test_a_turn_without_text_has_a_message_only_if_it_is_otherwise_empty() -> None:
    """An invented empty message would alter the prompt; no item at all would lose the turn."""
    calls = items_from_messages([{"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}], new_id=ids())
    silence = items_from_messages([{"role": "assistant", "content": None}], new_id=ids())

    assert [item["type"] for item in calls] == ["function_call"]
    assert silence[0]["content"] == [{"type": "output_text", "text": "", "annotations": []}]


def test_thoughts_stay_in_the_text_of_models_without_a_reasoning_parser() -> None:
    """For such a model the tags are part of the answer that is graded and trained on."""
    message = {"role": "assistant", "content": "<think>a</think>b"}

    items = items_from_messages([message], new_id=ids(), split_thoughts=lambda text: ([], text))

    assert [item["type"] for item in items] == ["message"]
    assert items[0]["content"][0]["text"] == "<think>a</think>b"


def test_token_fields_go_on_the_last_item_of_the_turn() -> None:
    """A trainer reads them from one item per turn."""
    message = {"role": "assistant", "content": "<think>a</think>b", "tool_calls": [CHAT_CALL], **TOKENS}

    items = items_from_messages([message], new_id=ids(), with_tokens=True)

    assert [bool(TOKENS.keys() & item.keys()) for item in items] == [False, False, True]
    assert items[-1]["generation_token_ids"] is TOKENS["generation_token_ids"]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "content": "x", "name": "bob"}, "messages[0]: 'name' cannot be expressed"),
        ({"role": "function", "content": "x"}, "messages[0]: 'function' cannot be expressed"),
        ({"role": "assistant", "audio": {"id": "a"}}, "messages[0]: 'audio' cannot be expressed"),
        ({"role": "assistant", "function_call": {}}, "messages[0]: 'function_call' cannot be expressed"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "messages[0].tool_calls[0]: 'custom'"),
        ({"role": "user", "content": [{"type": "sticker"}]}, "messages[0].content[0]: 'sticker' cannot be expressed"),
        ({"role": "user"}, "messages[0]: content is neither a string nor a list"),
    ],
)
def test_messages_that_responses_cannot_express_are_located(message: Json, problem: str) -> None:
    """A message that is dropped silently would change the conversation that is graded."""
    with pytest.raises(ConversionError) as error:
        items_from_messages([message], new_id=ids())

    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    "option",
    [
        {"stop": ["x"]},
        {"seed": 1},
        {"n": 2},
        {"frequency_penalty": 0.1},
        {"logit_bias": {"1": 2}},
        {"top_k": 4},
        {"modalities": ["audio"]},
    ],
)
def test_chat_options_without_a_counterpart_are_refused(option: Json) -> None:
    """Sampling with other settings than requested would make results incomparable."""
    with pytest.raises(ConversionError, match=f"'{next(iter(option))}' cannot be expressed in the Responses API"):
        responses_request({"messages": [], **option}, new_id=ids())


def test_chat_options_at_their_neutral_value_are_accepted() -> None:
    """Clients send every option with its default; refusing these would refuse all their requests."""
    chat = {"messages": [], "n": 1, "stop": None, "presence_penalty": 0, "prompt_cache_key": "k", "logit_bias": {}}

    assert responses_request(chat, new_id=ids()) == {"input": [], "prompt_cache_key": "k"}
    assert options_lost_in_responses({**chat, "stream_options": {}}) == ["stream_options"]


def test_two_different_limits_are_refused() -> None:
    """Either choice could cut answers where the user did not expect it."""
    with pytest.raises(ConversionError, match="disagree"):
        responses_request({"messages": [], "max_tokens": 1, "max_completion_tokens": 2}, new_id=ids())


@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_the_finish_reason_determines_the_status(finish: str, status: str, details: Json | None) -> None:
    """Metrics count truncated answers by the status; a wrong one hides them."""
    response = response_from_completion({}, completion({"content": "x"}, finish), new_id=ids())

    assert (response["status"], response["incomplete_details"]) == (status, details)


def test_a_response_repeats_the_request_and_the_requested_model() -> None:
    """Stored rollouts document their settings this way, under the name the user knows."""
    params = {"input": "q", "model": "asked", "temperature": 0.1, "tools": [TOOL], "instructions": "be", "store": True}

    response = response_from_completion(params, completion({"content": "x"}), new_id=ids())

    assert response["id"] == "resp_2"
    assert (response["model"], response["created_at"], response["object"]) == ("asked", 7, "response")
    assert (response["temperature"], response["tools"], response["instructions"]) == (0.1, [TOOL], "be")
    assert (response["tool_choice"], response["parallel_tool_calls"]) == ("auto", True)
    assert "input" not in response


def test_usage_is_counted_and_unknown_counts_stay_unknown() -> None:
    """A sum must not take an unknown count for zero; model servers fill them in for clients that need numbers."""
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": None,
    }

    response = response_from_completion({}, completion({"content": "x"}, usage=usage), new_id=ids())
    silent = response_from_completion({}, completion({"content": "x"}), new_id=ids())

    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": None},
        "total_tokens": 8,
    }
    assert silent["usage"] is None


def test_log_probabilities_follow_the_text_on_request() -> None:
    """Values of the reasoning tokens beside the answer text would be misaligned."""
    entries = [
        {"token": t, "logprob": -1.0, "bytes": None, "top_logprobs": []} for t in ("<think>", "a", "</think>", "b")
    ]
    answer = completion({"content": "<think>a</think>b"})
    answer["choices"][0]["logprobs"] = {"content": entries}

    with_logprobs = response_from_completion({"include": ["message.output_text.logprobs"]}, answer, new_id=ids())
    without_logprobs = response_from_completion({}, answer, new_id=ids())

    assert [entry["token"] for entry in with_logprobs["output"][1]["content"][0]["logprobs"]] == ["b"]
    assert "logprobs" not in without_logprobs["output"][1]["content"][0]


def test_citations_and_the_service_tier_are_kept() -> None:
    """Graders check citations, and the tier decides the price."""
    cite = {"start_index": 0, "end_index": 1, "title": "t", "url": "u"}
    answer = completion({"content": "x", "annotations": [{"type": "url_citation", "url_citation": cite}]})
    answer |= {"service_tier": "flex", "usage": None}
    answer["choices"][0]["logprobs"] = None

    response = response_from_completion({"service_tier": "auto"}, answer, new_id=ids())

    assert response["output"][0]["content"][0]["annotations"] == [{"type": "url_citation", **cite}]
    assert response["service_tier"] == "flex"


@pytest.mark.parametrize("choices", [[], [{"message": {}}, {"message": {}}], None])
def test_a_completion_must_have_exactly_one_choice(choices: Any) -> None:
    """Taking the first of several would discard answers that were paid for."""
    with pytest.raises(ConversionError, match="choices"):
        response_from_completion({}, {**completion({}), "choices": choices}, new_id=ids())
