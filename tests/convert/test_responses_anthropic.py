"""Responses ↔ Anthropic Messages: case by case, and the laws."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.convert.responses_anthropic import (
    accepted_request,
    message_from_response,
    messages_request,
    options_lost_from_messages,
    options_lost_in_messages,
    response_from_message,
    responses_request,
    thinking_option,
)
from nemo_gym.errors import ConversionError

Json = dict[str, Any]
law = settings(max_examples=100, deadline=None)

NO_CACHE = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
"""Counts of a message, which clients add up without a test for null."""


def same_id(prefix: str) -> str:
    return f"{prefix}_0"


def to_responses(*messages: Json, **options: Any) -> Json:
    return responses_request({"messages": list(messages), **options}, new_id=same_id)


def to_message(*output: Json, **fields: Any) -> Json:
    response = {"output": list(output), "status": "completed", **fields}
    return message_from_response(response, model="claude", new_id=same_id)


def output_message(*texts: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": content}


def function_call(arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments, "status": "completed"}


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PNG_PART = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}


def test_a_messages_request_becomes_a_responses_request() -> None:
    """A coding agent that speaks Messages must get the sampling and tools it configured."""
    params = to_responses(
        {"role": "user", "content": "hi"},
        model="m",
        max_tokens=9,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        system=[{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}],
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )

    assert params == {
        "input": [{"type": "message", "role": "user", "content": "hi"}],
        "model": "m",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "instructions": "a\nb",
        "tools": [
            {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": False}
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    ("choice", "meant"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "any"}, "required"),
        ({"type": "tool", "name": "f"}, {"type": "function", "name": "f"}),
    ],
)
def test_tool_choices_are_converted(choice: Json, meant: Any) -> None:
    """A lost choice lets the model answer in text where the client requires a call."""
    assert to_responses(tool_choice=choice)["tool_choice"] == meant


def test_text_and_images_share_a_message_and_tool_results_stand_alone() -> None:
    """The order of what the user says and what the tools answer is the order the model sees."""
    content = [
        {"type": "text", "text": "look"},
        PNG,
        {
            "type": "tool_result",
            "tool_use_id": "c",
            "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
        },
        {"type": "text", "text": "and?"},
    ]

    assert to_responses({"role": "user", "content": content})["input"] == [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "look"}, PNG_PART]},
        {"type": "function_call_output", "call_id": "c", "output": "1\n2"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and?"}]},
    ]


def test_a_tool_result_with_a_picture_keeps_it() -> None:
    """Coding agents read screenshots through their tools."""
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "see"}, PNG]}

    assert to_responses({"role": "user", "content": [result]})["input"][0]["output"] == [
        {"type": "input_text", "text": "see"},
        PNG_PART,
    ]


def test_an_assistant_message_becomes_reasoning_text_and_calls() -> None:
    """The history must reach the model complete, or the model repeats work it has done."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "é"}},
    ]

    assert to_responses({"role": "assistant", "content": content})["input"] == [
        {
            "type": "reasoning",
            "id": "rs_0",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "s",
        },
        output_message("ok"),
        function_call('{"a": "é"}'),
    ]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "user", "content": [{"type": "document", "source": {"type": "telepathy"}}]},
        {"role": "user", "content": [{"type": "image", "source": {**PNG["source"], "media_type": "image/tiff"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "hologram"}]}]},
        {"role": "assistant", "content": [PNG]},
    ],
)
def test_blocks_that_models_cannot_take_are_refused_with_their_position(message: Json) -> None:
    """A block that is dropped silently makes the model answer without the document."""
    with pytest.raises(NotImplementedError, match=r"messages\[0\].content\[0\].*cannot be expressed"):
        to_responses(message)


def test_a_system_message_inside_the_conversation_stays_where_it_is() -> None:
    """Moving a reminder to the start would change its meaning and the cached prompt."""
    message = {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}

    assert to_responses(message)["input"] == [{"type": "message", "role": "system", "content": "a\nb"}]


def test_arguments_too_deep_for_json_are_one_clear_error() -> None:
    """A RecursionError would end the server's request without saying which block is at fault."""
    deep: Json = {}
    for _ in range(20_000):
        deep = {"a": deep}

    with pytest.raises(ConversionError, match=r"content\[0\].input: cannot be written as JSON"):
        to_responses({"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": deep}]})


def test_an_error_about_deeply_nested_input_stays_readable() -> None:
    """Printing the value would itself overflow the stack and hide the error."""
    deep: Json = {}
    for _ in range(20_000):
        deep = {"a": deep}

    with pytest.raises(ConversionError, match="a deeply nested dict cannot be expressed"):
        to_responses({"role": "user", "content": [{"type": "image", "source": {"type": deep}}]})


def text_document(text: str) -> Json:
    return {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": text}}


def test_documents_search_results_and_images_reach_the_model() -> None:
    """A harness that reads a PDF or an image file sends these blocks; refusing them would end its rollout."""
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
    result = {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "found"}]}
    linked = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}

    (item,) = to_responses({"role": "user", "content": [pdf, text_document("body"), result, linked]})["input"]

    assert item["content"] == [
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBE"},
        {"type": "input_text", "text": "T"},
        {"type": "input_text", "text": "body"},
        {"type": "input_text", "text": "t\ns\nfound"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
    ]


def test_a_tool_result_keeps_its_text_and_its_images() -> None:
    """Text alone stays one string, which every endpoint accepts; an image needs parts."""
    reference = {"type": "tool_reference", "tool_name": "grep"}
    texts = {"type": "tool_result", "tool_use_id": "a", "content": [text_document("body"), reference]}
    image = {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "see"}, PNG]}

    first, second = to_responses({"role": "user", "content": [texts, image]})["input"]

    assert first["output"] == "T\nbody\ntool: grep"
    assert second["output"] == [{"type": "input_text", "text": "see"}, PNG_PART]


def test_redacted_thinking_is_kept_and_blocks_of_server_tools_are_left_out() -> None:
    """The ciphertext is for the endpoint that wrote it; a search that ran elsewhere is not part of a prompt here."""
    content = [{"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use", "id": "s", "name": "web_search"}]
    message = {"role": "assistant", "content": content}

    assert to_responses(message)["input"] == [
        {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "x"}
    ]
    assert options_lost_from_messages({"messages": [message]}) == ["messages: server_tool_use"]


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "new_path"),
        ("computer_20250124", "computer", "coordinate"),
    ],
)
def test_typed_tools_of_the_client_become_functions(kind: str, name: str, field: str) -> None:
    """The client runs them, so the model must know them; the calls have the name and fields that the client expects."""
    (function,) = to_responses(tools=[{"type": kind, "name": name, "display_width_px": 9, "display_height_px": 9}])[
        "tools"
    ]

    assert (function["type"], function["name"]) == ("function", name)
    assert field in function["parameters"]["properties"]


def test_tools_that_run_at_the_provider_are_left_out_and_listed() -> None:
    """Coding agents send them always; our models cannot run them, and the warning says so."""
    body = {"messages": [], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}

    assert "tools" not in to_responses(tools=body["tools"])
    assert options_lost_from_messages(body) == ["tools: web_search_20250305"]


def test_options_of_engines_and_of_the_output_are_converted() -> None:
    """They change the answer; dropping them would sample another distribution."""
    schema = {"type": "object"}
    body = {
        "messages": [],
        "top_k": 3,
        "stop_sequences": ["end"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        "thinking": {"type": "disabled"},
    }

    params, dropped = accepted_request(body, new_id=same_id)

    assert params == {
        "input": [],
        "top_k": 3,
        "stop": ["end"],
        "user": "u",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "output", "schema": schema, "strict": True}},
    }
    assert dropped == []
    beta = {"messages": [], "output_format": {"type": "json_schema", "schema": schema}}
    assert accepted_request(beta, new_id=same_id) == ({"input": [], "text": params["text"]}, [])


def test_options_without_a_counterpart_are_listed() -> None:
    """Clients always send some; they must not stop a rollout, but they must not vanish unseen either."""
    body = {"messages": [], "thinking": {"type": "adaptive"}, "top_k": 3, "stop_sequences": [], "metadata": None}

    assert options_lost_from_messages(body) == ["thinking", "top_k"]
    assert options_lost_in_messages({"store": True, "truncation": "auto", "include": []}) == ["store", "truncation"]


def test_a_response_becomes_a_message_with_the_requested_model_name() -> None:
    """Clients compare the model name with the one they configured."""
    reasoning = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]}
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8, "input_tokens_details": {"cached_tokens": None}}

    assert to_message(reasoning, output_message("ok"), function_call('{"a": 1}'), usage=usage, model="served") == {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "ok"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {**NO_CACHE, "input_tokens": 5, "output_tokens": 3},
    }


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"output": [output_message("x")], "status": "completed"}, "end_turn"),
        ({"output": [function_call()], "status": "completed"}, "tool_use"),
        (
            {
                "output": [function_call()],
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
            },
            "max_tokens",
        ),
        ({"output": [], "status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "refusal"),
        ({"output": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}, "refusal"),
    ],
)
def test_the_end_of_a_response_determines_the_stop_reason(response: Json, reason: str) -> None:
    """A coding agent decides by it whether to run a tool, continue or stop."""
    assert message_from_response(response, model="m", new_id=same_id)["stop_reason"] == reason


def test_cached_tokens_are_counted_apart() -> None:
    """Anthropic's input_tokens are only those that were not read from the cache."""
    usage = {"input_tokens": 5, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}

    counts = {**NO_CACHE, "input_tokens": 1, "output_tokens": 3, "cache_read_input_tokens": 4}
    assert to_message(usage=usage)["usage"] == counts


@pytest.mark.parametrize("arguments", ["{oops", "[1]", "5", '"text"', "null"])
def test_arguments_that_are_not_an_object_are_kept_unchanged(arguments: str) -> None:
    """A model's malformed call is the model's mistake: the rollout goes on and is graded."""
    message = to_message(function_call(arguments))

    assert response_from_message({}, message, model="m", now=1, new_id=same_id)["output"] == [function_call(arguments)]


@pytest.mark.parametrize(
    "output", [{"type": "custom_tool_call"}, {"role": "user", "content": "x"}, {"type": "function_call_output"}]
)
def test_items_that_do_not_belong_to_an_answer_are_refused(output: Json) -> None:
    """An item of another speaker would be shown to the client as words of the model."""
    with pytest.raises(ConversionError, match=r"output\[0\]"):
        to_message(output)


def test_a_call_of_a_tool_that_ran_at_the_provider_is_not_part_of_the_message() -> None:
    """The client cannot run it; the text that the model wrote with its result follows."""
    assert to_message({"type": "web_search_call"})["content"] == []


def test_a_failed_response_is_an_error() -> None:
    """An empty message would look to the client like an answer without content."""
    with pytest.raises(ConversionError, match="'failed' cannot be expressed"):
        to_message(status="failed")


def test_a_responses_request_becomes_a_messages_request() -> None:
    """A rollout against a Messages model must see the same conversation, tools and limits."""
    params = {
        "instructions": "a",
        "input": [
            {"role": "developer", "content": "b"},
            {"role": "user", "content": "q"},
            {"type": "reasoning", "id": "r", "summary": [{"text": "hm"}], "encrypted_content": "s"},
            function_call('{"x": 1}'),
            {"type": "function_call_output", "call_id": "c", "output": "42"},
            {"role": "user", "content": [{"type": "input_text", "text": "so?"}, PNG_PART]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": None, "strict": True}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1.0,
        "user": "u",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    }

    request = messages_request(params, model="claude", max_tokens=100, thinking=True, thinking_budget_tokens=50)

    assert request == {
        "model": "claude",
        "max_tokens": 100,
        "system": "a\n\nb",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": "42"},
                    {"type": "text", "text": "so?"},
                    PNG,
                ],
            },
        ],
        "temperature": 1.0,
        "metadata": {"user_id": "u"},
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        "tools": [{"name": "f", "input_schema": {"type": "object", "properties": {}}, "strict": True}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 50},
    }


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"input": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]}, r"input\[1\].*inside"),
        ({"input": [{"type": "reasoning", "summary": [{"text": "hm"}]}]}, r"input\[0\].*without a signature"),
        ({"input": [{"role": "user", "content": [{"type": "input_video", "video_url": "v"}]}]}, "input_video"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:x"}]}]}, "image_url"),
        ({"input": "x", "previous_response_id": "r"}, "previous_response_id"),
        ({"input": "x", "tools": [{"type": "namespace"}]}, r"tools\[0\].*namespace"),
        ({"input": "x", "tool_choice": "required"}, "no tools"),
        ({"input": "x", "text": {"format": {"type": "json_object"}}}, "json_object"),
    ],
)
def test_input_that_messages_cannot_express_is_located(params: Json, problem: str) -> None:
    """The provider's own error would come later and name none of our items."""
    with pytest.raises(ConversionError, match=problem):
        messages_request(params, model="m", max_tokens=1)


@pytest.mark.parametrize(
    ("thinking", "option"),
    [
        (None, None),
        (False, None),
        (True, {"type": "enabled", "budget_tokens": 9}),
        ("adaptive", {"type": "adaptive"}),
        ({"type": "enabled", "budget_tokens": 1}, {"type": "enabled", "budget_tokens": 1}),
    ],
)
def test_thinking_can_be_configured_in_every_form_of_the_api(thinking: Any, option: Json | None) -> None:
    """A config copied from the provider's documentation must work as it is."""
    assert thinking_option(thinking, 9) == option


@pytest.mark.parametrize(
    ("stop", "status", "details"),
    [
        ("end_turn", "completed", None),
        ("stop_sequence", "completed", None),
        ("max_tokens", "incomplete", {"reason": "max_output_tokens"}),
        ("model_context_window_exceeded", "incomplete", {"reason": "max_output_tokens"}),
        ("refusal", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_the_stop_reason_determines_the_status(stop: str, status: str, details: Json | None) -> None:
    """Metrics count truncated and refused answers by the status; a wrong one hides them."""
    message = {"content": [{"type": "text", "text": "x"}], "stop_reason": stop}

    response = response_from_message({"temperature": 0.2}, message, model="m", now=7, new_id=same_id)

    assert (response["status"], response["incomplete_details"]) == (status, details)
    assert (response["created_at"], response["temperature"], response["usage"]["total_tokens"]) == (7, 0.2, 0)


def test_a_paused_answer_is_refused() -> None:
    """The unfinished part would be graded as the whole answer."""
    with pytest.raises(ConversionError, match="pause_turn"):
        response_from_message({}, {"content": [], "stop_reason": "pause_turn"}, model="m", now=1, new_id=same_id)


def test_an_empty_answer_is_an_empty_message() -> None:
    """Without an item the turn would vanish, and graders would find no answer to score."""
    response = response_from_message({}, {"content": [], "stop_reason": "end_turn"}, model="m", now=1, new_id=same_id)

    assert response["output"] == [output_message("")]


def test_encrypted_reasoning_returns_to_the_model_unchanged() -> None:
    """A Messages model refuses a conversation whose thinking was altered."""
    blocks = [
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "text", "text": "x"},
    ]
    response = response_from_message({}, {"content": blocks}, model="m", now=1, new_id=same_id)

    request = messages_request({"input": response["output"]}, model="m", max_tokens=1)

    assert request["messages"] == [{"role": "assistant", "content": blocks}]


def test_encrypted_reasoning_survives_a_round_trip_through_a_client() -> None:
    """The client repeats the history in its next request; lost reasoning would change the prompt."""
    sealed = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "sealed"}

    blocks = to_message(sealed)["content"]

    assert blocks == [{"type": "thinking", "thinking": "", "signature": "sealed"}]
    assert to_responses({"role": "assistant", "content": blocks})["input"][0]["encrypted_content"] == "sealed"


some = st.text(alphabet="abc \né漢", min_size=1, max_size=6)
name = st.text(alphabet="fgh_", min_size=1, max_size=4)
values = st.dictionaries(name, st.integers() | some | st.lists(st.booleans(), max_size=2), max_size=2)
text_block = st.builds(lambda t: {"type": "text", "text": t}, some)
tool_use = st.builds(lambda i, n, v: {"type": "tool_use", "id": i, "name": n, "input": v}, some, name, values)
thinking = st.builds(lambda t, s: {"type": "thinking", "thinking": t, "signature": s}, some, some)
image = st.builds(
    lambda m, d: {"type": "image", "source": {"type": "base64", "media_type": m, "data": d}},
    st.sampled_from(["image/png", "image/jpeg", "image/gif", "image/webp"]),
    st.text(alphabet="AB+/=", max_size=4),
)
tool_result = st.builds(lambda i, c: {"type": "tool_result", "tool_use_id": i, "content": c}, some, some)
user = st.builds(
    lambda c: {"role": "user", "content": c}, st.lists(text_block | image | tool_result, min_size=1, max_size=3)
)
assistant_content = st.lists(text_block | tool_use | thinking, min_size=1, max_size=4)
assistant = st.builds(lambda c: {"role": "assistant", "content": c}, assistant_content)
messages_options = st.fixed_dictionaries(
    {"model": some, "max_tokens": st.integers(1, 9)},
    optional={"system": some, "temperature": st.floats(0, 1), "top_p": st.floats(0, 1)},
)
tooling = st.just({}) | st.fixed_dictionaries(
    {
        "tools": st.lists(
            st.fixed_dictionaries(
                {"name": name, "input_schema": st.just({"type": "object"})},
                optional={"description": some, "strict": st.just(True)},
            ),
            min_size=1,
            max_size=2,
        )
    },
    optional={
        "tool_choice": st.one_of(
            st.just({"type": "none"}),
            st.builds(
                lambda c, p: c | p,
                st.sampled_from([{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "f"}]),
                st.sampled_from([{}, {"disable_parallel_tool_use": True}]),
            ),
        )
    },
)


@given(st.lists(st.tuples(user, assistant), max_size=2), messages_options, tooling)
@law
def test_a_messages_request_comes_back_from_responses(
    turns: list[tuple[Json, Json]], options: Json, tools: Json
) -> None:
    """messages → responses → messages is the identity on what both dialects can say."""
    body = {**options, "messages": [message for turn in turns for message in turn], **tools}

    params = responses_request(body, new_id=same_id)

    assert messages_request(params, model=params["model"], max_tokens=0) == body


@given(assistant_content, st.sampled_from(["max_tokens", "refusal", None]), st.integers(0, 9), st.integers(1, 9))
@law
def test_a_message_comes_back_from_responses(content: list[Json], cut: str | None, fresh: int, cached: int) -> None:
    """messages → responses → messages, for answers."""
    calls = any(block["type"] == "tool_use" for block in content)
    message = {
        "id": "msg_0",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": cut or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {**NO_CACHE, "input_tokens": fresh, "output_tokens": 3, "cache_read_input_tokens": cached},
    }

    response = response_from_message({}, message, model="m", now=1, new_id=same_id)

    assert message_from_response(response, model="m", new_id=same_id) == {**message, "id": response["id"]}


items = st.lists(
    st.one_of(
        st.builds(lambda parts: output_message(*parts), st.lists(some, min_size=1, max_size=2)),
        st.builds(lambda v: function_call(json.dumps(v, ensure_ascii=False)), values),
        st.builds(
            lambda t, s: {
                "type": "reasoning",
                "id": "rs_0",
                "summary": [{"type": "summary_text", "text": t}],
                "encrypted_content": s,
            },
            some,
            some,
        ),
    ),
    min_size=1,
    max_size=4,
).filter(lambda turn: all(a["type"] != "message" or b["type"] != "message" for a, b in pairwise(turn)))


@given(items)
@law
def test_a_turn_of_a_model_comes_back_from_messages(output: list[Json]) -> None:
    """responses → messages → responses is the identity on what a model says in one turn."""
    message = message_from_response({"output": output}, model="m", new_id=same_id)

    assert response_from_message({}, message, model="m", now=1, new_id=same_id)["output"] == output
