"""Plain calls to model endpoints: complete answers, kept connections, and aiohttp's exceptions."""

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from yarl import URL

from nemo_gym.transport import http
from nemo_gym.transport.model_connections import ConnectionPool, can_send

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Said: \xc3\xbc\r\n\r\n{}"


@asynccontextmanager
async def pool(per_host: int = 10, idle_seconds: float = 15.0) -> AsyncIterator[ConnectionPool]:
    made = ConnectionPool(per_host=per_host, idle_seconds=idle_seconds, connect_seconds=5.0, configure=lambda _: None)
    try:
        yield made
    finally:
        made.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def endpoint(*answers: bytes, wait: asyncio.Event | None = None, hang_up: bool = False) -> AsyncIterator[Any]:
    """Answers one request after the other with these bytes (the last one again and again); counts connections."""
    counted = type("Counted", (), {"connections": 0, "requests": [], "url": URL(), "writers": []})()
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted.connections += 1
        counted.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                counted.requests.append(head + await reader.readexactly(length))
                if wait is not None:
                    await wait.wait()
                writer.write(left.pop(0) if len(left) > 1 else left[0])
                if hang_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    counted.url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x?q=1")
    try:
        yield counted
    finally:
        server.close()
        for writer in counted.writers:
            writer.close()
        await asyncio.sleep(0)


async def test_the_request_says_what_it_should_and_the_answer_is_whole() -> None:
    """A wrong length or host makes proxies refuse or cut the request."""
    async with endpoint(OK) as there, pool() as calls:
        answer = await calls.request("POST", there.url, {"Authorization": "Bearer k"}, b'{"a":1}')

    assert there.requests[0].startswith(b"POST /v1/x?q=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nAuthorization: Bearer k\r\n" in there.requests[0]
    assert there.requests[0].endswith(b'Content-Length: 7\r\n\r\n{"a":1}')
    assert (answer.status, answer.reason, await answer.read()) == (200, "OK", b"{}")
    assert answer.headers["x-said"] == "ü"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
PACKED = gzip.compress(b"abc", mtime=0)
GZIPPED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(PACKED), PACKED)
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\nabc"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
REFUSED = b"HTTP/1.1 429 Slow Down\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "hang_up", "status", "body"),
    [
        (CHUNKED, False, 200, b"abc"),
        (EARLY, False, 200, b"{}"),
        (GZIPPED, False, 200, b"abc"),
        (ENDLESS, True, 200, b"abc"),
        (EMPTY, False, 204, b""),
        (REFUSED, False, 429, b""),
        (OK, True, 200, b"{}"),
    ],
    ids=["chunked", "early hints", "gzip", "until the end", "no content", "refused", "and good-bye"],
)
async def test_every_way_of_writing_an_answer_is_read(answer: bytes, hang_up: bool, status: int, body: bytes) -> None:
    """Endpoints and proxies use all of these forms; a cut body would look like a broken answer."""
    async with endpoint(answer, hang_up=hang_up) as there, pool() as calls:
        answer = await calls.request("POST", there.url, {}, b"")

    assert (answer.status, await answer.read()) == (status, body)


async def test_a_hundred_answers_and_good_byes_at_once_are_all_whole() -> None:
    """They wait for their turns while their connections are already gone."""
    go = asyncio.Event()
    async with endpoint(OK, wait=go, hang_up=True) as there, pool(per_host=100) as calls:
        asking = [asyncio.create_task(calls.request("POST", there.url, {}, b"")) for _ in range(100)]
        async with asyncio.timeout(10):
            while len(there.requests) < 100:  # noqa: ASYNC110 - the server is elsewhere in this loop
                await asyncio.sleep(0.001)
        go.set()
        bodies = [await answer.read() for answer in await asyncio.gather(*asking)]

    assert bodies == [b"{}"] * 100


async def test_a_connection_is_used_again() -> None:
    """A new connection per call costs time and runs out of ports in large runs."""
    async with endpoint(OK, CHUNKED, REFUSED, OK) as there, pool() as calls:
        for _ in range(4):
            await calls.request("POST", there.url, {}, b"")

    assert there.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_one_that_the_server_closes_or_that_grew_old_is_not(answer: bytes) -> None:
    """A call on a dead connection fails although the endpoint works."""
    async with endpoint(answer) as there, pool() as calls:
        for _ in range(2):
            await calls.request("POST", there.url, {}, b"")
        assert there.connections == 2

    async with endpoint(OK) as there, pool(idle_seconds=0.0) as calls:
        for _ in range(2):
            await calls.request("POST", there.url, {}, b"")
        assert there.connections == 2


async def test_no_more_connections_than_allowed_and_nobody_is_forgotten() -> None:
    """A limit that is exceeded overloads the endpoint; a lost waiter hangs its rollout."""
    go = asyncio.Event()
    async with endpoint(OK, wait=go) as there, pool(per_host=2) as calls:
        asking = [asyncio.create_task(calls.request("POST", there.url, {}, b"")) for _ in range(9)]
        given_up = asking.pop(4)
        await asyncio.sleep(0.01)
        given_up.cancel()
        go.set()
        answers = await asyncio.gather(*asking)

    assert [answer.status for answer in answers] == [200] * 8
    assert there.connections == 2


async def test_that_all_connections_are_in_use_is_said_once_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    """Calls that queue behind our own limit look like a slow endpoint, and users would not find the key for it."""
    go = asyncio.Event()
    async with endpoint(OK, wait=go) as there, pool(per_host=2) as calls:
        asking = [asyncio.create_task(calls.request("POST", there.url, {}, b"")) for _ in range(9)]
        while not caplog.messages:  # noqa: ASYNC110 - a log announces nothing
            await asyncio.sleep(0.001)
        go.set()
        await asyncio.gather(*asking)

    assert len(caplog.messages) == 1
    assert f"all 2 connections to {there.url.host}:{there.url.port} are in use" in caplog.messages[0]
    assert "global_aiohttp_connector_limit_per_host" in caplog.messages[0]


async def test_a_header_of_one_call_only_is_sent_and_told_with_the_others() -> None:
    """The others are written once for many calls; what changes must change."""
    async with endpoint(OK, OK) as there, pool() as calls:
        answers = [
            await calls.request("POST", there.url, {"X-Same": "1"}, b"x", varying_headers={"X-Left": left})
            for left in ("9", "8")
        ]
        with pytest.raises(ValueError, match="header injection"):
            await calls.request("POST", there.url, {}, b"", varying_headers={"X-Left": "1\r\nX-Evil: 1"})

    assert [(b"X-Same: 1" in sent, b"X-Left: 9" in sent) for sent in there.requests] == [(True, True), (True, False)]
    assert [answer.request_info.headers["x-left"] for answer in answers] == ["9", "8"]


async def test_a_request_that_is_given_up_takes_its_connection_along() -> None:
    """Its answer would otherwise be taken for that of the next one."""
    go = asyncio.Event()
    async with endpoint(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate", OK, wait=go) as there, pool() as calls:
        first = asyncio.create_task(calls.request("POST", there.url, {}, b""))
        while not there.requests:  # noqa: ASYNC110 - the server is elsewhere in this loop and announces nothing
            await asyncio.sleep(0.001)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go.set()
        answer = await calls.request("POST", there.url, {}, b"")

        assert await answer.read() == b"{}"
        assert there.connections == 2


async def test_words_nobody_asked_for_end_the_connection() -> None:
    """A server that answers twice must not answer the next request before it is sent."""
    async with endpoint(OK + OK, OK) as there, pool() as calls:
        first = await calls.request("POST", there.url, {}, b"")
        second = await calls.request("POST", there.url, {}, b"")

    assert (await first.read(), await second.read()) == (b"{}", b"{}")
    assert there.connections == 2


async def test_no_answer_is_told_as_aiohttp_tells_it() -> None:
    """Retries and callers decide by aiohttp's exception types."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = URL(f"http://127.0.0.1:{taken.getsockname()[1]}/")
        async with pool() as calls:
            with pytest.raises(aiohttp.ClientConnectorError):
                await calls.request("POST", address, {}, b"")
    async with endpoint(b"", hang_up=True) as there, pool() as calls:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await calls.request("POST", there.url, {}, b"")
    async with endpoint(b"SSH-2.0 hello\r\n\r\n") as there, pool() as calls:
        with pytest.raises(aiohttp.ClientPayloadError, match="not HTTP"):
            await calls.request("POST", there.url, {}, b"")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nabc",
    ],
)
async def test_half_an_answer_is_an_error_for_who_reads_it(answer: bytes) -> None:
    """Its status is known; whether the body is worth another try is for the caller to say."""
    async with endpoint(answer, hang_up=True) as there, pool() as calls:
        answer = await calls.request("POST", there.url, {}, b"")

    assert answer.status == 200
    with pytest.raises(aiohttp.ClientPayloadError):
        await answer.read()


async def test_a_header_cannot_bring_others_along() -> None:
    """A value from a config or a row must not be able to redirect the request."""
    async with pool() as calls:
        with pytest.raises(ValueError, match="header injection"):
            await calls.request("POST", URL("http://127.0.0.1:1/"), {"X": "1\r\nHost: elsewhere"}, b"")


@pytest.mark.parametrize(
    ("url", "options", "plain"),
    [
        ("http://h:1/v1", {"data": b"{}", "headers": {"Authorization": "k"}}, True),
        ("http://h:1/v1", {}, True),
        ("https://h/v1", {"data": b"{}"}, False),
        ("http://user:word@h:1/v1", {"data": b"{}"}, False),
        ("http://h:1/v1", {"data": "text"}, False),
        ("http://h:1/v1", {"data": b"{}", "params": {"a": 1}}, False),
        ("http://h:1/v1", {"data": b"{}", "timeout": 3}, False),
        ("http://h:1/v1", {"headers": {"Expect": "100-continue"}}, False),
    ],
)
def test_what_is_not_plain_is_left_to_aiohttp(url: str, options: dict[str, Any], plain: bool) -> None:
    """An option that the simple client ignores would change the call without an error."""
    assert can_send("POST", URL(url), options) is plain


async def test_a_redirect_is_followed_by_aiohttp(say: Callable[..., bytes], scripted_server: Any) -> None:
    """Redirects are rare, and aiohttp handles them."""
    async with scripted_server(say(307, Location="/there"), say(307, Location="/there"), say(200, b"[1]")) as script:
        answer = await http.send("POST", f"{script.url}/here", data=b"{}")
        body = await answer.read()

    assert body == b"[1]"
    assert [request.split()[1] for request in script.requests] == [b"/here", b"/here", b"/there"]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def pool_for_sockets(configured: list[socket.socket]) -> ConnectionPool:
    return ConnectionPool(per_host=1, idle_seconds=1, connect_seconds=5, configure=configured.append)


async def test_a_new_socket_is_configured_and_not_delayed(listening: socket.socket) -> None:
    """Keepalive options are set before the connection is made, and small requests are not held back."""
    configured: list[socket.socket] = []

    connection = await pool_for_sockets(configured)._open_socket(listening.getsockname())

    with connection:
        assert configured == [connection]
        assert connection.getpeername() == listening.getsockname()
        assert not connection.getblocking()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_host_is_resolved_once_and_its_next_address_is_tried_when_one_refuses(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand connections that start together must not become a thousand DNS queries."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()
    queries: list[Any] = []

    async def getaddrinfo(*address: Any, **_: Any) -> list[Any]:
        queries.append(address)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, closed), (*kind, listening.getsockname())]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    pool = pool_for_sockets([])
    both = await asyncio.gather(pool._open_socket(("somewhere", 80)), pool._open_socket(("somewhere", 80)))

    assert [connection.getpeername() for connection in both] == [listening.getsockname()] * 2
    assert queries == [("somewhere", 80)]
    for connection in both:
        connection.close()


async def test_a_host_without_an_address_that_accepts_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The carrier turns it into aiohttp's connection error, which the retry policy knows."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()
    with pytest.raises(ConnectionRefusedError):
        await pool_for_sockets([])._open_socket(closed)

    async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    with pytest.raises(OSError, match="no address for nowhere"):
        await pool_for_sockets([])._open_socket(("nowhere", 1))
