"""The page's server: static files and JSON, on loopback, for browsers of this machine only.

Other web pages cannot read from it: the Host must be ours, an Origin must be ours, and on any other address than
loopback a token is asked for. Nothing can be changed through it.
"""

import asyncio
import hmac
from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.view import summary as summaries
from nemo_gym.view.conversation import event_text, event_tokens, events, judgements, timings
from nemo_gym.view.index import RunIndex
from nemo_gym.view.query import FilterError

LOOK_SECONDS = 1.0
"""How often the files are looked at for something new."""
MOST_ROWS = 500
TOKEN_COOKIE = "gym_view"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATIC = {
    "": ("index.html", "text/html; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "filter.js": ("filter.js", "text/javascript; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
}


class Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def view_app(indexes: Sequence[RunIndex], *, token: str | None = None, hosts: frozenset[str] = LOOPBACK) -> Starlette:
    """The application that shows some runs. With a `token`, only who brings it is answered."""
    pages = Pages(indexes)

    @asynccontextmanager
    async def following(_: Starlette) -> Any:
        task = asyncio.create_task(_follow(indexes))
        yield
        task.cancel()

    routes = [
        Route("/api/runs", pages.runs),
        Route("/api/runs/{run:int}", pages.run),
        Route("/api/runs/{run:int}/progress", pages.progress),
        Route("/api/runs/{run:int}/rollouts", pages.rollouts),
        Route("/api/runs/{run:int}/tasks", pages.tasks),
        Route("/api/runs/{run:int}/rollouts/{task:int}/{repeat:int}", pages.rollout),
        Route("/api/runs/{run:int}/rollouts/{task:int}/{repeat:int}/text/{event:int}", pages.text),
        Route("/api/runs/{run:int}/rollouts/{task:int}/{repeat:int}/tokens/{event:int}", pages.tokens),
        Route("/api/runs/{run:int}/rollouts/{task:int}/{repeat:int}/raw", pages.raw),
        Route("/api/compare/{run:int}/{other:int}", pages.compare),
        Route("/{path:path}", static),
    ]
    return Starlette(
        routes=routes,
        lifespan=following,
        middleware=[Middleware(Guard, token=token, hosts=hosts)],
        exception_handlers={FilterError: _bad_filter},
    )


class Guard:
    """Lets through only who may look."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            await PlainTextResponse(refusal, 403, headers=HEADERS)(scope, receive, send)
            return
        offered = request.query_params.get("token")

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                if self._token and offered:
                    cookie = f"{TOKEN_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/"
                    added.append((b"set-cookie", cookie.encode()))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        await self._app(scope, receive, with_headers)

    def _refusal(self, request: Request) -> str | None:
        if request.method not in ("GET", "HEAD"):
            return "there is nothing to change here"
        if _host(request.headers.get("host", "")) not in self._hosts:
            return "this host name is not ours"
        origin = request.headers.get("origin")
        if origin is not None and _host(urlsplit(origin).netloc) not in self._hosts:
            return "pages of others may not read this"
        if self._token is None:
            return None
        given = request.query_params.get("token") or request.cookies.get(TOKEN_COOKIE) or ""
        return None if hmac.compare_digest(given.encode(), self._token.encode()) else "the token is missing or wrong"


class Pages:
    """What each address answers. Work on the index happens in a thread, so that one question holds up no other."""

    def __init__(self, indexes: Sequence[RunIndex]) -> None:
        self._indexes = indexes

    async def runs(self, request: Request) -> Response:  # noqa: ARG002 - every route takes one
        return Json([{"number": number, "name": index.run.name} for number, index in enumerate(self._indexes)])

    async def run(self, request: Request) -> Response:
        return await self._answer(request, lambda index: Json(summaries.summary(index)))

    async def progress(self, request: Request) -> Response:
        def told(index: RunIndex) -> Response:
            done, size = index.progress()
            return Json({"indexed": done, "size": size})

        return await self._answer(request, told)

    async def compare(self, request: Request) -> Response:
        other = request.path_params["other"]
        if other >= len(self._indexes):
            return PlainTextResponse("there is no such run", 404)
        return await self._answer(request, lambda index: Json(summaries.compare(index, self._indexes[other])))

    async def rollouts(self, request: Request) -> Response:
        asked = request.query_params

        def page(index: RunIndex) -> Response:
            found = index.page(
                where=asked.get("where", ""),
                words=asked.get("words", ""),
                sort=asked.get("sort", "task"),
                down=asked.get("down") == "1",
                start=_whole(asked.get("start"), 0),
                count=min(_whole(asked.get("count"), 100), MOST_ROWS),
            )
            return Json({"total": found.total, "rows": found.rows})

        return await self._answer(request, page)

    async def tasks(self, request: Request) -> Response:
        asked = request.query_params

        def page(index: RunIndex) -> Response:
            where, words, start = asked.get("where", ""), asked.get("words", ""), _whole(asked.get("start"), 0)
            found = index.tasks(where=where, words=words, start=start)
            return Json({"total": found.total, "rows": found.rows})

        return await self._answer(request, page)

    async def rollout(self, request: Request) -> Response:
        asked = request.query_params
        place = (request.path_params["task"], request.path_params["repeat"])

        def page(index: RunIndex) -> Response:
            record = index.record(place, _whole(asked.get("attempt"), 0))
            if record is None:
                return PlainTextResponse("there is no such rollout", 404)
            total, shown = events(
                record, _whole(asked.get("start"), 0), min(_whole(asked.get("count"), 200), MOST_ROWS)
            )
            return Json(
                {
                    "facts": index.page(where=f"task == {place[0]} and repeat == {place[1]}", count=1).rows[0],
                    "attempts": len(index.places(place)),
                    "events": shown,
                    "total": total,
                    "fields": rest_of(record),
                    "timings": timings(record),
                    "judgements": judgements(record),
                    **index.neighbours(place, where=asked.get("where", ""), words=asked.get("words", "")),
                    "next_failed": index.neighbours(place, where='outcome == "failed"')["next"],
                }
            )

        return await self._answer(request, page)

    async def text(self, request: Request) -> Response:
        def piece(record: dict[str, Any], event: int, start: int) -> Any:
            return {"text": event_text(record, event, start)}

        return await self._piece(request, piece)

    async def tokens(self, request: Request) -> Response:
        return await self._piece(request, event_tokens)

    async def raw(self, request: Request) -> Response:
        return await self._piece(request, lambda record, *_: record)

    async def _piece(self, request: Request, piece: Callable[[dict[str, Any], int, int], Any]) -> Response:
        place = (request.path_params["task"], request.path_params["repeat"])

        def answer(index: RunIndex) -> Response:
            record = index.record(place, _whole(request.query_params.get("attempt"), 0))
            if record is None:
                return PlainTextResponse("there is no such rollout", 404)
            start = _whole(request.query_params.get("start"), 0)
            return Json(piece(record, request.path_params.get("event", 0), start))

        return await self._answer(request, answer)

    async def _answer(self, request: Request, work: Callable[[RunIndex], Response]) -> Response:
        number = request.path_params["run"]
        if number >= len(self._indexes):
            return PlainTextResponse("there is no such run", 404)
        return await run_in_threadpool(work, self._indexes[number])


def rest_of(record: dict[str, Any]) -> dict[str, Any]:
    """What the verifier and the framework wrote beside the conversation, cut to what a page can show."""
    left_out = ("responses_create_params", "response")
    return {name: _cut(value) for name, value in record.items() if name not in left_out}


def _cut(value: Any, longest: int = 4000) -> Any:
    text = value if isinstance(value, str) else orjson.dumps(value).decode("utf-8", errors="replace")
    return value if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


async def static(request: Request) -> Response:
    """The page and its parts; which of its views is shown is said after the `#`."""
    if request.path_params["path"] not in STATIC:
        return PlainTextResponse("there is no such page", 404)
    name, media_type = STATIC[request.path_params["path"]]
    content = files("nemo_gym.view").joinpath("static", name).read_bytes()
    return Response(content, media_type=media_type)


async def _follow(indexes: Sequence[RunIndex]) -> None:
    """Take in what the files gain, for as long as the server runs, and have the summary ready when they pause."""
    while True:
        for index in indexes:
            grown = False
            while await run_in_threadpool(index.grow):
                grown = True
            if grown:
                await run_in_threadpool(summaries.summary, index)
        await asyncio.sleep(LOOK_SECONDS)


async def _bad_filter(_: Request, error: Exception) -> Response:
    return Json({"error": str(error)}, 400)


def _host(netloc: str) -> str:
    return netloc.rsplit(":", 1)[0] if not netloc.endswith("]") else netloc


def _whole(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 15 else default
