"""In-process calls give what calls over HTTP give."""

import asyncio
import logging
from contextvars import ContextVar

import aiohttp
import pytest
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.serve.app import create_app
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware, attribution_headers
from nemo_gym.serve.session import SessionMiddleware
from nemo_gym.transport import deadlines, http, in_process
from nemo_gym.transport.response_errors import FAILED_HEADER, FAILED_PATH_HEADER

CALLER = ContextVar("caller", default="nobody")


class Sum(BaseModel):
    a: int
    b: int = 0


def build_app() -> FastAPI:  # noqa: C901 - a list of endpoints, not a decision
    app = create_app()
    app.add_middleware(SessionMiddleware, key="App___one", policy="shared")
    app.add_middleware(DeadlineMiddleware)
    app.add_middleware(FailureMiddleware, server_name="one")

    @app.post("/sum")
    async def add(body: Sum) -> dict[str, int]:
        return {"sum": body.a + body.b}

    @app.get("/seen/{name:path}")
    async def inspect(name: str, request: Request) -> dict[str, object]:
        return {
            "name": name,
            "query": request.query_params.multi_items(),
            "cookies": request.cookies,
            "type": request.headers.get("content-type"),
            "x": request.headers.get("x-one"),
            "path": request.url.path,
        }

    @app.api_route("/body", methods=["POST", "PUT"])
    async def body(request: Request) -> dict[str, object]:
        content = await request.body()
        return {
            "body": content.decode(),
            "described": [request.headers.get(f"content-{k}") for k in ("type", "length")],
        }

    @app.get("/refuse")
    async def refuse() -> None:
        raise HTTPException(403, "no", headers={"x-why": "because"})

    @app.get("/break")
    async def fail() -> None:
        raise RuntimeError("broken")

    @app.post("/moved")
    async def redirect_see_other() -> Response:
        return RedirectResponse("/seen/there?x=1", status_code=303)

    @app.post("/kept")
    async def redirect_temporary() -> Response:
        return RedirectResponse("/sum", status_code=307)

    @app.get("/circle")
    async def circle() -> Response:
        return RedirectResponse("/circle")

    @app.delete("/nothing", status_code=204)
    async def nothing() -> None:
        return None

    @app.get("/stream")
    async def stream() -> Response:
        async def chunks():
            for number in range(5):
                yield f"line {number}\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    @app.get("/big")
    async def big() -> Response:
        return Response(b"x" * 3_000_000, media_type="application/octet-stream")

    @app.get("/cookies")
    async def cookies() -> Response:
        response = Response("ok")
        response.set_cookie("plain", "1")
        response.set_cookie("odd", 'a "quoted" value; with=all', path="/x", max_age=5, httponly=True)
        return response

    return app


CASES = {
    "json": ("POST", "/sum", {"json": {"a": 1, "b": 2}}),
    "invalid body": ("POST", "/sum", {"json": {"a": "one"}}),
    "missing body": ("POST", "/sum", {}),
    "not json": ("POST", "/sum", {"data": b"{", "headers": {"Content-Type": "application/json"}}),
    "wrong type": ("POST", "/sum", {"data": b'{"a": 1}'}),
    "not found": ("GET", "/no/such/route", {}),
    "wrong method": ("GET", "/sum", {}),
    "http exception": ("GET", "/refuse", {}),
    "exception": ("GET", "/break", {}),
    "redirect to get": ("POST", "/moved", {"json": {"a": 1}}),
    "redirect keeps body": ("POST", "/kept", {"json": {"a": 1}}),
    "redirect not followed": ("POST", "/moved", {"allow_redirects": False}),
    "empty": ("DELETE", "/nothing", {}),
    "streaming": ("GET", "/stream", {}),
    "big": ("GET", "/big", {}),
    "set cookies": ("GET", "/cookies", {}),
    "query": ("GET", "/seen/a", {"params": {"q": "ü&=", "n": 1}}),
    "query in url": ("GET", "/seen/a?x=1&x=2", {"params": {"y": "3"}}),
    "unicode path": ("GET", "/seen/größe/😀 x", {}),
    "escaped path": ("GET", "/seen/a%2Fb%20c", {}),
    "header and cookies": ("GET", "/seen/c", {"headers": {"X-One": "1"}, "cookies": {"a": "b", "c": "d e;f"}}),
    "text body": ("POST", "/body", {"data": "größe"}),
    "form body": ("PUT", "/body", {"data": {"a": "1", "b": "ü"}}),
    "no body": ("POST", "/body", {}),
    "empty json": ("POST", "/body", {"json": {}}),
    "head": ("HEAD", "/big", {}),
}

# uvicorn adds its name, the date and how it frames the body; none of it says anything about the answer.
FRAMING = {"date", "server", "connection", "transfer-encoding", "content-length"}


@pytest.fixture(scope="module")
def over_http(uvicorn_at):
    return uvicorn_at(build_app())


async def shape(response) -> dict[str, object]:
    return {
        "status": response.status,
        "ok": response.ok,
        "reason": response.reason,
        "method": response.method,
        "headers": sorted((k.lower(), v) for k, v in response.headers.items() if k.lower() not in FRAMING),
        "cookies": {name: morsel.OutputString() for name, morsel in response.cookies.items()},
        "body": await response.read(),
        "path": (response.url.raw_path, response.url.raw_query_string),
        "redirects": [earlier.status for earlier in response.history],
        "content_type": response.content_type,
        "charset": response.charset,
        "text": await response.text(),
    }


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "path", "options"), CASES.values(), ids=CASES.keys())
async def test_a_call_in_memory_gives_what_the_call_over_http_gives(over_http, method, path, options):
    """Moving a server into the caller's process must not change one observable thing."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        there = await shape(await session.request(method, over_http + path, **options))

    here = await shape(await in_process.dispatch(build_app(), method, over_http + path, **options))

    assert here == there


@pytest.mark.asyncio
@pytest.mark.parametrize(("method", "path", "options"), CASES.values(), ids=CASES.keys())
async def test_a_call_by_base_url_and_path_gives_the_same(over_http, method, path, options):
    """`ServerClient` calls this way, and hosting must make no difference."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        there = await shape(await session.request(method, over_http + path, **options))

    app = build_app()
    here = await shape(await in_process.request(app, method, over_http, path, **options))

    assert app.call_handler is not None
    assert here == there


@pytest.mark.asyncio
async def test_too_many_redirects_end_as_with_aiohttp():
    """A redirect loop must not hang a rollout only because the server is in the same process."""
    with pytest.raises(aiohttp.TooManyRedirects):
        await in_process.dispatch(build_app(), "GET", "http://127.0.0.1:1/circle")


@pytest.mark.asyncio
async def test_a_redirect_in_a_circle_names_the_server(over_http):
    """The failure would be attributed to the caller, an innocent agent."""
    named = {FAILED_HEADER: "weather", FAILED_PATH_HEADER: "/circle"}
    for call in (
        in_process.request(build_app(), "GET", over_http, "/circle", callee="weather"),
        http.send("GET", f"{over_http}/circle", callee="weather"),
    ):
        with pytest.raises(aiohttp.TooManyRedirects) as caught:
            await call

        assert attribution_headers(caught.value, "my_agent", "/run").items() >= named.items()


@pytest.mark.asyncio
async def test_content_can_be_read_as_a_stream_and_json_checks_its_type():
    """Callers use every way of reading that aiohttp offers."""
    response = await in_process.dispatch(build_app(), "GET", "http://127.0.0.1:1/stream")

    assert await response.content.readline() == b"line 0\n"
    assert await response.content.read(4) == b"line"
    assert [chunk async for chunk in response.content.iter_chunked(100)] == [b" 1\nline 2\nline 3\nline 4\n"]
    assert response.content.at_eof()
    with pytest.raises(aiohttp.ContentTypeError):
        await response.json()
    async with await in_process.dispatch(build_app(), "POST", "http://127.0.0.1:1/sum", json={"a": 1}) as answer:
        assert await answer.json() == {"sum": 1}


@pytest.mark.asyncio
async def test_an_app_that_raises_without_an_answer_is_a_500_as_under_uvicorn(caplog):
    """A server must behave the same wherever it is hosted, and its traceback must be logged."""

    async def app(scope, receive, send):
        raise RuntimeError("bare")

    with caplog.at_level(logging.ERROR):
        response = await in_process.dispatch(app, "GET", "http://127.0.0.1:1/")

    assert (response.status, await response.read()) == (500, b"Internal Server Error")
    assert "bare" in caplog.text
    with pytest.raises(aiohttp.ClientResponseError):
        response.raise_for_status()


async def record_scope(scope, receive, send):
    headers = dict(scope["headers"])
    body = f"{CALLER.get()} {headers.get(DEADLINE_HEADER.encode(), b'-').decode()}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.asyncio
async def test_a_handler_sees_its_callers_deadline_but_not_its_context():
    """Over HTTP only headers travel; what leaks through context variables would differ between hostings."""
    CALLER.set("me")

    with deadlines.time_limit(30):
        response = await in_process.dispatch(record_scope, "GET", "http://127.0.0.1:1/")

    seen, seconds = (await response.text()).split()
    assert seen == "nobody"
    assert 0 < float(seconds) <= 30


@pytest.mark.asyncio
async def test_a_handler_that_takes_too_long_is_cancelled_and_the_caller_told():
    """Abandoned work would otherwise slow down every other rollout in the process."""
    stopped = asyncio.Event()

    async def app(scope, receive, send):
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    with pytest.raises(DeadlineExceeded) as caught:
        await in_process.dispatch(app, "GET", "http://127.0.0.1:1/", timeout=0.02, callee="slow")

    assert stopped.is_set()
    assert caught.value.where == "slow"


@pytest.mark.asyncio
async def test_cancelling_the_call_reaches_the_handler():
    """A rollout that is cancelled must not leave work behind in the same process."""
    entered, stopped = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    call = asyncio.create_task(in_process.dispatch(app, "GET", "http://127.0.0.1:1/"))
    await entered.wait()
    call.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call
    assert stopped.is_set()


def test_mounting_is_by_address_and_all_names_of_the_loopback_are_one():
    """A call to `localhost` would otherwise try a port where no server listens."""
    in_process.mount("127.0.0.1", 41999, record_scope)
    try:
        assert in_process.app_for_url("http://localhost:41999/x") is record_scope
        assert in_process.app_for_url("http://127.0.0.1:42000/x") is None
        assert in_process.app_for_url("https://localhost:41999/x") is None
        assert in_process.app_for_key(in_process.address_key("0.0.0.0", 41999)) is record_scope
    finally:
        in_process.unmount("127.0.0.1", 41999)
    assert in_process.app_for_url("http://localhost:41999/x") is None
