"""Which failure an exception is, and whose."""

import orjson
import pytest
from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.errors import (
    AgentFailed,
    CircuitOpen,
    DeadlineExceeded,
    EnvFailed,
    ModelAnswerTooLarge,
    ModelFailed,
    ServerUnreachable,
)
from nemo_gym.rollouts.attribution import classify_error
from nemo_gym.transport.deadlines import ModelCallTimeout
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER, UPSTREAM_STATUS_HEADER

TYPES = {"m": "responses_api_models", "r": "resources_servers", "a": "responses_api_agents"}


def status_error(
    status: int,
    body: object = "",
    whom: str | None = None,
    cause: str | None = None,
    upstream: int | None = None,
    path: str | None = None,
) -> ClientResponseError:
    headers = {
        FAILED_HEADER: whom,
        ERROR_HEADER: cause,
        UPSTREAM_STATUS_HEADER: upstream and str(upstream),
        FAILED_PATH_HEADER: path,
    }
    info = RequestInfo(URL("http://h:1/run"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://h:1/run"))
    error = ClientResponseError(info, (), status=status, headers=CIMultiDict({k: v for k, v in headers.items() if v}))
    error.response_content = orjson.dumps(body)
    return error


def classify(error):
    failure = classify_error(error, "a", TYPES.get)
    return failure.kind, failure.phase, failure.server, failure.retryable


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ServerUnreachable("no answer", where="a"), ("server_died", "dispatch", "a", True)),
        (CircuitOpen("resting", where="a"), ("server_died", "dispatch", "a", True)),
        (ConnectionResetError("reset"), ("server_died", "dispatch", "a", True)),
        (DeadlineExceeded("too slow", where="a"), ("timeout", "dispatch", "a", True)),
        (TimeoutError(), ("timeout", "dispatch", "a", True)),
        (ModelFailed("no", where="m"), ("model_refused", "model", "m", True)),
        (EnvFailed("no", where="r"), ("verifier_error", "environment", "r", True)),
        (AgentFailed("no"), ("agent_error", "agent", "a", True)),
        (status_error(500, "boom"), ("agent_error", "agent", "a", True)),
        (status_error(500, "boom", whom="r"), ("verifier_error", "environment", "r", True)),
        (status_error(500, "boom", whom="r", path="/verify"), ("verifier_error", "verify", "r", True)),
        (status_error(500, "boom", whom="r", path="/get_weather"), ("tool_error", "environment", "r", True)),
        (status_error(500, "boom", whom="r", path="/seed_session"), ("tool_error", "environment", "r", True)),
        (status_error(422, "no", whom="r", path="/verify"), ("verifier_error", "verify", "r", False)),
        (status_error(500, "boom", whom="m"), ("model_refused", "model", "m", True)),
        (status_error(500, whom="m", cause="ServerUnreachable"), ("model_unreachable", "model", "m", True)),
        (status_error(500, whom="m", cause="CircuitOpen"), ("model_unreachable", "model", "m", True)),
        (status_error(500, whom="r", cause="ServerUnreachable"), ("server_died", "environment", "r", True)),
        (status_error(500, "ServerUnreachable", whom="r"), ("verifier_error", "environment", "r", True)),
        (status_error(500, whom="m", cause="ValidationError"), ("model_bad_reply", "model", "m", True)),
        (status_error(500, whom="m", cause="ModelFailed"), ("model_bad_reply", "model", "m", True)),
        (status_error(500, whom="m", cause="ModelAnswerTooLarge"), ("model_answer_too_large", "model", "m", False)),
        (ModelAnswerTooLarge("long", where="m"), ("model_answer_too_large", "model", "m", False)),
        (ResponseTooLong("long"), ("agent_error", "agent", "a", False)),
        (status_error(500, whom="m", upstream=429), ("rate_limited", "model", "m", True)),
        (status_error(500, whom="m", upstream=401), ("model_refused", "model", "m", True)),
        (status_error(500, whom="m", upstream=404), ("model_refused", "model", "m", True)),
        (status_error(500, whom="m", upstream=413), ("model_refused", "model", "m", False)),
        (status_error(500, whom="m", upstream=504), ("timeout", "model", "m", True)),
        (status_error(504, "late", whom="m"), ("timeout", "model", "m", True)),
        (status_error(429), ("rate_limited", "agent", "a", True)),
        (status_error(422, {"detail": []}), ("agent_error", "agent", "a", False)),
        (status_error(500, "boom", whom="stranger"), ("agent_error", "agent", "stranger", True)),
        (ZeroDivisionError("ours"), ("internal", "dispatch", "collector", True)),
    ],
    ids=repr,
)
def test_a_failure_has_a_kind_a_phase_and_somebody_it_belongs_to(error, expected):
    """'The model was down' and 'the verifier crashed' ask for different people."""
    assert classify(error) == expected


def test_an_answer_that_is_not_json_is_the_agents_failure():
    """The collector is not at fault for a broken agent."""
    with pytest.raises(orjson.JSONDecodeError) as caught:
        orjson.loads(b"<html>")

    assert classify(caught.value)[:3] == ("agent_error", "agent", "a")


def test_the_body_of_the_error_is_in_the_message():
    """The cause is often only in the body."""
    assert "answered 500: boom" in classify_error(status_error(500, "boom"), "a", TYPES.get).message


def test_the_message_begins_with_the_cause_not_with_the_agent_that_reports_it():
    """In a table of failures, a hundred lines that begin with `/run of a answered 500` look alike."""
    error = status_error(500, "r: ended before it answered", "r", "ServerUnreachable")

    failure = classify_error(error, "a", TYPES.get)

    assert (failure.server, failure.message) == ("r", "ended before it answered")


@pytest.mark.parametrize(
    ("error", "which"),
    [
        (DeadlineExceeded("late", where="a"), "request"),
        (ModelCallTimeout("late", where="m"), "model_call"),
        (status_error(504, whom="m", cause="ModelCallTimeout"), "model_call"),
        (status_error(504, whom="m", cause="DeadlineExceeded"), "model_call"),
        (status_error(504, whom="r", cause="VerifyTimeout"), "verify"),
        (status_error(504, whom="r", cause="ToolCallTimeout"), "tool_call"),
        (status_error(504, whom="r", cause="DeadlineExceeded", path="/verify"), "verify"),
        (status_error(504, whom="a", cause="DeadlineExceeded"), "request"),
    ],
    ids=repr,
)
def test_a_timeout_names_the_deadline_that_passed(error, which):
    """'Timed out' alone sends people to raise the wrong one of five numbers."""
    failure = classify_error(error, "a", TYPES.get)

    assert (failure.kind, failure.deadline_name) == ("timeout", which)


def test_a_model_only_the_verifier_calls_is_a_judge():
    """The policy was fine: the rollout can be verified again instead of played again."""
    error = status_error(500, whom="m", cause="ServerUnreachable")

    failure = classify_error(error, "a", TYPES.get, judges={"m"})

    assert (failure.kind, failure.phase, failure.server) == ("judge_failed", "verify", "m")


def test_a_judge_whose_answer_is_too_large_is_not_asked_again():
    """The next answer would be as long, and it is paid for as well."""
    error = status_error(500, whom="m", cause="ModelAnswerTooLarge")

    failure = classify_error(error, "a", TYPES.get, judges={"m"})

    assert (failure.kind, failure.retryable) == ("judge_failed", False)


@pytest.mark.parametrize(
    ("server", "path", "text"),
    [
        ("r", "/verify", "/verify refuses the row (422): expected_answer: Field required"),
        ("r", "/seed_session", "/seed_session refuses the row (422): expected_answer: Field required"),
        (None, None, "/run of a refuses the row (422): expected_answer: Field required"),
        ("r", "/get_weather", "/get_weather answered 422: expected_answer: Field required"),
        ("m", "/v1/responses", "/v1/responses answered 422: expected_answer: Field required"),
    ],
)
def test_a_row_that_lacks_a_field_is_named_without_json(server, path, text):
    """The answer repeats the whole request; what the user needs is the field, and that the row is at fault."""
    problem = {"type": "missing", "loc": ["body", "expected_answer"], "msg": "Field required", "input": {"a": 1}}

    failure = classify_error(status_error(422, {"detail": [problem]}, whom=server, path=path), "a", TYPES.get)

    assert failure.message == text


def test_a_response_that_the_verifier_cannot_read_is_not_the_row() -> None:
    """`/verify` gets both; the response is the agent's, and editing the row changes nothing."""
    problem = {"type": "missing", "loc": ["body", "response", "output"], "msg": "Field required", "input": {}}

    failure = classify_error(status_error(422, {"detail": [problem]}, whom="r", path="/verify"), "a", TYPES.get)

    assert failure.message == "/verify answered 422: response.output: Field required"
