"""What a model wrote can always be sent, stored and read again."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from nemo_gym.journal import parse_line
from nemo_gym.wire.call_reply import (
    MAX_ARGUMENT_DEPTH,
    encode_json,
    encode_model,
    parse_lenient_json,
    parse_tool_arguments,
)

odd_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(10**300, 10**420)
    | st.floats()
    | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=[])), inner),
    max_leaves=8,
)


class Verdict(BaseModel):
    extracted: Any


@given(odd_json)
def test_arguments_that_are_accepted_can_be_sent(value: Any) -> None:
    """Otherwise the encoder fails in the agent, and the model's mistake becomes a failure of the agent."""
    text = json.dumps({"a": value})
    try:
        arguments = parse_tool_arguments(text)
    except ValueError:
        return

    assert orjson.loads(encode_json(arguments)) == orjson.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": "\\ud9ab"}', '{"\\udfff": 1}', '{"a": 1e309}', '{"a": NaN}', '{"a": [Infinity]}', "[1]", '"x"', "nul"),
        *('{"a": -1' + "0" * 309 + "}", '{"a": ' + "[" * 100 + "]" * 100 + "}", "[" * 10_000, '{"a": "\ud9ab"}'),
    ],
)
def test_arguments_that_cannot_be_sent_are_an_error_for_the_model(text: str) -> None:
    """The message is part of the conversation, so it is one line of text that can itself be sent."""
    with pytest.raises(ValueError, match=r"^[ -~]+$") as error:
        parse_tool_arguments(text)

    assert type(error.value) is ValueError


def test_ordinary_arguments_stay_exact() -> None:
    """Large identifiers must not become floats, and deep but sendable arguments pass."""
    deep = '{"a": ' + "[" * (MAX_ARGUMENT_DEPTH - 1) + "]" * (MAX_ARGUMENT_DEPTH - 1) + "}"

    assert parse_tool_arguments('{"id": 123456789012345678901234567890}') == {"id": 123456789012345678901234567890}
    assert parse_tool_arguments("") == {}
    assert parse_tool_arguments(deep)
    assert parse_tool_arguments('{"a": [' + "{}," * 500 + "{}]}")


@given(st.text(st.characters(exclude_categories=[])))
def test_half_a_character_in_a_verdict_can_be_stored(text: str) -> None:
    """Verifiers return what they extracted; the rollout must not fail while it is encoded."""
    clean = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)

    assert orjson.loads(encode_model(Verdict(extracted=text))) == {"extracted": clean}
    assert orjson.loads(encode_json({"extracted": [text]})) == {"extracted": [clean]}


@given(odd_json)
def test_a_line_of_another_tool_reads_as_strict_json(value: Any) -> None:
    """The viewer, exports and resume encode again what they read."""
    line = json.dumps({"a": value}).encode()

    row = parse_line(line)

    assert row == parse_lenient_json(line) or row == orjson.loads(line)
    assert orjson.loads(orjson.dumps(row)) == row
