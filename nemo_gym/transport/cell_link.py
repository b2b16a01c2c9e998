"""The cell link, the carrier between processes of a run: calls and replies as frames over a Unix socket.

A frame consists of two lengths, a JSON head and a body. `CellLink` is the client and multiplexes concurrent calls on
one connection; `CellListener` is the server in a cell. `RemoteInstance` represents an instance of another process and
can be mounted like an app of this process. Any local user can connect to the socket, so a connection of another user
is closed at once, and the first frame, which is small, must contain the token.
"""

import asyncio
import itertools
import logging
import os
import re
import secrets
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, cast

import orjson
from multidict import CIMultiDict

from nemo_gym.errors import RequestCancelled, ServerUnreachable
from nemo_gym.keys import ROLLOUT_PATH_PREFIX
from nemo_gym.transport import deadlines
from nemo_gym.transport.asgi import ASGIApp, Message, Receive, Send, read_request_body, write_reply
from nemo_gym.transport.call_timing import pending_calls
from nemo_gym.transport.event_loop import CoalescingTransport, current_wake_up_queue, is_cancelled
from nemo_gym.transport.in_process import answer_call
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER, FAILED_PATH_HEADER
from nemo_gym.wire.call_reply import Call, Reply
from nemo_gym.wire.stored_rollout import RolloutId

logger = logging.getLogger("nemo_gym.transport")

LENGTHS = struct.Struct("!II")
_CREDENTIALS = struct.Struct("iII")
"""Process, user and group: `struct ucred` of Linux."""
MAX_FRAME_BYTES = 1024 * 1024 * 1024
TOKEN_SECONDS = 10.0
"""Time within which a new connection must send the token."""

WAITING_CALLS = "(waiting calls)"
"""Reserved instance name: a call to it returns the pending calls of rollouts (`waiting_calls_app`)."""
_ROLLOUT_PREFIX = re.compile(rf"^/{ROLLOUT_PATH_PREFIX}/[^/]+(?:/training-token-capture)?(?:/budget/[^/]+)?")

OnFrame = Callable[[dict[str, Any], bytes], None]


class FrameProtocol(asyncio.Protocol):
    """Split the bytes of one connection into frames and write frames to it."""

    def __init__(self, on_frame: OnFrame, on_disconnect: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._buffer = bytearray()
        self._transport: CoalescingTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio.Transport
        self._transport = CoalescingTransport(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Call `on_frame` for every complete frame; keep an incomplete frame in the buffer."""
        received: bytes | bytearray = data  # usually complete frames, which need no buffer
        if self._buffer:
            self._buffer += data
            received = self._buffer
        position = 0
        while len(received) - position >= LENGTHS.size:
            head_size, body_size = LENGTHS.unpack_from(received, position)
            if head_size + body_size > MAX_FRAME_BYTES:
                self.close()
                return
            head_start = position + LENGTHS.size
            body_start = head_start + head_size
            frame_end = body_start + body_size
            if len(received) < frame_end:
                break
            position = frame_end
            self._on_frame(orjson.loads(received[head_start:body_start]), bytes(received[body_start:frame_end]))
        if received is data:
            self._buffer += data[position:]
        else:
            del self._buffer[:position]

    def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Write a frame; do nothing if the connection is closed.

        Raises:
            ValueError: the frame is too long, and the receiver would close the connection.
            TypeError: the head is not JSON.
        """
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_encode_frame(head, body))

    def close(self) -> None:
        """Close the connection after sending the buffered frames."""
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - signature of asyncio.Protocol
        self._on_disconnect()


def _encode_frame(head: Mapping[str, Any], body: bytes = b"") -> bytes:
    encoded = orjson.dumps(head)
    if len(encoded) + len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(encoded) + len(body):,} bytes is longer than {MAX_FRAME_BYTES:,}")
    return b"".join((LENGTHS.pack(len(encoded), len(body)), encoded, body))


def is_own_user(connection: socket.socket) -> bool:
    """Return True if the process at the other end of a Unix socket runs as the user of this process."""
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


class CellLink:
    """Client of one cell: sends concurrent calls over one connection, which is opened on first use."""

    def __init__(self, address: str, token: str, name: str) -> None:
        self.address = address
        self.token = token
        self.name = name
        self._numbers = itertools.count()
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._protocol: FrameProtocol | None = None
        self._connecting = asyncio.Lock()
        self.in_flight = 0
        """Number of calls without a reply, including calls that wait for the connection."""

    async def _connect(self) -> FrameProtocol:
        """Return the open connection, or open it and send the token."""
        async with self._connecting:
            if self._protocol is None:
                _, protocol = await asyncio.get_running_loop().create_unix_connection(
                    lambda: FrameProtocol(self._on_frame, self._on_disconnect), sock=self._open_socket()
                )
                protocol.send({"token": self.token})
                self._protocol = protocol
            return self._protocol

    def _open_socket(self) -> socket.socket:
        """Return a connected socket; uvloop cannot connect to an abstract socket address itself."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:  # `connect` does not block: it succeeds or fails immediately for a Unix socket
            connection.connect(self.address)
        except OSError as error:
            connection.close()
            raise ServerUnreachable(f"cannot be reached: {error.strerror}", where=self.name) from error
        if not is_own_user(connection):
            connection.close()
            raise ServerUnreachable("cannot be reached: another user listens at its address", where=self.name)
        return connection

    async def send(self, instance: str, call: Call) -> Reply:
        """Send a call to an instance and return its reply. Cancelling this coroutine cancels the handler in the cell.

        Raises:
            ServerUnreachable: the cell exited or closed the connection before it answered.
        """
        self.in_flight += 1
        try:
            protocol = self._protocol or await self._connect()
            number = next(self._numbers)
            reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._replies[number] = reply
            try:
                protocol.send(_call_head(number, instance, call), call.body_bytes())
                return await reply
            except asyncio.CancelledError:
                protocol.send({"cancel": number})
                raise
            finally:
                self._replies.pop(number, None)
        finally:
            self.in_flight -= 1

    def _on_frame(self, head: dict[str, Any], body: bytes) -> None:
        """Give a reply to the call that waits for it; ignore the reply to a cancelled call."""
        future = self._replies.get(head["id"])
        if future is not None:
            reply = _reply_from_frame(head, body)
            current_wake_up_queue().put(lambda: None if future.done() else future.set_result(reply))

    def _on_disconnect(self) -> None:
        """Fail the pending calls; the next call opens a new connection."""
        self._protocol = None
        error = ServerUnreachable("ended before it answered", where=self.name)
        for reply in list(self._replies.values()):
            if not reply.done():
                reply.set_exception(error)

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()


def _call_head(number: int, instance: str, call: Call) -> dict[str, Any]:
    """Return the head of the frame that carries a call."""
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
    """Return the call that a frame carries."""
    pairs, rollout = head.get("headers"), head.get("rollout")
    headers: Mapping[str, str] | None = None
    if pairs:
        headers = dict(pairs)
        if len(headers) < len(pairs):  # a forwarded HTTP request may have a header twice
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
    """Return the head of the frame that carries a reply; default values are omitted."""
    head: dict[str, Any] = {"id": number}
    if reply.status != 200:
        head["status"] = reply.status
    if reply.headers is not None:
        head["headers"] = reply.headers
    if reply.cookie is not None:
        head["cookie"] = reply.cookie
    return head


def _reply_from_frame(head: dict[str, Any], body: bytes) -> Reply:
    """Return the reply that a frame carries."""
    headers, cookie = head.get("headers"), head.get("cookie")
    return Reply(
        head.get("status", 200),
        body,
        headers=None if headers is None else [(name, value) for name, value in headers],
        cookie=None if cookie is None else tuple(cookie),
    )


class LoopLinks:
    """The links of one event loop to the cells of a run, opened on first use and closed with the loop."""

    def __init__(self, _loop: asyncio.AbstractEventLoop) -> None:
        self._links: dict[str, CellLink] = {}
        # Loops close their asynchronous generators before they are closed, which closes the links without a hook.
        self._owner = self._close_with_loop()
        with suppress(StopIteration):
            self._owner.__anext__().send(None)

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            for link in self._links.values():
                link.close()
            await asyncio.sleep(0)  # the transports end in the next round

    def link(self, like: CellLink) -> CellLink:
        """Return this loop's link to the cell that another loop's link leads to."""
        link = self._links.get(like.address)
        if link is None:
            link = self._links[like.address] = CellLink(like.address, like.token, like.name)
        return link


_calls_in_flight = attrgetter("in_flight")


class RemoteInstance:
    """An instance that runs in other processes, one link for each; callable through `handle` and as an ASGI app."""

    def __init__(self, instance: str, links: Sequence[CellLink]) -> None:
        self._instance = instance
        self._links = links

    def handle(self, call: Call, alarm: deadlines.Alarm | None = None) -> Awaitable[Reply]:  # noqa: ARG002 - signature of `Handle`
        """Send a call over the link with the fewest calls in flight."""
        return min(self._links, key=_calls_in_flight).send(self._instance, call)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Forward an HTTP request with its path, headers and body unchanged."""
        query = scope["query_string"].decode("latin-1")
        path = (scope.get("raw_path") or scope["path"].encode("utf-8")).decode("latin-1")
        call = Call(
            scope["method"],
            "http://127.0.0.1",
            f"{path}?{query}" if query else path,
            body=await read_request_body(receive),
            headers=CIMultiDict((n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]),
        )
        await write_reply(await self.handle(call), send)


class CellListener:
    """Server of a cell: answers each call with the app of the instance that the call names."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str) -> None:
        self._apps = apps
        self._token = token
        self._connections: set[CellConnection] = set()

    def protocol(self) -> FrameProtocol:
        """Return the protocol for a new connection."""
        connection = CellConnection(self._apps, self._token, self._connections.discard)
        self._connections.add(connection)
        return connection.protocol

    async def close(self) -> None:
        """Close every connection and cancel its pending calls."""
        for connection in list(self._connections):
            connection.protocol.close()
        await asyncio.sleep(0)  # the loop calls `connection_lost`, which cancels the calls, in its next iteration


class TokenFrameProtocol(FrameProtocol):
    """The protocol of an accepted connection. It closes a connection of another user, or without the token.

    Nothing is parsed before the token: the first bytes must equal the frame that `CellLink` sends first.
    """

    def __init__(self, token: str, on_frame: OnFrame, on_disconnect: Callable[[], None]) -> None:
        super().__init__(on_frame, on_disconnect)
        self._first_frame = _encode_frame({"token": token})
        self._timer: asyncio.TimerHandle | None = None
        self._is_authenticated = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(TOKEN_SECONDS, self.close)
        if not is_own_user(transport.get_extra_info("socket")):
            self.close()

    def data_received(self, data: bytes) -> None:
        """Read frames after the token; close the connection if the token is wrong."""
        if self._is_authenticated:
            super().data_received(data)
            return
        self._buffer += data
        size = len(self._first_frame)
        if len(self._buffer) < size:
            return
        self._is_authenticated = secrets.compare_digest(self._buffer[:size], self._first_frame)
        if not self._is_authenticated:
            self.close()
            return
        self._stop_timer()
        rest, self._buffer = bytes(self._buffer[size:]), bytearray()
        super().data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class CellConnection:
    """One accepted connection and its pending calls. The first frame must contain the token."""

    def __init__(self, apps: Mapping[str, ASGIApp], token: str, on_closed: Callable[["CellConnection"], None]) -> None:
        self._apps = apps
        self._on_closed = on_closed
        self._queued: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.protocol = TokenFrameProtocol(token, self._on_frame, self._on_disconnect)

    def _on_frame(self, head: dict[str, Any], body: bytes) -> None:
        """Cancel a call, or queue a new call."""
        if "cancel" in head:
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
        """Run the instance's app and send its reply; 404 for an unknown instance.

        Exactly one frame is sent, even if the app raises any exception or its reply cannot be encoded.
        """
        app = self._apps.get(call.server or "")
        try:
            if app is None:
                reply = _error_reply(404, f"unknown instance '{call.server}' in this cell")
            else:
                reply = await answer_call(app, call)
            self.protocol.send(_reply_head(number, reply), reply.body_bytes())
        except BaseException as error:
            # This task is cancelled by the caller, which then ignores the reply, or by code of another request.
            is_task_cancelled = isinstance(error, asyncio.CancelledError) and is_cancelled()
            reply = _error_reply(500, f"no answer: {type(error).__name__}")
            error_class = RequestCancelled if is_task_cancelled else type(error)
            headers = {FAILED_HEADER: call.server or "", FAILED_PATH_HEADER: call.path}
            reply.headers = [*reply.header_list(), *headers.items(), (ERROR_HEADER, error_class.__name__)]
            if not is_task_cancelled:
                logger.error("%s: %s ended without an answer", call.server, call.path, exc_info=error)
            self.protocol.send(_reply_head(number, reply), reply.body_bytes())

    def _on_disconnect(self) -> None:
        self._queued.clear()
        for task in list(self._tasks.values()):
            task.cancel()
        self._on_closed(self)


def _error_reply(status: int, text: str) -> Reply:
    return Reply(status, orjson.dumps(text), headers=[("content-type", "application/json")])


def waiting_calls(rollouts: Iterable[RolloutId]) -> dict[RolloutId, str]:
    """Return the innermost pending call of each of the `rollouts` that run in this process, as `server /path`."""
    requested = set(rollouts)
    return {  # a later call of the same rollout replaces an earlier one
        rollout: f"{server} {_ROLLOUT_PREFIX.sub('', path)}"
        for rollout, server, path in pending_calls.values()
        if rollout in requested
    }


async def waiting_calls_app(scope: Message, receive: Receive, send: Send) -> None:  # noqa: ARG001 - signature of an ASGI app
    """ASGI app: read a list of rollouts from the body and answer with the pending call of each."""
    rollouts = [(int(task), int(rollout)) for task, rollout in orjson.loads(await read_request_body(receive))]
    calls = waiting_calls(rollouts)
    await write_reply(Reply(200, orjson.dumps([[*rollout, call] for rollout, call in calls.items()])), send)


async def fetch_waiting_calls(links: Sequence[CellLink], rollouts: Sequence[RolloutId]) -> dict[RolloutId, str]:
    """Return the pending call of each rollout, as reported by the cells. Skip cells that are unreachable or fail."""
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
