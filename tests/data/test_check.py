"""The quick check accepts exactly what the wire types accept, and the slow one says why not."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.data import check
from nemo_gym.data.check import RowChecker, problems_of, separators
from nemo_gym.wire.tasks import BaseRunRequest

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = (
    "responses_create_params.tools[*].function: a Chat Completions tool — "
    "here name, description and parameters stand beside type"
)
ODD = st.sampled_from([None, 1, "x", [], {}, ["x"], {"type": "message"}, True, 0.5])
TEXTS = st.text(max_size=3)
ITEMS = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", 3]), "content": TEXTS | ODD},
        optional={"type": st.sampled_from(["message", "text"]), "id": TEXTS, "status": st.just("completed")},
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": TEXTS, "name": TEXTS, "arguments": TEXTS | ODD},
        optional={"id": TEXTS | ODD, "role": st.just("user")},
    ),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": TEXTS, "output": TEXTS | ODD}),
    st.fixed_dictionaries({"id": TEXTS, "summary": st.just([])}),
    ODD,
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "input": TEXTS | st.lists(ITEMS, max_size=3) | ODD,
        "temperature": st.floats(0, 2) | ODD,
        "top_p": st.just("0.5"),
        "max_output_tokens": st.integers(1, 9) | ODD,
        "tools": st.just([TOOL]) | st.just([{**TOOL, "name": 3}]) | ODD,
        "tool_choice": st.sampled_from(["auto", "sometimes"]),
        "metadata": st.dictionaries(TEXTS, TEXTS, max_size=1) | ODD,
        "unheard_of": ODD,
    },
)
ROWS = st.fixed_dictionaries({}, optional={"responses_create_params": PARAMS | ODD, "answer": ODD})


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_what_is_accepted_is_what_the_servers_accept(rows):
    """A row that passes here and fails at the first request was not checked."""
    checker = RowChecker()

    for row in [*rows, *rows]:
        try:
            BaseRunRequest.model_validate(row)
        except ValidationError:
            assert checker.accepted(row) is None
            assert problems_of(row)
        else:
            assert checker.accepted(row) is not None
            assert not problems_of(row)


def test_values_are_those_the_wire_types_make_of_them():
    """A temperature written as text is a temperature."""
    request = RowChecker().accepted({"responses_create_params": {"input": "x", "temperature": "0.5", "tools": [TOOL]}})

    assert request is not None
    assert request.settings.values["temperature"] == 0.5
    assert request.settings.values["tools"] == [TOOL]


def test_more_settings_than_are_remembered_change_nothing(monkeypatch):
    """Files whose rows each have their own metadata are checked like any other."""
    monkeypatch.setattr(check, "MOST_SETTINGS", 3)
    checker = RowChecker()
    rows = [{"responses_create_params": {"input": "x", "metadata": {"n": str(n % 7)}}} for n in range(40)]

    assert all(checker.accepted(row) is not None for row in rows)
    assert checker.accepted({"responses_create_params": {"input": "x", "metadata": {"n": 1}}}) is None


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({}, "responses_create_params: field required"),
        ({"responses_create_params": []}, "responses_create_params: should be an object"),
        ({"responses_create_params": {}}, "responses_create_params.input: field required"),
        (
            {"responses_create_params": {"input": "x", "temprature": 1}},
            "responses_create_params.temprature: not a field of the Responses API — did you mean 'temperature'?",
        ),
        (
            {"responses_create_params": {"input": "x", "messages": []}},
            "responses_create_params.messages: not a field of the Responses API — it is called 'input' there",
        ),
        (
            {"responses_create_params": {"input": "x", "temperature": "hot"}},
            "responses_create_params.temperature: should be a valid number, unable to parse string as a number",
        ),
        (
            {"responses_create_params": {"input": [{"role": "user", "content": "a"}, {"role": "usr", "content": "a"}]}},
            "responses_create_params.input[*].role: should be 'user', 'assistant', 'system' or 'developer'",
        ),
        (
            {"responses_create_params": {"input": [{"role": "user"}]}},
            "responses_create_params.input[*].content: field required",
        ),
        ({"responses_create_params": {"input": [3]}}, "responses_create_params.input[*]: an item must be an object"),
        (
            {"responses_create_params": {"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}},
            CHAT_TOOL,
        ),
        (
            {"responses_create_params": {"input": "x", "tools": [{**TOOL, "paramters": {}}]}},
            "responses_create_params.tools[*].paramters: unknown field",
        ),
        (
            {"responses_create_params": {"input": "x", "tools": [{"type": "function"}]}},
            "responses_create_params.tools[*].name: field required",
        ),
        ({"responses_create_params": {"input": "x", "tools": [{}]}}, "responses_create_params.tools[*]: has no type"),
    ],
)
def test_a_refused_row_is_told_the_field_and_the_reason(row, told):
    """In the words of the data, without the names of our classes."""
    assert told in [str(problem) for problem in problems_of(row)]


def test_an_unknown_kind_of_part_names_those_there_are():
    """The nearest one is usually what was meant."""
    row = {"responses_create_params": {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}}

    (problem,) = problems_of(row)

    assert str(problem).startswith(
        "responses_create_params.input[*].content[*]: unknown type 'text': there are 'input_"
    )


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.just("a"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
        max_leaves=8,
    )
)
def test_separators_are_those_json_writes(value):
    """The number of words is counted from them."""
    text = json.dumps(value)

    assert separators(value) == text.count(", ") + text.count(": ")
