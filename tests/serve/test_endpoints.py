"""Handlers keep their meaning when they become endpoints."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.testclient import TestClient

from nemo_gym.serve.endpoints import _add_fields, async_handler, json_endpoint, resolved_signature


class Question(BaseModel):
    text: str


class Answer(BaseModel):
    text: str


class LongAnswer(Answer):
    reason: str
    score: float = float("nan")
    renamed: int = Field(1, serialization_alias="as")


class Server:
    async def ask(self, request: Request, body: Question) -> Answer:
        return LongAnswer(text=body.text, reason=request.method)


def test_annotations_that_are_postponed_become_types() -> None:
    """FastAPI must see the author's classes, whichever way their module writes annotations."""
    signature = resolved_signature(Server().ask)

    assert list(signature.parameters) == ["request", "body"]
    assert signature.parameters["body"].annotation is Question
    assert signature.return_annotation is Answer


def test_annotations_are_found_behind_decorators() -> None:
    """Authors wrap verifiers in their own retries and timers."""

    def time_calls(handler: Any) -> Any:
        @functools.wraps(handler)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await handler(*args, **kwargs)

        return wrapper

    @time_calls
    @time_calls
    async def ask(body: Annotated[Question, "kept"]) -> Answer:
        return Answer(text=body.text)

    assert resolved_signature(ask).parameters["body"].annotation == Annotated[Question, "kept"]


def test_what_cannot_be_resolved_stays_as_written() -> None:
    """Reporting it is FastAPI's business; failing here would name the wrong place."""

    async def ask(body: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    assert resolved_signature(ask).parameters["body"].annotation == "Nowhere"


def test_a_returned_model_is_written_with_all_its_fields() -> None:
    """FastAPI alone would cut it down to the annotated class."""
    app = FastAPI()
    app.post("/ask")(json_endpoint(Server().ask))

    answer = TestClient(app).post("/ask", json={"text": "hi"})

    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"text": "hi", "reason": "POST", "score": None, "as": 1}


def test_a_model_is_not_validated_again_on_its_way_out() -> None:
    """A rollout's token ids are long; reading them twice is paid by everyone."""
    validated: list[str] = []

    class CountedAnswer(Answer):
        def model_post_init(self, context: Any) -> None:
            validated.append(self.text)

    async def ask() -> Answer:
        return CountedAnswer(text="once")

    app = FastAPI()
    app.get("/ask")(json_endpoint(ask))

    TestClient(app).get("/ask")

    assert validated == ["once"]


def test_cookies_and_status_set_on_the_injected_response_are_kept() -> None:
    """Agents hand the session of the model on this way."""

    async def ask(response: Response) -> Answer:
        response.set_cookie("a", "1")
        response.status_code = 202
        return Answer(text="")

    app = FastAPI()
    app.get("/ask")(json_endpoint(ask))
    answer = TestClient(app).get("/ask")

    assert (answer.status_code, answer.cookies["a"]) == (202, "1")


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], "text", None])
def test_anything_but_a_model_is_left_to_fastapi(value: Any) -> None:
    """Handlers that return plain data keep working."""

    async def ask() -> Any:
        return value

    app = FastAPI()
    app.get("/ask")(json_endpoint(ask))

    assert TestClient(app).get("/ask").json() == value


@pytest.mark.asyncio
async def test_a_handler_that_is_not_asynchronous_runs_in_a_thread() -> None:
    """On the loop it would stop every other rollout."""

    def where() -> threading.Thread:
        return threading.current_thread()

    assert await async_handler(where)() is not threading.current_thread()


@pytest.mark.asyncio
async def test_a_plain_decorator_around_an_asynchronous_handler_is_awaited() -> None:
    """Such a decorator returns the coroutine instead of awaiting it."""

    async def ask() -> int:
        return 1

    @functools.wraps(ask)
    def wrapper() -> Any:
        return ask()

    assert not inspect.iscoroutinefunction(wrapper)
    assert await async_handler(wrapper)() == 1


@pytest.mark.parametrize(
    ("written", "more", "whole"),
    [
        (b'{"a":1}', {"b": [1, 2]}, b'{"a":1,"b":[1,2]}'),
        (b"{}", {"b": None}, b'{"b":null}'),
        (b'{"a":1}', {}, b'{"a":1}'),
        (b"[1]", {"b": 1}, b"[1]"),
    ],
)
def test_fields_are_added_to_an_object_that_is_written_already(written: bytes, more: Any, whole: bytes) -> None:
    """Timings are added without parsing a large answer again; the result must stay valid JSON."""
    assert _add_fields(written, more) == whole
