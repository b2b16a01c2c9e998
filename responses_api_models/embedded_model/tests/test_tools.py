"""Tool calls for a template that knows no tools."""

import json

from responses_api_models.embedded_model.tools import (
    as_text,
    call_or_text_grammar,
    parse_call,
    tool_schema,
    with_tool_instructions,
)

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CLOCK = {"type": "function", "function": {"name": "get_time"}}


def test_a_call_is_one_of_the_tools_with_its_own_arguments() -> None:
    """The schema is what makes a small model's call parse at all."""
    schema = tool_schema([WEATHER, CLOCK])

    assert [call["properties"]["name"] for call in schema["anyOf"]] == [{"const": "get_weather"}, {"const": "get_time"}]


def test_a_named_tool_is_the_only_choice() -> None:
    """`tool_choice` with a name leaves nothing to choose."""
    assert tool_schema([WEATHER, CLOCK], "get_time")["properties"]["name"] == {"const": "get_time"}


def test_a_call_is_parsed_with_or_without_its_tags() -> None:
    """Required calls come bare, optional ones between tags."""
    bare = json.dumps({"name": "get_time", "arguments": {"zone": "utc"}})

    assert parse_call(bare) == parse_call(f"<tool_call>{bare}</tool_call>") == ("get_time", '{"zone": "utc"}')


def test_text_is_not_a_call() -> None:
    """Half a call, a list or a sentence stays text."""
    assert [parse_call(text) for text in ("It is cold.", "[1]", '{"name": 3, "arguments": {}}', '{"name"')] == [
        None
    ] * 4


def test_earlier_calls_and_results_are_told_in_words() -> None:
    """The template knows system, user and assistant only."""
    call = {"id": "c", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    asked = as_text({"role": "assistant", "content": None, "tool_calls": [call]})
    told = as_text({"role": "tool", "tool_call_id": "c", "content": "noon"})

    assert asked == {"role": "assistant", "content": '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'}
    assert told == {"role": "user", "content": "<tool_response>noon</tool_response>"}


def test_the_tools_join_the_system_message() -> None:
    """What the author said first stays first."""
    (first, second) = with_tool_instructions(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}], [CLOCK]
    )

    assert first["content"].startswith("Be brief.\n\nYou may call")
    assert second == {"role": "user", "content": "hi"}


def test_the_grammar_allows_text_or_one_call() -> None:
    """With `auto` the model may also just answer."""
    grammar = call_or_text_grammar("root ::= object\nobject ::= [a]")

    assert grammar.splitlines()[0] == 'root ::= "<tool_call>" call "</tool_call>" | [^<] text'
    assert "call ::= object" in grammar
