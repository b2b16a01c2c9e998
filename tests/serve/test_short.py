"""The short way between servers of one process: taken where it is safe, and then nobody can tell."""

import asyncio
import logging
from contextvars import ContextVar
from functools import cache
from typing import Any

import pytest
from fastapi import Body, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse, RedirectResponse
from pydantic import BaseModel

from nemo_gym.errors import DeadlineExceeded, EnvFailed
from nemo_gym.keys import SESSION_ID_KEY
from nemo_gym.net import allowance, deadline, local
from nemo_gym.net.local_response import ShortResponse
from nemo_gym.serve.app import GymApp, create_app
from nemo_gym.serve.correlation import RolloutContextMiddleware, current_rollout_id
from nemo_gym.serve.deadlines import DeadlineMiddleware
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.failures import FailureMiddleware
from nemo_gym.serve.session import SessionMiddleware

BASE = "http://127.0.0.1:1"
CALLER: ContextVar[str] = ContextVar("caller", default="nobody")


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

    async def plain(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def seen(self, request: Request, body: In) -> dict[str, Any]:
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

    async def injected(self, response: Response, body: In) -> Out:
        response.set_cookie("seen", "1")
        response.status_code = 202
        return Out(total=body.a)

    async def untouched(self, response: Response, body: In) -> Out:
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
        app.post(f"/{name}")(json_endpoint(handler) if name in ("model", "injected", "untouched") else handler)
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
    headers = [(k.lower(), v) for k, v in response.headers.items() if k.lower() != "content-length"]
    return {
        "status": response.status,
        "reason": response.reason,
        "headers": sorted(headers),
        "cookies": {name: morsel.OutputString() for name, morsel in response.cookies.items()},
        "values": response.cookie_values,
        "body": await response.read(),
        "method": response.method,
        "url": str(response.url),
        "redirects": [earlier.status for earlier in response.history],
    }


async def cookies_for(app: FastAPI) -> dict[str, str]:
    """A session that is known, so that two answers set the same cookie."""
    response = await local.dispatch(app, "POST", f"{BASE}/no_body")
    return {"mine": "yes"} | {name: morsel.value for name, morsel in response.cookies.items()}


@cache
def built(policy: str) -> GymApp:
    return build(policy)


@pytest.mark.parametrize("policy", ["per-session", "shared"])
@pytest.mark.parametrize("name", HANDLERS)
async def test_the_same_answers_as_through_the_layers(name: str, policy: str) -> None:
    """Status, headers, cookies, body and what the handler saw; for good requests, bad ones and every way to end."""
    app = built(policy)
    for body in BODIES:
        options = {"json": body, "cookies": await cookies_for(app), "headers": {"X-Extra": "1"}}

        through = await shape(await local.dispatch(app, "POST", f"{BASE}/{name}", **options))
        around = await shape(await local.call(app, "POST", BASE, f"/{name}", **options))

        for found in (through, around):
            if name == "keeps":  # such a session is signed anew each time
                found["headers"] = [(k, v) for k, v in found["headers"] if k != "set-cookie"]
                del found["cookies"], found["values"]
        assert around == through, body


async def test_an_ordinary_call_takes_it() -> None:
    """If this is no longer so, every hop of every rollout gets slower and nobody notices."""
    app = build()

    for path in ("/model", "/plain", "/seen", "/keeps", "/untouched", "/ng-rollout/7-0/model"):
        assert isinstance(await local.call(app, "POST", BASE, path, json={"a": 1}), ShortResponse), path


async def test_a_session_is_kept_from_call_to_call() -> None:
    app = build()
    first = await local.call(app, "POST", BASE, "/keeps", json={"a": 2})

    second = await local.call(app, "POST", BASE, "/keeps", json={"a": 3}, cookies=first.cookies)
    forged = await local.call(app, "POST", BASE, "/keeps", json={"a": 3}, cookies={"App___one": "forged"})

    assert await second.json() == {"kept": 5}
    assert await forged.json() == {"kept": 3}


async def test_a_handed_model_arrives_without_what_nobody_set_and_the_answer_as_it_was() -> None:
    app = build()

    echoed = await local.call(app, "POST", BASE, "/plain", json=In(a=1))
    answered = await local.call(app, "POST", BASE, "/model", json=In(a=1))

    assert await echoed.json() == {"a": 1}
    assert answered.model == Out(total=1)
    assert await answered.read() == b'{"total":1}'


class Stranger:
    """A layer of somebody else's, which may look at anything."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


class MySessions(SessionMiddleware):
    """Ours, but changed."""


def without_layers() -> GymApp:
    app = create_app()
    assert isinstance(app, GymApp)
    return app


class MyApp(GymApp):
    pass


def of_my_own() -> GymApp:
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
        of_my_own,
        in_another_order,
        with_my_sessions,
        below_a_root,
        with_a_router_of_my_own,
        lambda: build("shared", Stranger),
    ],
)
def test_an_app_with_anything_we_do_not_know_has_none(make: Any) -> None:
    """Third-party folders must behave as they always did."""
    assert make().short_way is None


async def test_a_route_class_of_somebodys_own_is_respected() -> None:
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

    assert (await local.call(app, "POST", BASE, "/loud", json={})).headers["x-loud"] == "1"


async def test_a_handler_sees_its_callers_time_and_rollout_but_not_its_context() -> None:
    app = build("stateless")
    found: dict[str, Any] = {}

    @app.post("/look")
    async def look(request: Request) -> dict[str, Any]:
        found.update(left=deadline.remaining(), rollout=current_rollout_id(), caller=CALLER.get())
        found.update(steps=getattr(allowance.current(), "steps", None), path=request.url.path)
        CALLER.set("handler")
        return {}

    CALLER.set("me")
    with deadline.within(30):
        headers = {allowance.ALLOWANCE_HEADER: "steps=4"}
        answer = await local.call(app, "POST", BASE, "/ng-rollout/3-1/look", json={}, headers=headers)

    assert isinstance(answer, ShortResponse)
    assert 0 < found.pop("left") <= 30
    assert found == {"rollout": "3-1", "caller": "nobody", "steps": 4, "path": "/look"}
    assert (CALLER.get(), current_rollout_id(), allowance.current()) == ("me", None, None)


async def test_every_request_without_cookies_has_an_id_of_its_own() -> None:
    app = build("stateless")

    @app.post("/who")
    async def who(request: Request) -> list[str]:
        return [request.session[SESSION_ID_KEY], request.scope["session"][SESSION_ID_KEY]]

    first, second = [await (await local.call(app, "POST", BASE, "/who", json={})).json() for _ in range(2)]

    assert first[0] == first[1] != second[0]


async def test_a_handler_that_takes_too_long_is_cancelled_and_the_caller_told() -> None:
    app = build()
    stopped = asyncio.Event()

    @app.post("/slow")
    async def slow(body: dict[str, Any] = Body()) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with deadline.within(0.02), pytest.raises(DeadlineExceeded) as caught:
        await local.call(app, "POST", BASE, "/slow", json={}, where="slow one")

    assert stopped.is_set()
    assert caught.value.where == "slow one"


@pytest.mark.parametrize("path", ["/slow", "/moved"])
async def test_a_call_may_have_a_time_of_its_own_and_is_late_by_that_name(path: str) -> None:
    """Also where it was sent on to another endpoint, which does not answer."""
    app = build()

    @app.post("/slow")
    async def slow() -> None:
        await asyncio.Event().wait()

    @app.post("/moved")
    async def moved() -> Response:
        return RedirectResponse("/slow", status_code=307)

    span = (0.02, allowance.ToolCallTimeout)
    with deadline.within(60), pytest.raises(allowance.ToolCallTimeout, match="tool_call_timeout_seconds") as caught:
        await local.call(app, "POST", BASE, path, json={}, where="slow one", span=span)
    assert caught.value.where == "slow one"

    with deadline.within(0.02), pytest.raises(DeadlineExceeded) as caught_too:
        await local.call(app, "POST", BASE, path, json={}, where="slow one", span=(60, allowance.ToolCallTimeout))
    assert type(caught_too.value) is DeadlineExceeded


async def test_one_timer_is_enough_for_all_calls_below_it() -> None:
    """The inner call has no timer of its own; the outer one ends it, and says who was too late."""
    app = build()
    inner: list[object] = []

    @app.post("/never")
    async def never() -> None:
        inner.append(deadline.watched())
        await asyncio.Event().wait()

    @app.post("/outer")
    async def outer() -> None:
        await local.call(app, "POST", BASE, "/never", json={}, where="inner")

    with deadline.within(0.02), pytest.raises(DeadlineExceeded) as caught:
        await local.call(app, "POST", BASE, "/outer", json={}, where="outer")

    assert caught.value.where == "outer"
    assert inner[0] is not None


async def test_a_shorter_time_gets_a_timer_of_its_own() -> None:
    app = build()

    @app.post("/never")
    async def never() -> None:
        await asyncio.Event().wait()

    @app.post("/patient")
    async def patient() -> str:
        try:
            with deadline.within(0.02):
                await local.call(app, "POST", BASE, "/never", json={}, where="inner")
        except DeadlineExceeded as late:
            return str(late.where)
        return "never"

    assert await (await local.call(app, "POST", BASE, "/patient", json={})).json() == "inner"


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

    call = asyncio.create_task(local.call(app, "POST", BASE, "/wait", json={}))
    await entered.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert stopped.is_set()


async def test_a_failure_is_logged_once_and_by_the_server_it_happened_in(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        await local.call(build(), "POST", BASE, "/breaks", json={"a": 1})

    assert [record.name for record in caplog.records] == ["nemo_gym.serve"]
    assert "one: POST /breaks failed" in caplog.text
    assert "RuntimeError: broken" in caplog.text


async def test_what_the_caller_cannot_even_write_is_the_callers_error() -> None:
    """As over HTTP: nothing was sent."""
    with pytest.raises(TypeError):
        await local.call(build(), "POST", BASE, "/plain", json={"a": object()})
