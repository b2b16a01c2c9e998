"""Whatever a handler does, each call gets exactly one answer over every carrier, and the server goes on."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from starlette.background import BackgroundTask

from nemo_gym.launch.app_listener import AppListener
from nemo_gym.launch.ports import listen_on_unix_socket, unix_name
from nemo_gym.serve.app import GymApp, create_app
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.session import SessionMiddleware
from nemo_gym.transport import in_process
from nemo_gym.transport.cell_link import CellLink, CellListener, RemoteInstance
from nemo_gym.transport.response_errors import FAILED_HEADER

BASE = "http://127.0.0.1:1"
SECONDS = 20.0
HALF_EMOJI = "\ud83d"


class Answer(BaseModel):
    value: Any = None


class Peevish(BaseModel):
    """A request whose validation raises what it is asked for."""

    how: str

    @field_validator("how")
    @classmethod
    def raise_it(cls, how: str) -> str:
        if how in RAISED:
            raise RAISED[how]()
        return how


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Rude(BaseException):
    pass


class EvilText(Exception):
    def __repr__(self) -> str:
        raise KeyboardInterrupt


RAISED: dict[str, Callable[[], BaseException]] = {
    "cancelled": asyncio.CancelledError,
    "closed": GeneratorExit,
    "interrupted": KeyboardInterrupt,
    "exited": lambda: SystemExit(HALF_EMOJI),
    "rude": Rude,
    "unprintable": Unprintable,
    "evil text": EvilText,
    "stopped": StopAsyncIteration,
    "surrogate": lambda: ValueError(HALF_EMOJI),
    "nested": lambda: ValueError(nested_value(5000)),
    "group": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), GeneratorExit()]),
    "timed out": TimeoutError,
    "status 99": lambda: HTTPException(99),
    "status 1000": lambda: HTTPException(1000),
    "status text": lambda: HTTPException("teapot"),  # type: ignore[arg-type]
    "detail": lambda: HTTPException(400, detail=object()),
    "detail nan": lambda: HTTPException(400, detail=[float("nan"), HALF_EMOJI]),
    "header": lambda: HTTPException(400, headers={"x-odd": HALF_EMOJI}),
    "header number": lambda: HTTPException(400, headers={"x-odd": 5}),  # type: ignore[dict-item]
}
UNENCODABLE: dict[str, Callable[[], Any]] = {
    "surrogate": lambda: HALF_EMOJI,
    "key": lambda: {HALF_EMOJI: 1},
    "nested list": lambda: nested_value(5000),
    "nested object": lambda: nested_value(5000, lambda inner: {"a": inner}),
    "object": object,
    "function": lambda: nested_value,
    "circle": lambda: circle(),
    "exception": lambda: ValueError("returned"),
}


def nested_value(levels: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap(value)
    return value


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


async def stream(how: str) -> AsyncIterator[bytes]:
    yield b"begun"
    raise RAISED[how]()


class Handlers:
    """Endpoints that misbehave as their request asks."""

    async def raises(self, body: dict[str, str]) -> Any:
        if body.get("when") == "later":
            await asyncio.sleep(0)
        raise RAISED[body["how"]]()

    def raises_in_thread(self, body: dict[str, str]) -> Any:
        raise RAISED[body["how"]]()

    async def validates(self, body: Peevish) -> Answer:
        return Answer(value=body.how)

    async def returns(self, body: dict[str, str]) -> Any:
        return UNENCODABLE[body["how"]]()

    async def returns_model(self, body: dict[str, str]) -> Answer:
        return Answer(value=UNENCODABLE[body["how"]]())

    async def keeps(self, request: Request, body: dict[str, str]) -> Answer:
        request.session["odd"] = UNENCODABLE[body["how"]]()
        return Answer()

    async def streams(self, body: dict[str, str]) -> Response:
        return StreamingResponse(stream(body["how"]))

    async def works(self, body: dict[str, str]) -> Answer:
        return Answer(value="fine")


async def pass_on(request: Request, call_next: Any) -> Response:
    return await call_next(request)


def build(*, in_new_task: bool = False) -> GymApp:
    """Return an app of `Handlers`, as plain endpoints and through the ASGI stack.

    With `in_new_task` a middleware of a server folder runs the handlers in a new task.
    """
    app = create_app()
    app.add_middleware(SessionMiddleware, key="App___one")
    if in_new_task:
        app.middleware("http")(pass_on)
    app.add_middleware(DeadlineMiddleware, server_name="one")
    app.add_middleware(FailureMiddleware, server_name="one")
    handlers = Handlers()
    for name in (name for name in vars(Handlers) if not name.startswith("_")):
        handler = getattr(handlers, name)
        app.post(f"/{name}")(json_endpoint(handler) if name == "returns_model" else handler)
    app.post("/raises_json")(json_endpoint(handlers.raises))

    @app.post("/path/{how}")
    async def raises_at_path(how: str, body: dict[str, str]) -> Any:
        return await handlers.raises(body)

    return app


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """Do not capture log records: pytest cannot send half an emoji to its parent process."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


RAISING_PATHS = ["/raises", "/raises_json", "/raises_in_thread", "/validates", "/streams", "/path/x"]
RETURNING_PATHS = ["/returns", "/returns_model", "/keeps"]

Ask = Callable[[str, dict[str, str]], Awaitable[tuple[int, str | None]]]
"""Sends a request; returns the status and the server that the answer blames."""


@asynccontextmanager
async def in_memory(app: Any) -> AsyncIterator[Ask]:
    async def ask(path: str, body: dict[str, str]) -> tuple[int, str | None]:
        response = await in_process.request(app, "POST", BASE, path, json=body, callee="one")
        return response.status, response.headers.get(FAILED_HEADER)

    yield ask


@asynccontextmanager
async def over_link(app: Any) -> AsyncIterator[Ask]:
    listener = listen_on_unix_socket()
    server = await asyncio.get_running_loop().create_unix_server(
        CellListener({"one": app}, "token").protocol, sock=listener
    )
    link = CellLink(unix_name(listener), "token", "cell 0")
    async with in_memory(RemoteInstance("one", [link])) as ask:
        yield ask
    assert not link._replies
    link.close()
    server.close()
    await asyncio.sleep(0)


@asynccontextmanager
async def over_http(app: Any) -> AsyncIterator[Ask]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = AppListener(app, listener, {})
        await server.open()
        async with aiohttp.ClientSession() as session:

            async def ask(path: str, body: dict[str, str]) -> tuple[int, str | None]:
                async with session.post(f"http://127.0.0.1:{port}{path}", json=body) as response:
                    await response.read()
                    return response.status, response.headers.get(FAILED_HEADER)

            yield ask
        server.stop_accepting()
        await server.close()


CARRIERS = {"in memory": in_memory, "cell link": over_link, "HTTP": over_http}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_every_call_gets_one_answer(carrier: str) -> None:
    """A call without an answer waits for the whole deadline, and the rollout is blamed on an innocent agent."""

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.sampled_from(RAISING_PATHS), st.sampled_from(sorted(RAISED))),
                st.tuples(st.sampled_from(RETURNING_PATHS), st.sampled_from(sorted(UNENCODABLE))),
            ),
            min_size=1,
            max_size=12,
        ),
        st.sampled_from(["now", "later"]),
        st.booleans(),
    )
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(requests: list[tuple[str, str]], when: str, in_new_task: bool) -> None:
        asyncio.run(check_answers(CARRIERS[carrier], build(in_new_task=in_new_task), requests, when))

    check()


async def check_answers(carrier: Any, app: GymApp, requests: list[tuple[str, str]], when: str) -> None:
    """Send all requests at once, and a good one with them; each must be answered, the bad ones with an error."""
    async with carrier(app) as ask, asyncio.timeout(SECONDS):
        calls = [ask(path, {"how": how, "when": when}) for path, how in requests]
        *answers, good = await asyncio.gather(*calls, ask("/works", {}), return_exceptions=True)
        for (path, how), answer in zip(requests, answers, strict=True):
            check_answer(path, how, answer)
        assert good == (200, None)
        assert await ask("/works", {}) == (200, None)


def check_answer(path: str, how: str, answer: Any) -> None:
    """Check one answer: an error that names the server, or the break of a stream that had begun."""
    if path == "/streams":  # the status was sent before the exception
        assert isinstance(answer, aiohttp.ClientError) or answer[0] in (200, 500), (how, answer)
    elif path == "/raises_in_thread" and how in ("closed", "group"):
        # A future that raises `GeneratorExit` closes all frames of its task, so only the carrier can answer.
        assert isinstance(answer, tuple) and answer[0] == 500, (how, answer)
    elif (
        path == "/returns"
    ):  # some values can be encoded after all: half a character as U+FFFD, an object by its fields
        assert answer in ((200, None), (500, "one")), (how, answer)
    elif path == "/returns_model":  # in memory the model is not encoded
        assert answer in ((200, None), (500, "one")), (how, answer)
    else:
        assert isinstance(answer, tuple), (path, how, answer)
        assert answer[0] in (400, 422, 500) and answer[1] == "one", (path, how, answer)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_an_answer_does_not_wait_for_background_tasks(carrier: str) -> None:
    """A background task that never ends must not hold back an answer that is complete."""
    app = build()
    release = asyncio.Event()

    @app.post("/background")
    async def background(body: dict[str, str]) -> Response:
        return JSONResponse({}, background=BackgroundTask(release.wait))

    async with CARRIERS[carrier](app) as ask, asyncio.timeout(SECONDS):
        assert await ask("/background", {}) == (200, None)
        release.set()


async def test_an_answer_that_is_too_long_for_a_frame_is_an_error_of_its_call_alone(monkeypatch) -> None:
    """The receiver would close the connection, and with it every other call of the link."""
    monkeypatch.setattr("nemo_gym.transport.cell_link.MAX_FRAME_BYTES", 10_000)
    app = build()

    @app.post("/long")
    async def long(body: dict[str, str]) -> str:
        await asyncio.sleep(0)
        return "x" * 10_001

    async with over_link(app) as ask, asyncio.timeout(SECONDS):
        answers = await asyncio.gather(ask("/works", {}), ask("/long", {}), ask("/works", {}))

    assert answers == [(200, None), (500, "one"), (200, None)]


async def test_a_reply_in_memory_that_cannot_be_encoded_names_its_server() -> None:
    """The agent that reads the answer must not be blamed for it."""
    response = await in_process.request(build(), "POST", BASE, "/returns_model", json={"how": "object"}, callee="one")

    with pytest.raises(Exception, match=r"^one: the answer to /returns_model cannot be encoded"):
        await response.read()


async def test_closing_a_call_closes_its_handler() -> None:
    """A caller that is thrown away must not leave a handler that ignores `GeneratorExit`."""
    app = build()
    ended: list[str] = []

    @app.post("/wait")
    async def wait(body: dict[str, str]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("handler")

    call = in_process.request(app, "POST", BASE, "/wait", json={}).__await__()
    next(call)
    call.close()

    assert ended == ["handler"]


async def cancel_itself(how: str) -> Answer:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    if how == "waits":
        await asyncio.Event().wait()
    if how == "raises":
        raise asyncio.CancelledError
    if how == "returns late":
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        task.cancel()
    return Answer()


@pytest.mark.parametrize("in_new_task", [False, True])
@pytest.mark.parametrize(
    ("how", "expected"), [("waits", (500, "one")), ("raises", (500, "one")), ("returns", None), ("returns late", None)]
)
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_handler_that_cancels_its_own_task_cancels_only_itself(
    carrier: str, how: str, expected: tuple[int, str] | None, in_new_task: bool
) -> None:
    """The task of a handler in memory is that of its caller, which would end with it and be blamed."""
    app = build(in_new_task=in_new_task)

    @app.post("/cancels")
    async def cancels(body: dict[str, str]) -> Answer:
        return await cancel_itself(body["how"])

    async with CARRIERS[carrier](app) as ask, asyncio.timeout(SECONDS):
        assert await ask("/cancels", {"how": how}) in ([expected] if expected else [(200, None), (500, "one")])
        await asyncio.sleep(0)  # no cancellation is left for the caller
        assert await ask("/works", {}) == (200, None)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_a_call_whose_handler_cancels_the_task_can_still_be_cancelled_from_outside() -> None:
    """At its deadline, for example."""
    app = build()

    @app.post("/stubborn")
    async def stubborn(body: dict[str, str]) -> Answer:
        with suppress(asyncio.CancelledError):
            await cancel_itself("waits")
        await asyncio.Event().wait()
        return Answer()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_process.request(app, "POST", BASE, "/stubborn", json={}, callee="one")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-note", "two\r\nx-more: lines"),
        ("x-note", "half a line\n"),
        ("x-note", "nul\0"),
        ("x note", "a space in the name"),
        ("", "no name"),
        ("x-note\r\nx-more", "lines in the name"),
        ("content-length", "many"),
        ("Content-Length", "-1"),
    ],
)
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_header_that_http_cannot_carry_is_an_error_of_the_handler(carrier: str, name: str, value: str) -> None:
    """In memory it would pass; over HTTP there would be no answer, as if the server had ended."""
    app = build()

    @app.post("/header")
    async def odd_header(body: dict[str, str]) -> Response:
        return Response("{}", headers={name: value})

    async with CARRIERS[carrier](app) as ask, asyncio.timeout(SECONDS):
        assert await ask("/header", {}) == (500, "one")
        assert await ask("/works", {}) == (200, None)
