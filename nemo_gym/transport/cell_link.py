"""The carrier between processes of a run: calls and replies as frames over a Unix socket.

A frame is two lengths, a JSON head and a body. `CellLink` is the caller's end and carries any number of calls at once;
`CellListener` is where a cell answers them. `RemoteInstance` stands for an instance of another process wherever an app
of this process can stand.
"""

import asyncio
import itertools
import re
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import orjson
from multidict import CIMultiDict

from nemo_gym.errors import ServerUnreachable
from nemo_gym.keys import ROLLOUT_PATH_PREFIX
from nemo_gym.transport import deadlines
from nemo_gym.transport.asgi import ASGIApp, Message, Receive, Send, read_body, write_reply
from nemo_gym.transport.call_log import pending_calls
from nemo_gym.transport.event_loop import CoalescingTransport, current_wake_up_queue
from nemo_gym.transport.in_process import answer
from nemo_gym.wire.call_reply import Call, Reply
from nemo_gym.wire.stored_rollout import RolloutId

LENGTHS = struct.Struct("!II")
MAX_FRAME_BYTES = 1024 * 1024 * 1024

WAITING_CALLS = "(waiting calls)"
"""Name under which a cell reports what its rollouts wait for; no instance can have it."""
_ROLLOUT_PREFIX = re.compile(rf"^/{ROLLOUT_PATH_PREFIX}/[^/]+(?:/training-token-capture)?")

OnFrame = Callable[[dict[str, Any], bytes], None]


class FrameProtocol(asyncio.Protocol):
    """Frames in and out of one connection."""

    def __init__(self, on_frame: OnFrame, on_lost: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._buffer = bytearray()
        self._transport: CoalescingTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio.Transport
        self._transport = CoalescingTransport(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        arrived: bytes | bytearray = data  # usually whole frames, which need no buffer
        if self._buffer:
            self._buffer += data
            arrived = self._buffer
        done = 0
        while len(arrived) - done >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(arrived, done)
            if head + body > MAX_FRAME_BYTES:
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
        """Close the connection after sending what was written before."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._on_lost()


class CellLink:
    """The caller's end: one connection to one cell."""

    def __init__(self, address: str, token: str, name: str) -> None:
        self._address = address
        self._token = token
        self._name = name
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._protocol: FrameProtocol | None = None
        self._connecting = asyncio.Lock()
        self.in_flight = 0
        """Calls without a reply so far, including those that wait for the connection."""

    async def _connect(self) -> FrameProtocol:
        async with self._connecting:
            if self._protocol is None:
                _, protocol = await asyncio.get_running_loop().create_unix_connection(
                    lambda: FrameProtocol(self._on_frame, self._on_lost), sock=self._open_socket()
                )
                protocol.send({"token": self._token})
                self._protocol = protocol
            return self._protocol

    def _open_socket(self) -> socket.socket:
        """Connect a socket; uvloop itself cannot connect to an abstract name."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._address)  # to a Unix socket this succeeds or fails at once
        except OSError as error:
            connection.close()
            raise ServerUnreachable(f"cannot be reached: {error.strerror}", where=self._name) from error
        return connection

    async def send(self, instance: str, call: Call) -> Reply:
        """Send a call to an instance and return its reply. Cancelling cancels the handler at the other end.

        Raises:
            ServerUnreachable: the cell ended before it answered.
        """
        self.in_flight += 1
        try:
            protocol = self._protocol or await self._connect()
            number = next(self._numbers)
            reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._replies[number] = reply
            protocol.send(_call_head(number, instance, call), call.body_bytes())
            try:
                return await reply
            except asyncio.CancelledError:
                protocol.send({"cancel": number})
                raise
            finally:
                self._replies.pop(number, None)
        finally:
            self.in_flight -= 1

    def _on_frame(self, head: dict[str, Any], body: bytes) -> None:
        future = self._replies.get(head["id"])
        if future is not None:
            reply = _reply_from_frame(head, body)
            current_wake_up_queue().put(lambda: None if future.done() else future.set_result(reply))

    def _on_lost(self) -> None:
        self._protocol = None
        problem = ServerUnreachable("ended before it answered", where=self._name)
        for reply in list(self._replies.values()):
            if not reply.done():
                reply.set_exception(problem)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def _call_head(number: int, instance: str, call: Call) -> dict[str, Any]:
    head: dict[str, Any] = {
        "id": number,
        "call": instance,
        "method": call.method,
        "url": call.base_url,
        "path": call.path,
    }
    if call.seconds is not None:
        head["seconds"] = deadlines.seconds_for_callee(call.seconds)
    if call.headers:
        head["headers"] = list(call.headers.items())
    if call.cookies:
        head["cookies"] = {name: call.cookie(name) for name in call.cookies}
    if call.rollout is not None:
        head["rollout"] = call.rollout
    return head


def _call_from_frame(head: dict[str, Any], body: bytes) -> Call:
    pairs, rollout = head.get("headers"), head.get("rollout")
    headers: Mapping[str, str] | None = None
    if pairs:
        headers = dict(pairs)
        if len(headers) < len(pairs):  # a forwarded HTTP request may repeat a header
            headers = CIMultiDict(pairs)
    return Call(
        head["method"],
        head["url"],
        head["path"],
        body=body,
        headers=headers,
        cookies=head.get("cookies"),
        server=head["call"],
        rollout=tuple(rollout) if rollout else None,
        seconds=head.get("seconds"),
    )


def _reply_head(number: int, reply: Reply) -> dict[str, Any]:
    head: dict[str, Any] = {"id": number}
    if reply.status != 200:
        head["status"] = reply.status
    if reply.headers is not None:
        head["headers"] = reply.headers
    if reply.cookie is not None:
        head["cookie"] = reply.cookie
    return head


def _reply_from_frame(head: dict[str, Any], body: bytes) -> Reply:
    headers, cookie = head.get("headers"), head.get("cookie")
    return Reply(
        head.get("status", 200),
        body,
        headers=None if headers is None else [(name, value) for name, value in headers],
        cookie=None if cookie is None else tuple(cookie),
    )


class RemoteInstance:
    """An instance in another process, as a handler of calls and as an ASGI app."""

    def __init__(self, instance: str, choose_link: Callable[[], CellLink]) -> None:
        self._instance = instance
        self._choose_link = choose_link

    def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Awaitable[Reply]:  # noqa: ARG002 - a `Handle`
        return self._choose_link().send(self._instance, call)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward an HTTP request; the other process sees it as it came."""
        query = scope["query_string"].decode("latin-1")
        path = (scope.get("raw_path") or scope["path"].encode("utf-8")).decode("latin-1")
        call = Call(
            scope["method"],
            "http://127.0.0.1",
            f"{path}?{query}" if query else path,
            body=await read_body(receive),
            headers=CIMultiDict((n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]),
        )
        await write_reply(await self.handle(call), send)


class CellListener:
    """A cell's end: answer frames with the app of the instance they name."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str) -> None:
        self._apps = apps
        self._token = token
        self._connections: set[CellConnection] = set()

    def protocol(self) -> FrameProtocol:
        """Make the protocol of one new connection."""
        connection = CellConnection(self._apps, self._token, self._connections.discard)
        self._connections.add(connection)
        return connection.protocol

    async def close(self) -> None:
        """Close every connection and cancel what they have in flight."""
        for connection in list(self._connections):
            connection.protocol.close()
        await asyncio.sleep(0)


class CellConnection:
    """One accepted connection and the calls it has in flight."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str, on_closed: Callable[["CellConnection"], None]) -> None:
        self._apps = apps
        self._token = token
        self._on_closed = on_closed
        self._is_authenticated = False
        self._queued: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.protocol = FrameProtocol(self._on_frame, self._on_lost)

    def _on_frame(self, head: dict[str, Any], body: bytes) -> None:
        if not self._is_authenticated:
            self._is_authenticated = secrets.compare_digest(str(head.get("token", "")), self._token)
            if not self._is_authenticated:
                self.protocol.close()
        elif "cancel" in head:
            self._queued.discard(head["cancel"])
            task = self._tasks.get(head["cancel"])
            if task is not None:
                task.cancel()
        else:
            self._queued.add(head["id"])
            current_wake_up_queue().put(lambda: self._start(head, body))

    def _start(self, head: dict[str, Any], body: bytes) -> None:
        """Start a task for a call, unless the call was cancelled while it was queued."""
        number = head["id"]
        if number not in self._queued:
            return
        self._queued.discard(number)
        task = asyncio.create_task(self._answer(number, _call_from_frame(head, body)))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _answer(self, number: int, call: Call) -> None:
        app = self._apps.get(call.server or "")
        try:
            if app is None:
                reply = _failure(404, f"no instance '{call.server}' in this cell")
            else:
                reply = await answer(app, call)
        except Exception as error:  # the boundary of a server: an exception that its app lets through is a 500
            reply = _failure(500, repr(error))
        self.protocol.send(_reply_head(number, reply), reply.body_bytes())

    def _on_lost(self) -> None:
        self._queued.clear()
        for task in list(self._tasks.values()):
            task.cancel()
        self._on_closed(self)


def _failure(status: int, text: str) -> Reply:
    return Reply(status, orjson.dumps(text), headers=[("content-type", "application/json")])


def waiting_calls(rollouts: Iterable[RolloutId]) -> dict[RolloutId, str]:
    """Return the innermost call without an answer, as `server /path`, of each rollout that this process runs."""
    innermost = {rollout: calls[-1] for rollout in rollouts if (calls := pending_calls.get(rollout))}
    return {key: f"{server} {_ROLLOUT_PREFIX.sub('', path)}" for key, (server, path, _) in innermost.items()}


async def waiting_calls_app(scope: Message, receive: Receive, send: Send) -> None:  # noqa: ARG001 - an ASGI app
    """Answer a list of rollouts with what each of them waits for."""
    rollouts = [(int(task), int(rollout)) for task, rollout in orjson.loads(await read_body(receive))]
    calls = waiting_calls(rollouts)
    await write_reply(Reply(200, orjson.dumps([[*rollout, call] for rollout, call in calls.items()])), send)


async def ask_cells(links: Sequence[CellLink], rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:
    """Ask every cell what the rollouts wait for; a cell that does not answer contributes nothing."""
    call = Call("POST", "http://127.0.0.1", "/", body=orjson.dumps([list(rollout) for rollout in rollouts]))
    replies = await asyncio.gather(*[link.send(WAITING_CALLS, call) for link in links], return_exceptions=True)
    calls: dict[RolloutId, str] = {}
    for reply in replies:
        if isinstance(reply, ServerUnreachable):
            continue
        if isinstance(reply, BaseException):
            raise reply
        if reply.status == 200:
            calls |= {(task, rollout): text for task, rollout, text in orjson.loads(reply.body_bytes())}
    return calls
