"""Serve the viewer's page and its JSON on loopback, for browsers on this machine.

Only GET and HEAD are allowed, and POST to store the annotation of a rollout (unless annotations are off), which needs a
token that only the page has. Other web pages cannot read from it: the headers Host and Origin must name the server. On
any other address than loopback a token is required; on loopback `gym view` answers processes of the user only.
"""

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from nemo_gym.errors import GymError
from nemo_gym.rollouts.run_files import RunFiles
from nemo_gym.view.api import JsonResponse, Pages
from nemo_gym.view.database import RunDatabase
from nemo_gym.view.filters import FilterError
from nemo_gym.view.summary import statistics_of

logger = logging.getLogger("nemo_gym.view")

FindRuns = Callable[[], Sequence[RunFiles]]
POLL_SECONDS = 1.0
"""Pause between two checks for new lines in the files."""
MAX_DIGITS = 19
_DIGITS = re.compile(r"[0-9]+")
TOKEN_COOKIE = "gym_view"
WRITE_TOKEN_HEADER, WRITE_TOKEN_META = "x-gym-view-token", "gym-view-token"
_ANNOTATIONS_PATH = re.compile(r"/api/runs/[0-9]{1,9}/annotations", re.ASCII)
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
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files of the page by the end of their name; others are not served."""


def view_app(
    runs: Sequence[RunDatabase],
    *,
    token: str | None = None,
    hosts: frozenset[str] = LOOPBACK,
    advice: Mapping[str, str] | None = None,
    has_annotations: bool = True,
    find_runs: FindRuns | None = None,
) -> Starlette:
    """Return the application that shows the runs. With a `token`, requests without it are rejected.

    `advice` says what to do about a failure, by its kind. With `has_annotations`, the page can annotate
    rollouts. `find_runs` returns the runs that exist now: new ones are added while the server runs.
    """
    all_runs = list(runs)
    pages = Pages(all_runs, advice or {}, has_annotations=has_annotations)
    write_token = secrets.token_urlsafe(24) if has_annotations else None
    page = PageFiles(write_token)

    @asynccontextmanager
    async def following_files(_: Starlette) -> Any:
        task = asyncio.create_task(_follow_files(all_runs, find_runs))
        yield
        task.cancel()

    run, rollout = "/api/runs/{run:int}", "/api/runs/{run:int}/rollouts/{task:int}/{repeat:int}"
    routes = [
        Route("/api/session", pages.session),
        Route("/api/runs", pages.runs),
        Route(run, pages.run),
        Route(f"{run}/progress", pages.progress),
        Route(f"{run}/columns", pages.columns),
        Route(f"{run}/filter", pages.filter),
        Route(f"{run}/rollouts", pages.rollouts),
        Route(f"{run}/rollouts.csv", pages.csv),
        Route(f"{run}/tasks", pages.tasks),
        Route(f"{run}/live", pages.live),
        Route(f"{run}/annotations", pages.annotations, methods=["GET"]),
        Route(f"{run}/annotations", pages.annotate, methods=["POST"]),
        Route(rollout, pages.rollout),
        Route(f"{rollout}/text/{{event:int}}", pages.text),
        Route(f"{rollout}/find", pages.find),
        Route(f"{rollout}/tokens/{{event:int}}", pages.tokens),
        Route(f"{rollout}/tools", pages.tools),
        Route(f"{rollout}/sequence", pages.sequence),
        Route(f"{rollout}/row", pages.row),
        Route(f"{rollout}/raw", pages.raw),
        Route("/api/compare", pages.compare_several),
        Route("/api/compare/{run:int}/{other:int}", pages.compare),
        Route("/{path:path}", page.serve),
    ]
    return Starlette(
        routes=routes,
        lifespan=following_files,
        middleware=[Middleware(AccessCheck, token=token, hosts=hosts, write_token=write_token)],
        exception_handlers={FilterError: _bad_filter},
    )


class AccessCheck:
    """Middleware that rejects forbidden requests (403) and too large numbers (400) and adds security headers."""

    def __init__(
        self, app: ASGIApp, *, token: str | None, hosts: frozenset[str], write_token: str | None = None
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts
        self._write_token = write_token

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
        if request.method not in ("GET", "HEAD") and (problem := self._write_problem(request)) is not None:
            return problem
        if _host(request.headers.get("host", "")) not in self._hosts:
            return "unknown host name"
        origin = request.headers.get("origin")
        if origin is not None and _host(_netloc(origin)) not in self._hosts:
            return "requests from other pages are rejected"
        if self._token is None:
            return None
        token = request.query_params.get("token") or request.cookies.get(TOKEN_COOKIE) or ""
        return None if hmac.compare_digest(token.encode(), self._token.encode()) else "the token is missing or wrong"

    def _write_problem(self, request: Request) -> str | None:
        """Return the reason why a request that is not a reading one is rejected; None for one of the page."""
        is_annotation = request.method == "POST" and _ANNOTATIONS_PATH.fullmatch(request.url.path) is not None
        if not is_annotation or self._write_token is None:
            return "only GET and HEAD are allowed"
        sent = request.headers.get(WRITE_TOKEN_HEADER, "")
        if not hmac.compare_digest(sent.encode(), self._write_token.encode()):
            return "the token of the page is missing or wrong: load the page again"
        origin = request.headers.get("origin")
        if origin is None or _netloc(origin) != request.headers.get("host"):
            return "annotations are accepted from the page of the viewer only"
        is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        return None if is_json else "an annotation is sent as application/json"


class PageFiles:
    """Serves the files of the page; the page has the token that its writing requests need."""

    def __init__(self, write_token: str | None) -> None:
        self._write_token = write_token

    async def serve(self, request: Request) -> Response:
        """Return one of the page's files. The page itself selects its view by the URL part after `#`."""
        path: str = request.path_params["path"]
        path = {"": "index.html", "favicon.ico": "favicon.svg"}.get(path, path)
        entry = page_files().get(path)
        if entry is None:
            return PlainTextResponse("page not found", 404)
        content = entry.read_bytes()
        if path == "index.html" and self._write_token is not None:
            meta = f'<head>\n<meta name="{WRITE_TOKEN_META}" content="{self._write_token}">'
            content = content.replace(b"<head>", meta.encode(), 1)
        return Response(content, media_type=MEDIA_TYPES[f".{path.rpartition('.')[2]}"])


@cache
def page_files() -> dict[str, Traversable]:
    """Return the files of the page by their path below `static`."""

    def inside(folder: Traversable, prefix: str) -> dict[str, Traversable]:
        entries: dict[str, Traversable] = {}
        for entry in folder.iterdir():
            if entry.is_dir():
                entries |= inside(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(tuple(MEDIA_TYPES)):
                entries[f"{prefix}{entry.name}"] = entry
        return entries

    return inside(files("nemo_gym.view").joinpath("static"), "")


def add_new_runs(runs: list[RunDatabase], find_runs: FindRuns) -> None:
    """Append the runs that have appeared since; runs that are gone keep their number, which addresses contain."""
    known_paths = {run.run.output.resolve() for run in runs}
    with suppress(GymError):  # the folder is empty, or was removed
        runs += [RunDatabase(run) for run in find_runs() if run.output.resolve() not in known_paths]


async def _follow_files(runs: list[RunDatabase], find_runs: FindRuns | None) -> None:
    """Add new lines of the files to the databases while the server runs, and compute the summary after each update."""
    problems: dict[str, str] = {}
    while True:
        await _try_following(problems, "new runs", _add_runs(runs, find_runs))
        for run in list(runs):
            await _try_following(problems, str(run.run.output), _follow_run(run))
        await asyncio.sleep(POLL_SECONDS)


async def _add_runs(runs: list[RunDatabase], find_runs: FindRuns | None) -> None:
    if find_runs is not None:
        await run_in_threadpool(add_new_runs, runs, find_runs)


async def _follow_run(run: RunDatabase) -> None:
    has_grown = False
    while await run_in_threadpool(run.grow):
        has_grown = True
    if has_grown:
        await run_in_threadpool(statistics_of, run)


async def _try_following(problems: dict[str, str], name: str, step: Awaitable[None]) -> None:
    """Await one step of following a run; log an error if it differs from the last one, and return normally."""
    try:
        await step
    except Exception as error:  # such as a full disk: the server keeps running, and the next round tries again
        text = f"{type(error).__name__}: {error}"
        if problems.get(name) != text:
            logger.warning("cannot follow %s: %s", name, text)
        problems[name] = text
    else:
        problems.pop(name, None)


async def _bad_filter(request: Request, error: Exception) -> Response:
    """Explain an invalid filter: the problem, its span in the text, and the repaired filter."""
    facts: dict[str, Any] = {"error": str(error)}
    if isinstance(error, FilterError):
        facts["message"] = error.reason or error.problem
        if error.span is not None:
            start, end = error.span
            facts |= {"from": start, "to": end}
            if error.suggestion is not None:
                text = request.query_params.get("where", "").encode("utf-16-le", "surrogatepass")
                repaired = text[: 2 * start] + error.suggestion.encode("utf-16-le") + text[2 * end :]
                facts |= {"suggestion": error.suggestion, "repaired": repaired.decode("utf-16-le", "replace")}
    return JsonResponse(facts, 400)


def _is_too_large(digits: str) -> bool:
    """Return whether a number is too large for the database, which has integers of 64 bits (at most MAX_DIGITS)."""
    significant = digits.lstrip("0")
    return len(significant) > MAX_DIGITS or int(significant or 0) >= 2**63


def _netloc(origin: str) -> str:
    """Return `host:port` of an origin; empty if it is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host(netloc: str) -> str:
    """Return `host:port` without the port; an IPv6 address keeps its brackets."""
    return netloc.rsplit(":", 1)[0] if not netloc.endswith("]") else netloc
