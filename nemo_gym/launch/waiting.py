"""What a rollout waits for right now: the call to a server, of all calls nested in it, that has not been answered.

Nobody keeps books about it. When somebody asks, a cell looks at the coroutines that are suspended in it; a rollout
that nobody asks about costs nothing.
"""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from nemo_gym.errors import ServerUnreachable
from nemo_gym.keys import ROLLOUT_INDEX_KEY_NAME, ROLLOUT_PATH_PREFIX, TASK_INDEX_KEY_NAME
from nemo_gym.launch.link import Link, Visit
from nemo_gym.serve.head import Place
from nemo_gym.server_utils import ServerClient

WAITING = "(what rollouts wait for)"
"""The name under which a cell answers; no instance can be called so."""

_CALL = ServerClient.request.__code__
_VISITS = (Visit._answer_call.__code__, Visit._answer.__code__)
_HTTP = RequestResponseCycle.run_asgi.__code__
_READERS = frozenset({"endpoint", "app"})
"""The functions that hold the request while a handler works: of `serve.direct` and of FastAPI."""
_PREFIX = re.compile(rf"^/{ROLLOUT_PATH_PREFIX}/[^/]+(?:/training-token-capture)?")


def waiting_here(places: Iterable[Place]) -> dict[Place, str]:
    """What those of the rollouts wait for that were sent to this process, as `server /path`."""
    wanted = {place: b'"%s":%d' % (TASK_INDEX_KEY_NAME.encode(), place[0]) for place in places}
    found: dict[Place, str] = {}
    for task in asyncio.all_tasks():
        place = _place(task, wanted)
        if place is not None and (awaited := innermost_call(task)) is not None:
            found[place] = awaited
    return found


def innermost_call(task: "asyncio.Task[Any]") -> str | None:
    """The server and path of the deepest call under way in a task, or None if it waits for none."""
    awaited = None
    for frame in suspended_frames(task):
        if frame.f_code is _CALL:
            path = _PREFIX.sub("", str(frame.f_locals.get("url_path")))
            awaited = f"{frame.f_locals.get('server_name')} {path}"
    return awaited


def suspended_frames(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """The frames of the coroutines a task is suspended in, outermost first, through tasks that it awaits."""
    waiting, seen = [task], {task}
    while waiting:
        current = waiting.pop()
        last: FrameType | None = None
        awaiting: Any = current.get_coro()
        while awaiting is not None:
            kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(awaiting, f"{kind}_frame")), None)
            frame = getattr(awaiting, f"{kind}_frame", None)
            if isinstance(frame, FrameType):
                last = frame
                yield frame
            awaiting = _awaited(awaiting, kind, frame)
        inner = [one for one in _awaited_tasks(current, last) if one not in seen]
        seen.update(inner)
        waiting += inner


def _awaited(awaiting: Any, kind: str | None, frame: FrameType | None) -> Any:
    """What a coroutine or generator is suspended at; None at the end, which is a future."""
    if kind != "gi":
        return getattr(awaiting, f"{kind}_await", None)
    # `net.isolated` steps a coroutine by hand, from a generator that holds it.
    return awaiting.gi_yieldfrom or (frame.f_locals.get("coroutine") if frame is not None else None)


def _awaited_tasks(task: "asyncio.Task[Any]", last: FrameType | None) -> list["asyncio.Task[Any]"]:
    """The tasks that a task waits for: one, the children of a `gather`, or those its last frame holds."""
    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task):
        return [waiter]
    held = getattr(waiter, "_children", None) or (last.f_locals.values() if last is not None else ())
    return [one for one in held if isinstance(one, asyncio.Task) and not one.done()]


def _place(task: "asyncio.Task[Any]", wanted: Mapping[Place, bytes]) -> Place | None:
    """Which of the rollouts a task is the `/run` of, if any."""
    coroutine: Any = task.get_coro()
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return None
    body = frame.f_locals.get("body") if frame.f_code in _VISITS else None
    if frame.f_code is _HTTP:
        body = _received(task)
    if not isinstance(body, bytes) or not any(mark in body for mark in wanted.values()):
        return None
    row = orjson.loads(body)
    places = [place for place in wanted if place == (row.get(TASK_INDEX_KEY_NAME), row.get(ROLLOUT_INDEX_KEY_NAME))]
    return places[0] if places else None


def _received(task: "asyncio.Task[Any]") -> bytes | None:
    """The body of the request that a task answers over HTTP, from the frame that read it."""
    for frame in suspended_frames(task):
        if frame.f_code.co_name in _READERS:
            body = getattr(frame.f_locals.get("request"), "_body", None)
            if isinstance(body, bytes):
                return body
    return None


async def waiting_app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
    """A cell's answer: what was asked for, as a list of places with what each waits for."""
    message = await receive()
    asked = [(int(task), int(rollout)) for task, rollout in orjson.loads(message["body"])]
    found = waiting_here(asked)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": orjson.dumps([[*place, text] for place, text in found.items()])})


async def ask_cells(links: Sequence[Link], places: Sequence[Place]) -> dict[Place, str]:
    """What the rollouts wait for, whichever cell they are in; cells that do not answer know nothing."""
    head = {"instance": WAITING, "method": "GET", "path": "/", "raw_path": "/", "query": "", "headers": []}
    body = orjson.dumps([list(place) for place in places])
    answers = await asyncio.gather(*[link.call(head, body) for link in links], return_exceptions=True)
    found: dict[Place, str] = {}
    for answer in answers:
        if isinstance(answer, ServerUnreachable):
            continue
        if isinstance(answer, BaseException):
            raise answer
        if answer[0].get("status") == 200:
            found |= {(task, rollout): text for task, rollout, text in orjson.loads(answer[1])}
    return found
