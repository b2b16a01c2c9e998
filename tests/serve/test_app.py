"""The app: strict JSON, 422 without secrets, liveness."""

import json
import logging
import time

import pytest
from fastapi import Request
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from nemo_gym.serve import endpoints
from nemo_gym.serve.app import add_liveness, create_app
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.validation_problems import MAX_PROBLEMS
from nemo_gym.transport.large_bodies import limits


class Task(BaseModel):
    number: int
    extra: object = None
    api_key: str = ""

    @field_validator("number")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 13:
            raise ValueError("unlucky")
        return value


class Wide(BaseModel):
    """Many problems that all show the same input: one for every missing field."""

    one: int
    two: int
    numbers: list[int]
    names: dict[str, int] = {}


def client() -> TestClient:
    app = create_app()

    @app.post("/wide")
    async def wide(body: Wide) -> Wide:
        return body

    @app.post("/wide/{kind}")
    async def wide_of_kind(kind: str, body: Wide) -> Wide:
        return body

    @app.post("/wrong_answer")
    async def answer_wrongly(body: dict[str, object]) -> Wide:
        return body  # type: ignore[return-value]

    @app.post("/task")
    async def task(body: Task) -> Task:
        return body

    @app.post("/task/{kind}")
    async def task_of_kind(kind: str, body: Task) -> Task:
        """Takes FastAPI's general way because of its path parameter."""
        return body

    @app.post("/plain")
    async def read_plain(request: Request):
        return {"number": await request.json(), "nan": float("nan"), "big": 2**70}

    app.add_middleware(FailureMiddleware, server_name="env")
    return TestClient(app)


JSON = {"content-type": "application/json"}
BAD_BODIES = {
    "nested too deeply": b"[" * 100_000,
    "nested objects": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "deep but closed": b'{"number":1,"extra":' + b"[" * 300 + b"]" * 300 + b"}",
    "broken UTF-8": b'{"number": 1, "extra": "\xff\xfe"}',
    "NaN": b'{"number": NaN}',
    "infinity": b'{"number": 1, "extra": -Infinity}',
    "lone surrogate": b'{"number": 1, "extra": "\\ud800"}',
    "number too long": b'{"number": ' + b"9" * 5_000 + b"}",
    "cut off": b'{"number": 1',
    "nothing": b"",
    "null": b"null",
    "a list": b"[1]",
    "wrong type": b'{"number": "x"}',
    "not lucky": b'{"number": 13}',
}


@pytest.mark.parametrize("path", ["/task", "/task/any"])
@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_a_bad_body_is_a_clear_4xx_on_both_ways(path, body):
    """Models write the arguments of tools; whatever they write must not become a traceback."""
    answer = client().post(path, content=body, headers=JSON)

    assert answer.status_code in (400, 422)
    detail = answer.json()["detail"]
    assert all({"type", "loc", "msg"} <= problem.keys() for problem in detail)


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_both_ways_through_fastapi_say_the_same(body):
    """The direct way is an optimisation, so no client may notice it."""
    direct, general = (client().post(path, content=body, headers=JSON) for path in ("/task", "/task/any"))

    assert (direct.status_code, direct.json()) == (general.status_code, general.json())


def test_a_body_that_is_too_large_is_refused(monkeypatch):
    """One huge request would otherwise use up the memory of all rollouts of the server."""
    monkeypatch.setattr(limits, "body", 1000)

    for path in ("/task", "/task/any"):
        answer = client().post(path, content=b'{"number": 1, "extra": "' + b"x" * 2000 + b'"}', headers=JSON)
        assert answer.status_code == 413
        assert "1000 bytes" in answer.json()["detail"]


def test_integers_keep_their_value_beyond_64_bits():
    """orjson would turn them into floats; a number theory task would be graded wrong."""
    number = 2**80 + 1

    assert client().post("/task", content=json.dumps({"number": 1, "extra": number})).status_code == 422
    answer = client().post("/task", content=json.dumps({"number": 1, "extra": number}), headers=JSON)
    assert answer.json()["extra"] == number


def test_answers_without_a_model_cope_with_nan_and_huge_numbers():
    """Plain dictionaries of authors contain such values; a 500 would lose the rollout."""
    answer = client().post("/plain", json=7)

    assert answer.status_code == 200
    assert answer.json()["big"] == 2**70


def test_a_validation_error_shows_the_problem_but_no_secret(caplog):
    """422 answers and logs end up in issue reports."""
    with caplog.at_level(logging.WARNING):
        answer = client().post("/task", json={"number": "x", "api_key": ["sk-secret-1"]})
        missing = client().post("/task", json={"api_key": "sk-secret-1", "max_output_tokens": 5})

    assert answer.status_code == missing.status_code == 422
    assert "sk-secret-1" not in answer.text + missing.text + caplog.text
    assert missing.json()["detail"][0]["input"]["max_output_tokens"] == 5
    assert "body.number" in caplog.text


LONG_BODIES = {
    "one large input for several problems": {"text": "x" * 500_000, "items": [{"a": 1}] * 50_000},
    "many problems": {"one": 1, "two": 2, "numbers": ["no"] * 100_000},
    "long key": {"one": 1, "two": 2, "numbers": [], "names": {"k" * 300_000: "no"}},
    "long keys": {"one": 1, "two": 2, "numbers": [], "names": {f"{n}" + "k" * 30_000: "no" for n in range(30)}},
    "long number text": {"one": "7" * 100_000 + "x", "two": 2, "numbers": []},
    "deep": {"one": json.loads("[" * 180 + "]" * 180), "two": {"a": [["b"] * 9000] * 90}, "numbers": []},
}


@pytest.mark.parametrize("path", ["/wide", "/wide/any"])
@pytest.mark.parametrize("body", LONG_BODIES.values(), ids=LONG_BODIES.keys())
def test_an_answer_to_an_invalid_request_is_short_whatever_the_request_contains(path, body, caplog):
    """200 MB of mistakes were echoed as 629 MB, and one megabyte blocked all servers of a cell for four seconds."""
    encoded, start = json.dumps(body).encode(), time.process_time()

    answer = client().post(path, content=encoded, headers=JSON)

    assert answer.status_code == 422
    assert time.process_time() - start < 5  # the general way builds a dictionary for each of 100,000 problems
    assert len(answer.content) < 100_000
    assert len(caplog.text) < 100_000
    assert len(answer.json()["detail"]) <= MAX_PROBLEMS + 1
    assert all({"type", "loc", "msg"} <= problem.keys() for problem in answer.json()["detail"])


@pytest.mark.parametrize("path", ["/wide", "/wide/any"])
def test_problems_that_are_not_listed_are_counted(path):
    """The reader must know that the list is not complete."""
    body = {"one": 1, "two": 2, "numbers": ["no"] * 2500}

    problems = client().post(path, json=body).json()["detail"]

    assert problems[0]["loc"] == ["body", "numbers", 0]
    assert problems[-1] == {"type": "more_problems", "loc": ["body"], "msg": "2,480 more problems are not listed"}


def test_a_short_input_is_echoed_completely():
    """The common mistake, a wrong field in a small request, is explained by the request itself."""
    body = {"one": 1, "numbers": [1, None, 2.5, True], "names": {"a": {"b": []}}, "note": "ü" * 500}

    problems = client().post("/wide", json=body).json()["detail"]

    assert [problem["input"] for problem in problems if problem["loc"] == ["body", "two"]] == [body]


def test_an_answer_of_a_handler_that_does_not_validate_is_short_too(caplog):
    """The error of the server's own answer repeated that answer once for each problem."""
    answer = client().post("/wrong_answer", json=LONG_BODIES["one large input for several problems"])

    assert answer.status_code == 500
    assert len(answer.content) < 100_000
    assert len(caplog.text) < 200_000


ONE_CLIENT = client()


@given(st.binary(max_size=60))
@settings(max_examples=60, deadline=None)
def test_no_bytes_whatsoever_are_a_500(body: bytes):
    """A malformed request is the caller's mistake and must be reported as such, not as a server fault."""
    assert ONE_CLIENT.post("/task", content=body, headers=JSON).status_code in (200, 400, 422)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
@settings(max_examples=80, deadline=None)
def test_strict_parsing_reads_what_the_standard_library_writes(value):
    """Clients write JSON with the standard library; no value may change on the way."""
    assert endpoints.parse_json(json.dumps(value).encode()) == value
    assert json.loads(endpoints.json_bytes(value)) == value


def test_liveness_is_answered_once_and_is_no_part_of_the_api():
    """Start-up polls this path, and tools generated from the API schema must not contain it."""
    app = create_app()
    add_liveness(app)
    add_liveness(app)
    client = TestClient(app)

    assert client.get("/").json() == {"status": "ok"}
    assert "/" not in client.get("/openapi.json").json()["paths"]
    assert sum(getattr(route, "path", "") == "/" for route in app.router.routes) == 1


def test_a_servers_own_front_page_stays():
    """A folder that serves something at `/` was there first."""
    app = create_app()

    @app.get("/")
    async def own() -> str:
        return "mine"

    add_liveness(app)

    assert TestClient(app).get("/").json() == "mine"
