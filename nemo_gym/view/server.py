"""Serve the viewer's page and its JSON on loopback, for browsers on this machine.

Only GET and HEAD are allowed. Other web pages cannot read from it: the headers Host and Origin must name the server.
On any other address than loopback a token is required; on loopback `gym view` answers processes of the user only.
"""

import asyncio
import hmac
import re
from collections.abc import Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.view.conversation import event_text, event_tokens, read_events, read_judgements, read_timings
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.filters import FilterError
from nemo_gym.view.summary import compare_runs, summarize
from nemo_gym.wire.stored_rollout import RolloutId

POLL_SECONDS = 1.0
"""Pause between two checks for new lines in the files."""
MAX_ROWS = 500
MAX_DIGITS = 19
MAX_QUERY_DIGITS = 14
"""Fewer than MAX_DIGITS, because handlers add to these numbers."""
_DIGITS = re.compile(r"[0-9]+")
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
PAGE_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "app.js": ("app.js", "text/javascript; charset=utf-8"),
    "filter.js": ("filter.js", "text/javascript; charset=utf-8"),
    "style.css": ("style.css", "text/css; charset=utf-8"),
}
STATIC_FILES = PAGE_FILES | {"favicon.ico": ("favicon.svg", "image/svg+xml")}


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def view_app(runs: Sequence[RunDatabase], *, token: str | None = None, hosts: frozenset[str] = LOOPBACK) -> Starlette:
    """Return the application that shows the runs. With a `token`, requests without it are rejected."""
    pages = Pages(runs)

    @asynccontextmanager
    async def following_files(_: Starlette) -> Any:
        task = asyncio.create_task(_follow_files(runs))
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
        Route("/{path:path}", static_file),
    ]
    return Starlette(
        routes=routes,
        lifespan=following_files,
        middleware=[Middleware(AccessCheck, token=token, hosts=hosts)],
        exception_handlers={FilterError: _bad_filter},
    )


class AccessCheck:
    """Middleware that rejects forbidden requests (403) and too large numbers (400) and adds security headers."""

    def __init__(self, app: ASGIApp, *, token: str | None, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        rejection = self._rejection_reason(request)
        if rejection is not None:
            await PlainTextResponse(rejection, 403, headers=HEADERS)(scope, receive, send)
            return
        if any(_is_too_large(digits) for digits in _DIGITS.findall(scope["path"])):
            await PlainTextResponse("a number in the path is too large", 400, headers=HEADERS)(scope, receive, send)
            return
        query_token = request.query_params.get("token")

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if self._token and query_token:  # the page's further requests have the cookie instead
                    headers.append("Set-Cookie", f"{TOKEN_COOKIE}={self._token}; HttpOnly; SameSite=Strict; Path=/")
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _rejection_reason(self, request: Request) -> str | None:
        """Return the reason why a request is rejected; None if it is allowed."""
        if request.method not in ("GET", "HEAD"):
            return "only GET and HEAD are allowed"
        if _host(request.headers.get("host", "")) not in self._hosts:
            return "unknown host name"
        origin = request.headers.get("origin")
        if origin is not None and _host(urlsplit(origin).netloc) not in self._hosts:
            return "requests from other pages are rejected"
        if self._token is None:
            return None
        token = request.query_params.get("token") or request.cookies.get(TOKEN_COOKIE) or ""
        return None if hmac.compare_digest(token.encode(), self._token.encode()) else "the token is missing or wrong"


class Pages:
    """The handlers of the JSON endpoints. Starlette runs them on threads, so that queries do not block the loop."""

    def __init__(self, runs: Sequence[RunDatabase]) -> None:
        self._runs = runs

    def runs(self, request: Request) -> Response:  # noqa: ARG002 - every route takes one
        return JsonResponse([{"number": number, "name": run.run.name} for number, run in enumerate(self._runs)])

    def run(self, request: Request) -> Response:
        return JsonResponse(summarize(self._run(request)))

    def progress(self, request: Request) -> Response:
        done, size = self._run(request).progress()
        return JsonResponse({"indexed": done, "size": size})

    def compare(self, request: Request) -> Response:
        return JsonResponse(compare_runs(self._run(request), self._run(request, "other")))

    def rollouts(self, request: Request) -> Response:
        """Return one page of the table of rollouts."""
        query = request.query_params
        page = self._run(request).page(
            **_filter(query),
            sort=query.get("sort", "task"),
            down=query.get("down") == "1",
            start=_start(request),
            count=min(_whole_number(query.get("count"), 100), MAX_ROWS),
        )
        return JsonResponse({"total": page.total, "rows": page.rows})

    def tasks(self, request: Request) -> Response:
        page = self._run(request).tasks(**_filter(request.query_params), start=_start(request))
        return JsonResponse({"total": page.total, "rows": page.rows})

    def rollout(self, request: Request) -> Response:
        """Return the content of a rollout's page, and the ids of the previous, next and next failed rollout."""
        run, rollout_id, record = self._run(request), _rollout_id(request), self._record(request)
        count = min(_whole_number(request.query_params.get("count"), 200), MAX_ROWS)
        total, events = read_events(record, _start(request), count)
        return JsonResponse(
            {
                **rollout_page(record, run.row(rollout_id), events, total),
                "attempts": len(run.locations(rollout_id)),
                **run.neighbours(rollout_id, **_filter(request.query_params)),
                "next_failed": run.neighbours(rollout_id, filter_text='outcome == "failed"')["next"],
            }
        )

    def text(self, request: Request) -> Response:
        event = request.path_params["event"]
        return JsonResponse({"text": event_text(self._record(request), event, _start(request))})

    def tokens(self, request: Request) -> Response:
        return JsonResponse(event_tokens(self._record(request), request.path_params["event"], _start(request)))

    def raw(self, request: Request) -> Response:
        return JsonResponse(self._record(request))

    def _run(self, request: Request, parameter: str = "run") -> RunDatabase:
        """Return the run that a parameter of the path names; respond with 404 if it is unknown."""
        number: int = request.path_params[parameter]
        if number >= len(self._runs):
            raise HTTPException(404, "unknown run")
        return self._runs[number]

    def _record(self, request: Request) -> dict[str, Any]:
        """Return the requested record; respond with 404 if it is unknown."""
        attempt = _whole_number(request.query_params.get("attempt"), 0)
        record = self._run(request).record(_rollout_id(request), attempt)
        if record is None:
            raise HTTPException(404, "unknown rollout")
        return record


def rollout_page(record: dict[str, Any], facts: dict[str, Any], events: list[Any], total: int) -> dict[str, Any]:
    """Return the content of a rollout's page; long fields of the record are cut."""
    conversation = ("responses_create_params", "response")
    return {
        "facts": facts,
        "events": events,
        "total": total,
        "fields": {name: _cut(value) for name, value in record.items() if name not in conversation},
        "timings": read_timings(record),
        "judgements": read_judgements(record),
    }


def _cut(value: Any, longest: int = 4000) -> Any:
    text = value if isinstance(value, str) else orjson.dumps(value).decode("utf-8", errors="replace")
    return value if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"


async def static_file(request: Request) -> Response:
    """Return one of the page's files. The page itself selects its view by the URL part after `#`."""
    if request.path_params["path"] not in STATIC_FILES:
        return PlainTextResponse("page not found", 404)
    name, media_type = STATIC_FILES[request.path_params["path"]]
    content = files("nemo_gym.view").joinpath("static", name).read_bytes()
    return Response(content, media_type=media_type)


async def _follow_files(runs: Sequence[RunDatabase]) -> None:
    """Add new lines of the files to the databases while the server runs, and compute the summary after each update."""
    while True:
        for run in runs:
            has_grown = False
            while await run_in_threadpool(run.grow):
                has_grown = True
            if has_grown:
                await run_in_threadpool(summarize, run)
        await asyncio.sleep(POLL_SECONDS)


async def _bad_filter(_: Request, error: Exception) -> Response:
    return JsonResponse({"error": str(error)}, 400)


def _is_too_large(digits: str) -> bool:
    """Return whether a number is too large for the database, which has integers of 64 bits (at most MAX_DIGITS)."""
    significant = digits.lstrip("0")
    return len(significant) > MAX_DIGITS or int(significant or 0) >= 2**63


def _host(netloc: str) -> str:
    """Return `host:port` without the port; an IPv6 address keeps its brackets."""
    return netloc.rsplit(":", 1)[0] if not netloc.endswith("]") else netloc


def _rollout_id(request: Request) -> RolloutId:
    return request.path_params["task"], request.path_params["repeat"]


def _start(request: Request) -> int:
    return _whole_number(request.query_params.get("start"), 0)


def _filter(query: QueryParams) -> dict[str, Any]:
    return {"filter_text": query.get("where", ""), "words": query.get("words", "")}


def _whole_number(text: str | None, default: int) -> int:
    """Return a number of the query, or the default if it is no whole number; respond with 400 if it is too large."""
    if text is None or not text.isascii() or not text.isdecimal():
        return default
    significant = text.lstrip("0") or "0"
    if len(significant) > MAX_QUERY_DIGITS:
        raise HTTPException(400, "a number in the query is too large")
    return int(significant)
