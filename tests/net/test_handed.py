"""Servers of one process hand each other models; whoever wants bytes still gets them."""

import pytest
from fastapi import Request
from pydantic import BaseModel

from nemo_gym.net import local
from nemo_gym.serve.app import create_app
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.server_utils import get_response_model


class Answer(BaseModel):
    text: str
    note: str | None = None


class Reader:
    """A layer of somebody else's, which may read any body."""

    def __init__(self, app):
        self.app = app
        self.read: list[bytes] = []

    async def __call__(self, scope, receive, send):
        async def reading(message):
            self.read.append(message.get("body", b""))
            await send(message)

        await self.app(scope, receive, reading)


def app_that_answers(answer: Answer, *layers: type):
    app = create_app()

    async def tool(request: Request) -> Answer:
        return answer

    app.post("/tool")(json_endpoint(tool))
    for layer in layers:
        app.add_middleware(layer)
    app.add_middleware(FailureMiddleware, server_name="s")
    return app


async def called_twice(app):
    """The second call: the first one builds the app's layers."""
    await local.dispatch(app, "POST", "http://h:1/tool", json={})
    return await local.dispatch(app, "POST", "http://h:1/tool", json={})


async def test_the_answer_arrives_as_the_object_it_was() -> None:
    """Writing and reading JSON between two coroutines of one process is the larger part of a small call."""
    answer = Answer(text="hi")

    reply = await called_twice(app_that_answers(answer))

    assert await get_response_model(reply, Answer) is answer


async def test_bytes_are_there_for_whoever_asks() -> None:
    """Same body, same JSON, however it is read."""
    reply = await called_twice(app_that_answers(Answer(text="hi")))

    assert await reply.json() == {"text": "hi", "note": None}
    assert await reply.read() == b'{"text":"hi","note":null}'
    assert await reply.content.read() == b'{"text":"hi","note":null}'


async def test_a_layer_that_may_read_bodies_gets_bytes() -> None:
    """A stranger's middleware must see what it would see over HTTP."""
    reply = await called_twice(app_that_answers(Answer(text="hi"), Reader))

    assert reply.model is None
    assert await reply.read() == b'{"text":"hi","note":null}'


async def test_another_class_is_validated_not_trusted() -> None:
    """Only the very class that was asked for is passed on as it is."""

    class Other(BaseModel):
        text: str

    reply = await called_twice(app_that_answers(Answer(text="hi")))

    assert await get_response_model(reply, Other) == Other(text="hi")


@pytest.mark.parametrize("body", [Answer(text="x"), {"text": "x"}])
async def test_a_model_sent_to_an_ordinary_route_is_written_without_what_nobody_set(body: object) -> None:
    """`exclude_unset`, as over HTTP."""
    app = create_app()

    @app.post("/echo")
    async def echo(body: dict) -> dict:
        return body

    app.add_middleware(FailureMiddleware, server_name="s")
    reply = await local.dispatch(app, "POST", "http://h:1/echo", json=body)

    assert await reply.json() == {"text": "x"}
