"""Calls in memory and over HTTP take one path, with the same answers as the general ASGI stack."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextvars import Context, ContextVar
from functools import cache
from typing import Any

import pytest
from fastapi import Body, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse, StreamingResponse
from fastapi.testclient import TestClient
from omegaconf import OmegaConf
from pydantic import BaseModel, field_serializer

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import DeadlineExceeded, EnvFailed
from nemo_gym.keys import ROLLOUT_HEADER, SESSION_ID_KEY
from nemo_gym.serve.app import GymApp, create_app
from nemo_gym.serve.correlation import RolloutContextMiddleware, current_rollout_id
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.serve.process_status import NO_LABEL, own_status, run_handler
from nemo_gym.serve.session import SessionCodec, SessionMiddleware, session_secret
from nemo_gym.server_utils import ServerClient, get_response_model
from nemo_gym.transport import call_timing, deadlines, in_process
from nemo_gym.transport.asgi import run_app, scope_of
from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.wire.call_reply import Call, json_body

BASE = "http://127.0.0.1:1"
CALLER: ContextVar[str] = ContextVar("caller", default="unset")


class In(BaseModel):
    a: int
    note: str | None = None


class Out(BaseModel):
    total: int


class Odd(Exception):
    pass


class Handlers:
    async def model(self, body: In) -> Out:
        return Out(total=body.a)

    async def echo(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def inspect(self, request: Request, body: In) -> dict[str, Any]:
        return {
            "path": request.url.path,
            "method": request.method,
            "cookies": {name: value for name, value in request.cookies.items() if name == "mine"},
            "type": request.headers["content-type"],
            "extra": request.headers.get("x-extra"),
            "body": (await request.body()).decode(),
            "json": await request.json(),
            "app": request.app.title,
            "state": hasattr(request.state, "nothing"),
            "session": sorted(request.session),
        }

    async def no_body(self) -> list[int]:
        return [1]

    async def sets_cookie(self, response: Response, body: In) -> Out:
        response.set_cookie("seen", "1")
        response.status_code = 202
        return Out(total=body.a)

    async def ignores_response(self, response: Response, body: In) -> Out:
        return Out(total=body.a)

    async def own_response(self, body: In) -> Response:
        return PlainTextResponse("own", status_code=418, headers={"x-own": "1"})

    async def redirect(self, body: In) -> Response:
        return RedirectResponse("/model", status_code=307)

    async def refuses(self, body: In) -> None:
        raise HTTPException(409, {"why": "busy"}, headers={"x-why": "busy"})

    async def breaks(self, body: In) -> None:
        raise RuntimeError("broken")

    async def blames(self, body: In) -> None:
        raise EnvFailed("no weather", where="the sky")

    async def exits(self, body: In) -> None:
        raise SystemExit(3)

    async def odd(self, body: In) -> None:
        raise Odd

    async def wrong_answer(self, body: In) -> Out:
        return {"nothing": 1}  # type: ignore[return-value]

    async def keeps(self, request: Request, body: In) -> dict[str, Any]:
        request.session["kept"] = request.session.get("kept", 0) + body.a
        return {"kept": request.session["kept"]}

    async def replaces(self, request: Request, body: In) -> dict[str, Any]:
        request.scope["session"] = {SESSION_ID_KEY: "chosen"}
        return {}

    async def forgets(self, request: Request, body: In) -> dict[str, Any]:
        request.session.clear()
        return {}

    async def unwritable(self, request: Request, body: In) -> dict[str, Any]:
        request.session["object"] = object()
        return {}


HANDLERS = [name for name in vars(Handlers) if not name.startswith("_")]
BODIES: list[Any] = [{"a": 1}, {"a": "x"}, In(a=2), In(a=3, note="set"), None, [1], {"a": 2**70}, "text", {"a": (1,)}]


def build(policy: str = "per-session", *extra: type) -> GymApp:
    app = create_app(title="One")
    app.add_middleware(SessionMiddleware, key="App___one", policy=policy)
    app.add_middleware(RolloutContextMiddleware)
    handlers = Handlers()
    for name in HANDLERS:
        handler = getattr(handlers, name)
        app.post(f"/{name}")(
            json_endpoint(handler) if name in ("model", "sets_cookie", "ignores_response") else handler
        )
    for layer in extra:
        app.add_middleware(layer)
    app.add_middleware(DeadlineMiddleware, server_name="one")
    app.add_middleware(FailureMiddleware, server_name="one")

    @app.exception_handler(Odd)
    async def odd(request: Request, error: Odd) -> Response:
        return PlainTextResponse(f"odd at {request.url.path}", status_code=444)

    assert isinstance(app, GymApp)
    return app


async def shape(response: Any) -> dict[str, Any]:
    """Everything a caller can see of a response; a session cookie by the session it carries."""
    headers = [(k.lower(), v) for k, v in response.headers.items() if k.lower() not in ("content-length", "set-cookie")]
    codec = SessionCodec(session_secret(), "App___one")
    for morsel in response.cookies.values():
        session = codec.decode(morsel.value)
        if session is not None:
            morsel.set(morsel.key, str(session), str(session))
    return {
        "status": response.status,
        "reason": response.reason,
        "headers": sorted(headers),
        "cookies": {name: morsel.OutputString() for name, morsel in response.cookies.items()},
        "names": sorted(response.cookie_values),
        "body": await response.read(),
        "method": response.method,
        "url": str(response.url),
        "redirects": [earlier.status for earlier in response.history],
    }


def session_cookies() -> dict[str, str]:
    return {"mine": "yes", "App___one": SessionCodec(session_secret(), "App___one").encode({SESSION_ID_KEY: "s-1"})}


@cache
def app_and_reference(policy: str) -> tuple[GymApp, GymApp]:
    """The app under test, and the same app whose every call goes through its ASGI stack."""
    reference = build(policy)
    reference.call_handler = None
    return build(policy), reference


@pytest.mark.parametrize("policy", ["per-session", "shared"])
@pytest.mark.parametrize("name", HANDLERS)
async def test_a_handled_call_is_answered_like_one_through_the_general_stack(name: str, policy: str) -> None:
    """Status, headers, cookies, body and the handler's view: for good and bad requests and every way to end."""
    app, reference = app_and_reference(policy)
    for body in BODIES:
        options = {"json": body, "cookies": session_cookies(), "headers": {"X-Extra": "1"}}

        expected = await shape(await in_process.dispatch(reference, "POST", f"{BASE}/{name}", **options))
        handled = await shape(await in_process.dispatch(app, "POST", f"{BASE}/{name}", **options))

        assert handled == expected, body


@pytest.mark.parametrize("policy", ["per-session", "shared"])
@pytest.mark.parametrize("name", HANDLERS)
async def test_an_http_request_is_answered_like_one_through_the_general_stack(name: str, policy: str) -> None:
    """The ASGI adapter takes the same path as a call in memory, and no client may notice."""
    for body in BODIES:
        call = Call("POST", BASE, f"/{name}", body=json_body(body), cookies=session_cookies(), headers={"X-Extra": "1"})

        replies = [await run_app(app, call, caller_enforces_deadline=False) for app in app_and_reference(policy)]
        handled, expected = [await shape(LocalResponse(call, reply)) for reply in replies]

        assert handled == expected, body


@pytest.mark.parametrize(
    "path", ["/model", "/echo", "/inspect", "/keeps", "/ignores_response", "/ng-rollout/7-0/model"]
)
async def test_an_ordinary_call_does_not_pass_through_the_stack(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this is no longer so, every call of every rollout gets slower without any other sign."""
    app = build()
    assert app.call_handler is not None

    async def fail(*_: Any) -> None:
        raise AssertionError("the call went through the ASGI stack")

    monkeypatch.setattr(app, "middleware_stack", fail)

    in_memory = await in_process.request(app, "POST", BASE, path, json={"a": 1})
    over_http = await run_app(app, Call("POST", BASE, path, body=b'{"a":1}'), caller_enforces_deadline=False)

    assert (in_memory.status, over_http.status) == (200, 200)


async def test_a_streaming_response_still_streams_over_http() -> None:
    """A client must see the first event before the last one exists."""
    app = build()
    go_on = asyncio.Event()
    chunks: list[bytes] = []

    @app.post("/stream")
    async def stream(body: In) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b"first"
            await go_on.wait()
            yield b"last"

        return StreamingResponse(events())

    async def receive() -> dict[str, Any]:
        if not chunks and not receive_calls:
            receive_calls.append(1)
            return {"type": "http.request", "body": b'{"a": 1}', "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        chunks.append(message.get("body", b""))
        if message.get("body") == b"first":
            go_on.set()

    receive_calls: list[int] = []
    scope = scope_of(Call("POST", BASE, "/stream", body=b'{"a": 1}', seconds=30), caller_enforces_deadline=False)
    async with asyncio.timeout(10):
        await app(scope, receive, send)

    assert b"".join(chunks) == b"firstlast"


async def test_a_late_http_request_is_cancelled_and_answered_with_504() -> None:
    """Without a caller in this process the server itself must enforce the deadline."""
    app = build()
    stopped = asyncio.Event()

    @app.post("/slow")
    async def slow(body: In) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    call = Call("POST", BASE, "/slow", body=b'{"a": 1}', seconds=0.02)
    reply = await run_app(app, call, caller_enforces_deadline=False)

    assert stopped.is_set()
    assert reply.status == 504
    assert dict(reply.header_list())["x-nemo-gym-failed"] == "one"
    assert own_status.running_handler() is None


async def test_a_session_is_kept_from_call_to_call() -> None:
    """The tools of one episode work on one state."""
    app = build()
    first = await in_process.request(app, "POST", BASE, "/keeps", json={"a": 2})

    second = await in_process.request(app, "POST", BASE, "/keeps", json={"a": 3}, cookies=first.cookies)
    forged = await in_process.request(app, "POST", BASE, "/keeps", json={"a": 3}, cookies={"App___one": "forged"})

    assert await second.json() == {"kept": 5}
    assert await forged.json() == {"kept": 3}


async def test_a_sent_model_arrives_without_unset_fields_and_the_answer_is_the_model_itself() -> None:
    """As over HTTP, where only set fields are sent; the caller in memory saves the JSON of the answer."""
    app = build()

    echoed = await in_process.request(app, "POST", BASE, "/echo", json=In(a=1))
    answered = await in_process.request(app, "POST", BASE, "/model", json=In(a=1))

    assert await echoed.json() == {"a": 1}
    assert answered.model == Out(total=1)
    assert await answered.read() == b'{"total":1}'


class ForeignLayer:
    """Foreign middleware, which may read anything."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class MySessions(SessionMiddleware):
    """Our class, changed by a subclass."""


def without_layers() -> GymApp:
    app = create_app()
    assert isinstance(app, GymApp)
    return app


class MyApp(GymApp):
    pass


def app_subclass() -> GymApp:
    app = MyApp()
    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware)
    return app


def in_another_order() -> GymApp:
    app = without_layers()
    app.add_middleware(FailureMiddleware)
    app.add_middleware(DeadlineMiddleware)
    return app


def with_my_sessions() -> GymApp:
    app = without_layers()
    app.add_middleware(MySessions, key="k")
    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware)
    return app


def below_a_root() -> GymApp:
    app = build()
    app.root_path = "/below"
    return app


def with_a_router_of_my_own() -> GymApp:
    app = build()
    app.router.middleware_stack = app.router.app
    return app


@pytest.mark.parametrize(
    "make",
    [
        without_layers,
        app_subclass,
        in_another_order,
        with_my_sessions,
        below_a_root,
        with_a_router_of_my_own,
        lambda: build("shared", ForeignLayer),
    ],
)
def test_an_app_with_unknown_parts_is_left_to_its_own_stack(make: Any) -> None:
    """Third-party folders must behave as they always did."""
    assert make().call_handler is None


async def test_a_foreign_route_class_is_respected() -> None:
    """Its `get_route_handler` may change every response."""
    from fastapi.routing import APIRoute

    class Loud(APIRoute):
        def get_route_handler(self) -> Any:
            handler = super().get_route_handler()

            async def loud(request: Request) -> Response:
                response = await handler(request)
                response.headers["x-loud"] = "1"
                return response

            return loud

    app = build("shared")
    app.router.route_class = Loud
    app.post("/loud")(Handlers().no_body)

    assert (await in_process.request(app, "POST", BASE, "/loud", json={})).headers["x-loud"] == "1"


async def test_a_handler_sees_its_callers_time_and_rollout_but_not_its_context() -> None:
    """Over HTTP only headers and the path travel; hosting must make no difference."""
    app = build("stateless")
    seen: dict[str, Any] = {}

    @app.post("/look")
    async def look(request: Request) -> dict[str, Any]:
        seen.update(left=deadlines.seconds_left(), rollout=current_rollout_id(), caller=CALLER.get())
        seen.update(steps=getattr(deadlines.current_allowance(), "steps", None), path=request.url.path)
        CALLER.set("handler")
        return {}

    CALLER.set("me")
    with deadlines.time_limit(30):
        headers = {deadlines.ALLOWANCE_HEADER: "steps=4"}
        await in_process.request(app, "POST", BASE, "/ng-rollout/3-1/look", json={}, headers=headers)

    assert 0 < seen.pop("left") <= 30
    assert seen == {"rollout": "3-1", "caller": "unset", "steps": 4, "path": "/look"}
    assert (CALLER.get(), current_rollout_id(), deadlines.current_allowance()) == ("me", None, None)


@pytest.mark.parametrize("path", ["/look", "/look/deeper"], ids=["plain", "through the stack"])
async def test_the_rollout_of_a_request_is_known_to_its_handler_and_to_the_launcher(path: str) -> None:
    """The launcher names the rollout that crashed a server; calls that the handler makes belong to it, too."""
    app = build("stateless")
    seen: list[Any] = []

    async def look() -> dict[str, Any]:
        handler = own_status.running_handler()
        seen.append((call_timing.current_rollout(), handler.rollout if handler else "no handler"))
        return {}

    app.post("/look")(look)
    app.post("/look/{name}")(look)
    await in_process.request(app, "POST", BASE, path, json={}, rollout=(3, 1))
    for value in ("4-2", "4-2-a1", "-1-2", "9" * 30 + "-0", "x"):  # over HTTP; a foreign client may send anything
        call = Call("POST", BASE, path, body=b"{}", headers={"x-nemo-gym-rollout": value})
        await run_app(app, call, caller_enforces_deadline=False)
    await run_app(app, Call("POST", BASE, path, body=b"{}"), caller_enforces_deadline=False)

    assert seen == [(one, one) for one in ((3, 1), (4, 2), *[None] * 5)]


async def test_every_stateless_request_has_a_new_session_id() -> None:
    """Two rollouts must never share state by accident."""
    app = build("stateless")

    @app.post("/who")
    async def who(request: Request) -> list[str]:
        return [request.session[SESSION_ID_KEY], request.scope["session"][SESSION_ID_KEY]]

    first, second = [await (await in_process.request(app, "POST", BASE, "/who", json={})).json() for _ in range(2)]

    assert first[0] == first[1] != second[0]


async def test_a_handler_that_takes_too_long_is_cancelled_and_the_error_names_the_server() -> None:
    """The caller must learn which server was slow."""
    app = build()
    stopped = asyncio.Event()

    @app.post("/slow")
    async def slow(body: dict[str, Any] = Body()) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with deadlines.time_limit(0.02), pytest.raises(DeadlineExceeded) as caught:
        await in_process.request(app, "POST", BASE, "/slow", json={}, callee="slow one")

    assert stopped.is_set()
    assert caught.value.where == "slow one"


@pytest.mark.parametrize("path", ["/slow", "/moved"])
async def test_a_call_limit_is_named_by_its_setting(path: str) -> None:
    """Also after a redirect to another endpoint, which does not answer."""
    app = build()

    @app.post("/slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.post("/moved")
    async def redirect_to_slow() -> Response:
        return RedirectResponse("/slow", status_code=307)

    block = {"host": "127.0.0.9", "port": 20011, "entrypoint": "app.py"}
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.9", port=20010),
        global_config_dict=OmegaConf.create({"slow_one": {"resources_servers": {"slow_one": block}}}),
    )
    in_process.mount("127.0.0.9", 20011, app)
    try:
        with (
            deadlines.time_limit(60),
            deadlines.using_allowance(deadlines.Allowance(tool_call_seconds=0.02)),
            pytest.raises(deadlines.ToolCallTimeout, match="tool_call_timeout_seconds") as caught,
        ):
            await client.post("slow_one", path, json={})
        with (
            deadlines.time_limit(0.02),
            deadlines.using_allowance(deadlines.Allowance(tool_call_seconds=60)),
            pytest.raises(DeadlineExceeded) as caught_too,
        ):
            await client.post("slow_one", path, json={})
    finally:
        in_process.unmount("127.0.0.9", 20011)
    assert caught.value.where == "slow_one"
    assert type(caught_too.value) is DeadlineExceeded


async def test_one_alarm_covers_all_nested_calls() -> None:
    """The inner call sets no second alarm; the outer one ends it and names the late server."""
    app = build()
    inner: list[object] = []

    @app.post("/never")
    async def never() -> None:
        inner.append(deadlines.covering_alarm())
        await asyncio.Event().wait()

    @app.post("/outer")
    async def outer() -> None:
        await in_process.request(app, "POST", BASE, "/never", json={}, callee="inner")

    with deadlines.time_limit(0.02), pytest.raises(DeadlineExceeded) as caught:
        await in_process.request(app, "POST", BASE, "/outer", json={}, callee="outer")

    assert caught.value.where == "outer"
    assert inner[0] is not None


async def test_a_shorter_time_limit_gets_its_own_alarm() -> None:
    """A handler may be more impatient than its caller."""
    app = build()

    @app.post("/never")
    async def never() -> None:
        await asyncio.Event().wait()

    @app.post("/patient")
    async def patient() -> str:
        try:
            with deadlines.time_limit(0.02):
                await in_process.request(app, "POST", BASE, "/never", json={}, callee="inner")
        except DeadlineExceeded as late:
            return str(late.where)
        return "never"

    assert await (await in_process.request(app, "POST", BASE, "/patient", json={})).json() == "inner"


async def test_cancelling_the_call_reaches_the_handler() -> None:
    """A rollout that is cancelled must not leave work behind in the same process."""
    app = build()
    entered, stopped = asyncio.Event(), asyncio.Event()

    @app.post("/wait")
    async def wait() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    call = asyncio.create_task(in_process.request(app, "POST", BASE, "/wait", json={}))
    await entered.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert stopped.is_set()


async def test_a_failure_is_logged_once_by_the_server_it_happened_in(caplog: pytest.LogCaptureFixture) -> None:
    """Two lines for one failure would look like two failures."""
    with caplog.at_level(logging.ERROR):
        await in_process.request(build(), "POST", BASE, "/breaks", json={"a": 1})

    assert [record.name for record in caplog.records] == ["nemo_gym.serve"]
    assert "one: POST /breaks failed" in caplog.text
    assert "RuntimeError: broken" in caplog.text


async def test_a_body_that_cannot_be_encoded_is_the_callers_error() -> None:
    """As over HTTP: nothing was sent."""
    with pytest.raises(TypeError):
        await in_process.request(build(), "POST", BASE, "/echo", json={"a": object()})


WHO: ContextVar[str] = ContextVar("who", default="unset")


async def test_a_coroutine_and_its_caller_do_not_share_context_variables() -> None:
    """Over HTTP nothing but the request travels; in memory it must be the same."""

    async def inner() -> str:
        before = WHO.get()
        WHO.set("inner")
        await asyncio.sleep(0)
        return f"{before}, {WHO.get()}"

    WHO.set("outer")

    assert await run_handler(inner(), NO_LABEL, Context()) == "unset, inner"
    assert WHO.get() == "outer"


async def test_a_coroutine_in_another_context_runs_in_the_same_task() -> None:
    """A second task would cost more, and cancelling one must be enough."""

    async def inner() -> asyncio.Task[None] | None:
        await asyncio.sleep(0)
        return asyncio.current_task()

    assert await run_handler(inner(), NO_LABEL, Context()) is asyncio.current_task()


async def test_exceptions_leave_and_cancellations_enter_the_other_context() -> None:
    """A handler cleans up when its rollout is cancelled."""

    async def raises() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(WHO.get())
            raise

    with pytest.raises(KeyError):
        await run_handler(raises(), NO_LABEL, Context())
    WHO.set("outer")

    async def outer() -> None:
        await run_handler(waits(), NO_LABEL, Context())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["unset"]


async def test_timeouts_and_task_groups_work_in_another_context() -> None:
    """Handlers use `asyncio.timeout` and task groups; both rely on the current task."""

    async def inner() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            async with asyncio.TaskGroup() as group:
                late = group.create_task(asyncio.sleep(0, "late"))
            return late.result()
        return "never"

    assert await run_handler(inner(), NO_LABEL, Context()) == "late"


async def test_an_abandoned_coroutine_is_closed() -> None:
    """Nothing may linger when a loop is shut down in the middle."""
    closed: list[bool] = []

    async def inner() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            closed.append(True)

    steps = run_handler(inner(), NO_LABEL, Context())
    next(steps)
    steps.close()

    assert closed == [True]


class Answer(BaseModel):
    text: str
    note: str | None = None


class BodyReader:
    """Foreign middleware that reads every body."""

    def __init__(self, app):
        self.app = app
        self.read: list[bytes] = []

    async def __call__(self, scope, receive, send):
        async def reading(message):
            self.read.append(message.get("body", b""))
            await send(message)

        await self.app(scope, receive, reading)


def app_that_answers(answer: BaseModel, *layers: type):
    app = create_app()

    async def tool(request: Request) -> Any:
        return answer

    app.post("/tool")(json_endpoint(tool))
    for layer in layers:
        app.add_middleware(layer)
    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware, server_name="s")
    return app


async def call_tool(app):
    return await in_process.dispatch(app, "POST", "http://h:1/tool", json={})


async def test_the_answer_arrives_as_the_model_itself() -> None:
    """Writing and reading JSON between two coroutines of one process is the larger part of a small call."""
    answer = Answer(text="hi")

    reply = await call_tool(app_that_answers(answer))

    assert await get_response_model(reply, Answer) is answer


async def test_a_model_answer_can_be_read_as_bytes() -> None:
    """Same body, same JSON, whichever method reads it."""
    reply = await call_tool(app_that_answers(Answer(text="hi")))

    assert await reply.json() == {"text": "hi", "note": None}
    assert await reply.read() == b'{"text":"hi","note":null}'
    assert await reply.content.read() == b'{"text":"hi","note":null}'


async def test_foreign_middleware_gets_bytes() -> None:
    """It must see what it would see over HTTP."""
    reply = await call_tool(app_that_answers(Answer(text="hi"), BodyReader))

    assert reply.model is None
    assert await reply.read() == b'{"text":"hi","note":null}'


async def test_a_model_of_another_class_is_validated() -> None:
    """Only an instance of the requested class is passed on as it is."""

    class Other(BaseModel):
        text: str

    reply = await call_tool(app_that_answers(Answer(text="hi")))

    assert await get_response_model(reply, Other) == Other(text="hi")


@pytest.mark.parametrize("body", [Answer(text="x"), {"text": "x"}])
async def test_a_model_sent_to_a_general_route_is_written_without_unset_fields(body: object) -> None:
    """`exclude_unset`, as over HTTP."""
    app = create_app()

    @app.post("/echo")
    async def echo(body: dict) -> dict:
        return body

    app.add_middleware(FailureMiddleware, server_name="s")
    reply = await in_process.dispatch(app, "POST", "http://h:1/echo", json=body)

    assert await reply.json() == {"text": "x"}


class Introspective(BaseModel):
    """A model whose JSON is the request that is running."""

    text: str = ""

    @field_serializer("text")
    def running(self, _: str) -> str:
        return str(own_status.running_handler())


def test_the_json_of_an_answer_belongs_to_its_request() -> None:
    """A serializer that never returns blocks the process; without a request, innocent rollouts count the attempt."""
    answer = TestClient(app_that_answers(Introspective())).post("/tool", json={}, headers={ROLLOUT_HEADER: "4-2"})

    assert answer.json() == {"text": "s: POST /tool of rollout 4-2"}
    assert own_status.running_handler() is None
