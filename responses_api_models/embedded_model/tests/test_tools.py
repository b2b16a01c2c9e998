"""Tool calls for a chat template without tool support."""

import json

import pytest
from fastapi import HTTPException

from responses_api_models.embedded_model.tools import (
    as_text,
    call_or_text_grammar,
    chosen_tools,
    parse_call,
    tool_schema,
    with_tool_instructions,
)

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "get_time"}}


def test_a_call_is_one_of_the_tools_with_its_own_arguments() -> None:
    """Without the schema, the call of a small model does not parse."""
    schema = tool_schema([WEATHER, CLOCK])

    assert [call["properties"]["name"] for call in schema["anyOf"]] == [{"const": "get_weather"}, {"const": "get_time"}]


ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}


@pytest.mark.parametrize(
    ("choice", "names", "must"),
    [
        (None, ["get_weather", "get_time"], False),
        ("auto", ["get_weather", "get_time"], False),
        ("required", ["get_weather", "get_time"], True),
        ("none", [], False),
        ({"type": "function", "function": {"name": "get_time"}}, ["get_time"], True),
        ({"type": "allowed_tools", "allowed_tools": ALLOWED}, ["get_time"], False),
        ({"type": "allowed_tools", "allowed_tools": {**ALLOWED, "mode": "required"}}, ["get_time"], True),
    ],
)
def test_tool_choice_selects_the_tools(choice, names, must):
    """Callers use every form of the API."""
    tools, must_call = chosen_tools({"tools": [WEATHER, CLOCK], "tool_choice": choice})

    assert ([tool["function"]["name"] for tool in tools], must_call) == (names, must)


@pytest.mark.parametrize(
    "chat",
    [
        {"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
        {"tools": [{"type": "custom", "custom": {"name": "shell"}}]},
    ],
    ids=["unknown name", "custom tool"],
)
def test_an_impossible_tool_choice_is_refused(chat):
    """A clear 400 is better than a grammar that matches nothing."""
    with pytest.raises(HTTPException) as refusal:
        chosen_tools(chat)

    assert refusal.value.status_code == 400


def test_content_other_than_text_is_refused():
    """A silently dropped picture would change the question."""
    with pytest.raises(HTTPException, match="text only"):
        as_text({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]})


def test_invalid_arguments_of_an_earlier_call_are_kept():
    """Conversations of other models contain invalid JSON."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": '}}

    assert '{\\"a\\": ' in as_text({"role": "assistant", "content": None, "tool_calls": [call]})["content"]


def test_a_call_is_parsed_with_or_without_its_tags() -> None:
    """Required calls have no tags, optional ones do."""
    bare = json.dumps({"name": "get_time", "arguments": {"zone": "utc"}})

    assert parse_call(bare) == parse_call(f"<tool_call>{bare}</tool_call>") == ("get_time", '{"zone": "utc"}')


def test_text_is_not_a_call() -> None:
    """Text that looks like a call must not be run."""
    assert [parse_call(text) for text in ("It is cold.", "[1]", '{"name": 3, "arguments": {}}', '{"name"')] == [
        None
    ] * 4


def test_earlier_calls_and_results_become_text() -> None:
    """The template supports only system, user and assistant."""
    call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    call_text = as_text({"role": "assistant", "content": None, "tool_calls": [call]})
    result_text = as_text({"role": "tool", "tool_call_id": "c", "content": "noon"})

    assert call_text == {"role": "assistant", "content": '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'}
    assert result_text == {"role": "user", "content": "<tool_response>noon</tool_response>"}


def test_the_tools_join_the_system_message() -> None:
    """The instructions of the author must stay first."""
    (first, second) = with_tool_instructions(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], [CLOCK]
    )

    assert first["content"].startswith("Be brief.\n\nYou may call")
    assert second == {"role": "user", "content": "hi"}


def test_the_grammar_allows_text_or_one_call() -> None:
    """With `auto` the model may reply with text or a call."""
    grammar = call_or_text_grammar({"type": "object"}).splitlines()

    assert "start: call | TEXT" in grammar
    assert 'call: "<tool_call>" body "</tool_call>"' in grammar
    assert 'body: %json {"type": "object"}' in grammar
