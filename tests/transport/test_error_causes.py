"""One cause, once: the words of the servers in between are no help to the user."""

import json

import pytest

from nemo_gym.transport.error_causes import innermost_cause

REFUSAL = {
    "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
}


INVALID_FIELD = {
    "type": "missing",
    "loc": ["body", "expected_answer"],
    "msg": "Field required",
    "input": {"question": 'a "loc": ["x"], "msg": "y" of a model'},
}
UNION = ("str", "list[str]")
"""Pydantic names the alternatives of a field of the type `str | list[str]`."""


def pass_on(text: str, server: str) -> str:
    """Return the text of a server that passes an error on, as the next server reads it."""
    return json.dumps(f"Hit an exception in {server} calling an inner server: {text}")


def test_line_breaks_that_a_model_repeats_cost_no_time() -> None:
    """The driver reads each error on its event loop; a pattern with two repeats of space takes hours for this text."""
    answer = "a" + "\n" * 30_000 + "b"

    assert innermost_cause(json.dumps(repr(ValueError(answer)))) == f"ValueError: {answer}"


@pytest.mark.parametrize(
    "part", ['"loc":[', '"loc":["a"],"msg":"', '"loc": [] ', '"loc":["a", ', '"loc":["]', "[" * 500]
)
def test_an_answer_422_is_searched_in_linear_time(part: str) -> None:
    """It repeats the request, in which a model may have written anything of any length."""
    text = '{"detail":[' + part * (200_000 // len(part))

    cause = innermost_cause(text)

    assert cause == text.strip() or cause.endswith(" more"), "hours instead of milliseconds if it were quadratic"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (json.dumps(REFUSAL), "Incorrect API key provided (invalid_api_key)"),
        (json.dumps({"detail": "Not Found"}), "Not Found"),
        (json.dumps({"error": "overloaded"}), "overloaded"),
        ("<html>", "<html>"),
        ("the answer is no Response\n  try: check the address", "the answer is no Response; check the address"),
        (json.dumps("ModelFailed('policy_model: the answer is not JSON')"), "policy_model: the answer is not JSON"),
        (json.dumps("ZeroDivisionError('division by zero')"), "ZeroDivisionError: division by zero"),
        ('{"error": {"message": "cut off', '{"error": {"message": "cut off'),
        (json.dumps([1]), "[1]"),
        (json.dumps({"detail": [INVALID_FIELD]}), "expected_answer: Field required"),
        (json.dumps({"detail": [INVALID_FIELD | {"loc": ["path", "id"]}]}), "path.id: Field required"),
        (
            json.dumps({"detail": [INVALID_FIELD | {"loc": ["body", "expected", name]} for name in UNION]}),
            "expected.str: Field required; expected.list[str]: Field required",
        ),
        (
            json.dumps({"detail": [{"input": {"loc": ["a"], "b": 1}} | INVALID_FIELD]}),
            "expected_answer: Field required",
        ),
        (json.dumps({"detail": [INVALID_FIELD | {"loc": []}] * 7}), "; ".join(["Field required"] * 5) + "; 2 more"),
        ('{"detail":[' + json.dumps(INVALID_FIELD) + ',{"type":"mis', "expected_answer: Field required"),
        ('{"detail": [{"loc": ["body"], "msg": "cut', '{"detail": [{"loc": ["body"], "msg": "cut'),
        (json.dumps({"detail": [1]}), json.dumps({"detail": [1]})),
        ("", ""),
    ],
)
@pytest.mark.parametrize("depth", range(4))
def test_the_cause_is_the_same_at_any_depth(text, cause, depth):
    """An agent may call an agent that calls a model: the report says the same as for a direct call."""
    for server in ("policy_model", "agent", "outer_agent")[:depth]:
        text = pass_on(text, server)

    assert innermost_cause(text) == cause
