"""A request from one process of a run to a server in another, without HTTP: frames over a Unix socket.

A frame is two lengths, a JSON head and a body. `Link` is the caller's end and carries any number of requests at once;
`Door` is where a cell answers them. Both ends speak ASGI to the rest of the program: a `LinkedApp` can be mounted
wherever an app can, and the door calls real apps. Plain JSON calls, of which a run mostly consists, are sent as the few
words they are (`call` in the head) and take the app's short way at the other end.
"""

import asyncio
import itertools
import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, cast

import orjson
from multidict import CIMultiDict, CIMultiDictProxy
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import DeadlineExceeded, ServerUnreachable
from nemo_gym.net import deadline, local
from nemo_gym.net.local_request import Sent
from nemo_gym.net.local_response import LocalResponse, ShortResponse
from nemo_gym.net.outbox import Gathered
from nemo_gym.net.turns import current_turns

LENGTHS = struct.Struct("!II")
MOST_BYTES = 1024 * 1024 * 1024

Frame = Callable[[dict[str, Any], bytes], None]


class FrameProtocol(asyncio.Protocol):
    """Frames in and out of one connection."""

    def __init__(self, on_frame: Frame, on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: Gathered | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = Gathered(cast("asyncio.Transport", transport))  # uvloop's own class is no subclass of it

    def data_received(self, data: bytes) -> None:
        arrived: bytes | bytearray = data  # most often whole frames, which need no buffer
        if self._buffer:
            self._buffer += data
            arrived = self._buffer
        done = 0
        while len(arrived) - done >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(arrived, done)
            if head + body > MOST_BYTES:
                self.close()
                return
            start = done + LENGTHS.size
            end = start + head + body
            if len(arrived) < end:
                break
            done = end
            self._on_frame(orjson.loads(arrived[start : start + head]), bytes(arrived[start + head : end]))
        if arrived is data:
            self._buffer += data[done:]
        else:
            del self._buffer[:done]

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        if self._transport is None or self._transport.is_closing():
            return
        encoded = orjson.dumps(head)
        self._transport.write(b"".join((LENGTHS.pack(len(encoded), len(body)), encoded, body)))

    def close(self) -> None:
        """Hang up; what was sent before that still goes out."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._on_lost()


class Link:
    """The caller's end: one connection to one cell."""

    def __init__(self, address: str, token: str, name: str) -> None:
        self._address = address
        self._token = token
        self._name = name
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._protocol: FrameProtocol | None = None
        self._connecting = asyncio.Lock()
        self.in_flight = 0
        """Requests that were taken and not answered, also while the connection is being made."""

    async def _connected(self) -> FrameProtocol:
        async with self._connecting:
            if self._protocol is None:
                _, protocol = await asyncio.get_running_loop().create_unix_connection(
                    lambda: FrameProtocol(self._answered, self._lost), sock=self._socket()
                )
                protocol.send({"token": self._token})
                self._protocol = protocol
            return self._protocol

    def _socket(self) -> socket.socket:
        """A connected socket; uvloop itself cannot connect to a name that is no file."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address)  # to a Unix socket this succeeds or fails at once
        except OSError as error:
            connection.close()
            raise ServerUnreachable(f"cannot be reached: {error.strerror}", where=self._name) from error
        return connection

    async def call(self, head: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the answer's head and body. Cancelling cancels the handler at the other end.

        Raises:
            ServerUnreachable: the cell is gone, before or while it worked on this.
        """
        self.in_flight += 1
        try:
            return await self._exchange(self._protocol or await self._connected(), head, body)
        finally:
            self.in_flight -= 1

    async def _exchange(
        self, protocol: FrameProtocol, head: Mapping[str, Any], body: bytes
    ) -> tuple[dict[str, Any], bytes]:
        number = next(self._numbers)
        waiting: asyncio.Future[tuple[dict[str, Any], bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        protocol.send({**head, "id": number}, body)
        try:
            return await waiting
        except asyncio.CancelledError:
            protocol.send({"cancel": number})
            raise
        finally:
            self._waiting.pop(number, None)

    def _answered(self, head: dict[str, Any], body: bytes) -> None:
        waiting = self._waiting.get(head["id"])
        if waiting is not None:
            current_turns().take(lambda: None if waiting.done() else waiting.set_result((head, body)))

    def _lost(self) -> None:
        self._protocol = None
        problem = ServerUnreachable("ended while it worked on this", where=self._name)
        for waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(problem)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


class LinkedApp:
    """An ASGI app whose work is done by an instance in another process."""

    def __init__(self, instance: str, choose: Callable[[], Link]) -> None:
        self._instance = instance
        self._choose = choose

    async def short_way(self, sent: Sent, _: deadline.Alarm) -> LocalResponse:
        """The answer to a plain JSON call, without ASGI."""
        head: dict[str, Any] = {"call": self._instance, "method": sent.method, "url": sent.base_url, "path": sent.path}
        head["seconds"] = float(deadline.passed_on(sent.seconds))
        if sent.headers:
            head["headers"] = dict(sent.headers)
        if sent.cookies:
            head["cookies"] = {name: sent.cookie(name) for name in sent.cookies}
        answer, content = await self._choose().call(head, sent.written())
        status = answer.get("status")
        if status is None:
            return ShortResponse(sent, None, content, answer.get("cookie"))
        request = sent.request()
        return LocalResponse(
            status=status,
            reason=local.reason_of(status),
            headers=CIMultiDictProxy(CIMultiDict(answer["headers"])),
            body=content,
            url=request.url,
            method=request.method,
            request_headers=CIMultiDictProxy(request.headers),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        head = {
            "instance": self._instance,
            "method": scope["method"],
            "path": scope["path"],
            "raw_path": scope.get("raw_path", b"").decode("latin-1"),
            "query": scope["query_string"].decode("latin-1"),
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]],
        }
        answer, content = await self._choose().call(head, body)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer["headers"]]
        await send({"type": "http.response.start", "status": answer["status"], "headers": headers})
        await send({"type": "http.response.body", "body": content})


class Door:
    """A cell's end: answers frames by calling the app of the instance they name."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str) -> None:
        self._apps = apps
        self._token = token
        self._visits: set[Visit] = set()

    def protocol(self) -> FrameProtocol:
        """For one connection."""
        visit = Visit(self._apps, self._token, self._visits.discard)
        self._visits.add(visit)
        return visit.protocol

    async def close(self) -> None:
        """Hang up; what is under way is cancelled."""
        for visit in list(self._visits):
            visit.protocol.close()
        await asyncio.sleep(0)


class Visit:
    """One connection at a door, and the requests it has under way."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str, gone: Callable[["Visit"], None]) -> None:
        self._apps = apps
        self._token = token
        self._gone = gone
        self._known = False
        self._waiting: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.protocol = FrameProtocol(self._frame, self._lost)

    def _frame(self, head: dict[str, Any], body: bytes) -> None:
        if not self._known:
            self._known = secrets.compare_digest(str(head.get("token", "")), self._token)
            if not self._known:
                self.protocol.close()
        elif "cancel" in head:
            self._waiting.discard(head["cancel"])
            task = self._tasks.get(head["cancel"])
            if task is not None:
                task.cancel()
        else:
            self._waiting.add(head["id"])
            current_turns().take(lambda: self._begin(head, body))

    def _begin(self, head: dict[str, Any], body: bytes) -> None:
        """Start working on a request, unless it was given up while it waited for its turn."""
        number = head["id"]
        if number not in self._waiting:
            return
        self._waiting.discard(number)
        task = asyncio.create_task(self._answer_call(head, body) if "call" in head else self._answer(head, body))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer_call(self, head: dict[str, Any], body: bytes) -> None:
        """Answer a plain JSON call, by the app's short way if it has one for it."""
        number, app = head["id"], self._apps.get(head["call"])
        if app is None:
            self._refuse(number, head["call"])
            return
        said = {name: head[name] for name in ("headers", "cookies", "seconds") if name in head}
        sent = Sent(head["method"], head["url"], head["path"], json=body, **said)
        try:
            response = await _short_answer(app, sent)
            if response is None:
                request = sent.request()
                response = await local.answered(app, request, request.scope(None))
        except Exception as error:  # the boundary of a server: whatever its app lets through is a 500
            self._send_failure(number, repr(error))
            return
        if isinstance(response, ShortResponse):
            answer = {"id": number} if response.cookie is None else {"id": number, "cookie": response.cookie}
        else:
            answer = {"id": number, "status": response.status, "headers": list(response.headers.items())}
        self.protocol.send(answer, await response.read())

    def _refuse(self, number: int, instance: str) -> None:
        self._send_failure(number, f"no instance '{instance}' in this cell", status=404)

    def _send_failure(self, number: int, text: str, status: int = 500) -> None:
        headers = [["content-type", "application/json"]]
        self.protocol.send({"id": number, "status": status, "headers": headers}, orjson.dumps(text))

    async def _answer(self, head: dict[str, Any], body: bytes) -> None:
        exchange = _Exchange(body)
        app = self._apps.get(head["instance"])
        if app is None:
            self._refuse(head["id"], head["instance"])
            return
        try:
            await app(_scope(head), exchange.receive, exchange.send)
        except Exception as error:  # the boundary of a server: whatever its app lets through is a 500
            self._send_failure(head["id"], repr(error))
            return
        self.protocol.send(
            {"id": head["id"], "status": exchange.status, "headers": exchange.headers}, b"".join(exchange.chunks)
        )

    def _lost(self) -> None:
        self._waiting.clear()
        for task in list(self._tasks.values()):
            task.cancel()
        self._gone(self)


class _Exchange:
    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._never = asyncio.get_running_loop().create_future()
        self.status = 500
        self.headers: list[list[str]] = []
        self.chunks: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is None:
            await self._never  # the caller is there until the task is cancelled
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in message.get("headers", ())]
        elif message["type"] == "http.response.body":
            self.chunks.append(message.get("body", b""))


async def _short_answer(app: ASGIApp, sent: Sent) -> LocalResponse | None:
    """The answer by the app's short way, in the time that the caller allows; None if this call is not for it."""
    way = getattr(app, "short_way", None)
    if way is None:
        return None
    try:
        with deadline.Alarm(sent.seconds) as timer:
            answering = way(sent, timer)
            answer: LocalResponse | None = None if answering is None else await answering
            return answer
    except TimeoutError:
        if not timer.has_rung:
            raise
    problem = f"{sent.method} {sent.path} was not done within the {sent.seconds:.1f} s its caller allowed"
    whom = timer.blamed or way.server_name or None
    late: LocalResponse = await way.failed(sent, DeadlineExceeded(problem, where=whom))
    return late


def _scope(head: Mapping[str, Any]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": head["method"],
        "scheme": "http",
        "path": head["path"],
        "raw_path": head["raw_path"].encode("latin-1"),
        "query_string": head["query"].encode("latin-1"),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
