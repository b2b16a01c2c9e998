"""Answers that are too large: refused while they are read, once, without filling the memory or blocking neighbours."""

import asyncio
import functools
import gzip
import json
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from nemo_gym.errors import ModelAnswerTooLarge, ModelFailed
from nemo_gym.transport import http, http_sessions, large_bodies
from nemo_gym.transport.client_response import get_response_json, raise_for_status
from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig
from nemo_gym.transport.large_bodies import AnswerMemory, ResponseTooLong
from nemo_gym.transport.model_client import PacedOpenAI

MIB = 1024 * 1024
LIMIT = 3 * MIB
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
PIECE = b"10000\r\n" + b"x" * 65536 + b"\r\n"


@dataclass
class Endpoint:
    url: str = ""
    calls: int = 0
    sent: int = 0


@asynccontextmanager
async def endpoint(head: bytes, body: bytes = b"", *, endless: bool = False) -> AsyncIterator[Endpoint]:
    """Answer each request with `head` and `body`; then send chunks without end if `endless`."""
    state = Endpoint()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(request.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                state.calls += 1
                writer.write(head + body)
                while endless:
                    writer.write(PIECE)
                    await writer.drain()
                    state.sent += 65536
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports close in the next iteration of the loop


def client_for(url: str, kind: str) -> PacedOpenAI:
    """Return a client that uses the connection pool, or one that uses aiohttp (because of its query parameter)."""
    query = {"v": "1"} if kind == "aiohttp" else {}
    return PacedOpenAI(base_url=f"{url}/v1", api_key="k", name="policy", default_query=query)


@pytest.fixture(autouse=True)
def _limits() -> None:
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(max_model_answer_bytes=LIMIT, max_body_bytes=2 * MIB))


def with_length(body: bytes, encoding: bytes = b"") -> bytes:
    header = b"Content-Encoding: %s\r\n" % encoding if encoding else b""
    return HEAD + header + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


BIG_TEXT = b'{"text": "' + b"y" * (5 * MIB) + b'"}'
TOO_LARGE = {
    "declared": (HEAD + b"Content-Length: 900000000\r\n\r\n", False),
    "endless": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", True),
    "without a length": (HEAD + b"Connection: close\r\n\r\n" + BIG_TEXT, False),
    "gzip": (with_length(gzip.compress(BIG_TEXT), b"gzip"), False),
    "deflate": (with_length(zlib.compress(BIG_TEXT), b"deflate"), False),
    "gzip twice": (with_length(gzip.compress(gzip.compress(BIG_TEXT)), b"gzip, gzip"), False),
    "gzip in deflate": (with_length(zlib.compress(gzip.compress(BIG_TEXT)), b"deflate"), False),
    "too many layers": (with_length(functools.reduce(lambda body, _: gzip.compress(body), range(6), b"{}")), False),
    "an error": (HEAD.replace(b"200 OK", b"500 No") + b"Content-Length: 900000000\r\n\r\n", False),
    "values": (with_length(b'{"a": [' + b"{}," * 700_000 + b"1]}"), False),
}


@pytest.mark.parametrize("kind", ["pool", "aiohttp"])
@pytest.mark.parametrize("answer", sorted(set(TOO_LARGE) - {"an error"}))
async def test_an_answer_above_the_limit_fails_with_its_own_error_and_is_asked_for_once(kind: str, answer: str) -> None:
    """A hundred megabytes must not be read to the end, and a paid call must not be repeated."""
    head, endless = TOO_LARGE[answer]
    async with endpoint(head, endless=endless) as there:
        with pytest.raises(ModelAnswerTooLarge) as caught:
            async with asyncio.timeout(20):
                await client_for(there.url, kind).create_response(input="x")

    assert there.calls == 1
    assert there.sent < LIMIT + 16 * MIB  # socket buffers hold a few more
    assert caught.value.where == "policy"
    assert "max_model_answer_bytes" in (caught.value.fix or "")


@pytest.mark.parametrize("kind", ["pool", "aiohttp"])
@pytest.mark.parametrize("encoding", [b"gzip, gzip", b"gzip", b""])
async def test_an_answer_that_was_compressed_twice_is_read(kind: str, encoding: bytes) -> None:
    """A gateway may compress an answer that is compressed already; it is paid and complete."""
    async with endpoint(with_length(gzip.compress(gzip.compress(b'{"text": "yes"}')), encoding)) as there:
        assert await client_for(there.url, kind).create_response(input="x") == {"text": "yes"}


def raw_deflate(content: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(content) + compressor.flush()


def in_members(content: bytes, size: int) -> bytes:
    return b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))


@pytest.mark.parametrize("size", [9, 50_000, 2 * MIB + MIB // 2])
@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        (b"gzip", lambda content: in_members(content, len(content) // 7 + 1)),
        (b"gzip", lambda content: gzip.compress(content) + bytes(512)),
        (b"gzip", lambda content: in_members(content, len(content)) + gzip.compress(b"")),
        (b"deflate", raw_deflate),
        (b"deflate", lambda content: zlib.compress(content, 3)),
        (b"gzip", lambda content: content),
        (b"deflate", lambda content: content),
    ],
    ids=["members", "padding", "empty member", "raw deflate", "zlib", "plain as gzip", "plain as deflate"],
)
async def test_every_form_of_a_compressed_answer_is_read(encoding: bytes, encode: Any, size: int) -> None:
    """A paid answer must not fail because its gateway compresses in an unusual way, or only says that it does."""
    text = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    body = encode(b'{"text": "%b"}' % text)
    async with endpoint(with_length(body, encoding)) as there, asyncio.timeout(30):
        assert await client_for(there.url, "pool").create_response(input="x") == {"text": text.decode()}


def test_many_empty_members_are_refused_soon() -> None:
    """They take time without giving output, so that the limit on the output would never be reached."""
    with pytest.raises(zlib.error, match="members"):
        large_bodies.Decompressor(gzip.compress(b"") * 100_000, MIB).decode()


async def test_a_damaged_inner_layer_is_an_answer_that_is_not_json() -> None:
    """It is the endpoint's mistake and must be reported as such."""
    async with endpoint(with_length(gzip.compress(gzip.compress(b'{"text": "yes"}')[:-9]), b"gzip")) as there:
        with pytest.raises(ModelFailed, match="not JSON"):
            await client_for(there.url, "pool").create_response(input="x")


async def test_a_large_error_answer_is_not_read_either() -> None:
    """An endpoint that fails with a page of 900 MB must not be asked for it three times."""
    async with endpoint(TOO_LARGE["an error"][0]) as there:
        with pytest.raises(ModelAnswerTooLarge):
            await client_for(there.url, "pool").create_response(input="x")

    assert there.calls == 1


async def test_of_an_error_answer_only_the_start_is_read() -> None:
    """The text of an error is for people; a megabyte of it is more than enough."""
    head = HEAD.replace(b"200 OK", b"404 No") + b"Transfer-Encoding: chunked\r\n\r\n"
    async with endpoint(head, endless=True) as there, aiohttp.ClientSession() as session:
        response = await http.send("POST", f"{there.url}/v1", session=session, data=b"{}")
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await raise_for_status(response)

    assert len(caught.value.response_content) == large_bodies.MAX_ERROR_BYTES  # type: ignore[attr-defined]
    assert there.sent < 16 * MIB


@pytest.mark.parametrize("kind", ["pool", "aiohttp"])
@pytest.mark.parametrize("encoding", [b"", b"gzip"])
async def test_many_large_answers_at_once_wait_for_each_other_and_all_arrive(kind: str, encoding: bytes) -> None:
    """The answers must share a bounded amount of memory, without a deadlock and without a leak of reservations."""
    answer = {"text": "z" * (2 * MIB), "n": [1, 2.5, None]}
    body = json.dumps(answer).encode()
    async with endpoint(with_length(gzip.compress(body, 1) if encoding else body, encoding)) as there:
        client = client_for(there.url, kind)
        for _ in range(2):
            async with asyncio.timeout(60):
                answers = await asyncio.gather(*[client.create_response(input="x") for _ in range(20)])
            assert answers == [answer] * 20
        memory = large_bodies.current_memory()
        assert (memory._reserved, len(memory._waiting)) == (0, 0)


@pytest.mark.parametrize("kind", ["pool", "aiohttp"])
async def test_endless_answers_do_not_fill_the_memory_or_delay_a_small_one(kind: str) -> None:
    """19 endless answers held two gigabytes and timed out the calls beside them."""
    endless, small = TOO_LARGE["endless"][0], with_length(b'{"id": "small"}')
    peak = 0

    class MeasuredMemory(AnswerMemory):
        def _admit(self) -> None:
            nonlocal peak
            super()._admit()
            peak = max(peak, self._reserved)

    large_bodies._memories._by_loop[asyncio.get_running_loop()] = MeasuredMemory(asyncio.get_running_loop())
    large_bodies._memories._last = None
    async with endpoint(endless, endless=True) as there, endpoint(small) as neighbour:
        client = client_for(there.url, kind)
        calls = [asyncio.create_task(client.create_response(input="x")) for _ in range(19)]
        begin, slowest = time.monotonic(), 0.0
        while not all(call.done() for call in calls):
            start = time.monotonic()
            assert (await client_for(neighbour.url, "pool").create_response(input="x")) == {"id": "small"}
            slowest = max(slowest, time.monotonic() - start)
            assert time.monotonic() - begin < 60
        results = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(result) for result in results} == {ModelAnswerTooLarge}
    assert there.calls == 19
    assert 0 < peak <= large_bodies.LARGEST_ANSWERS_AT_ONCE * LIMIT
    assert slowest < 5


@pytest.mark.parametrize("extra", [1, 2, 4096, 70_000, 300_000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_connection_of_a_large_answer_reads_the_next_answers(extra: int, is_chunked: bool) -> None:
    """Reading pauses when an answer becomes large; a paused connection in the pool would never answer again."""
    text = b'{"text": "%s"}' % (b"z" * (large_bodies.LARGE_BYTES - 12 + extra))
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(text), text)
    async with endpoint(chunked if is_chunked else with_length(text)) as there, asyncio.timeout(20):
        client = client_for(there.url, "pool")
        lengths = [len((await client.create_response(input="x"))["text"]) for _ in range(3)]

    assert lengths == [len(text) - 12] * 3


async def test_a_cancelled_wait_for_memory_gives_its_turn_to_the_next_answer() -> None:
    """A call whose deadline passes while it waits must not take the memory with it."""
    memory = AnswerMemory(asyncio.get_running_loop())
    releases = [await memory.reserve(LIMIT) for _ in range(large_bodies.LARGEST_ANSWERS_AT_ONCE)]
    waiting = [asyncio.create_task(memory.reserve(LIMIT)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)

    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    releases[0]()
    releases[0]()  # a second release of the same memory has no effect
    waiting[1].cancel()  # after its turn came, before it runs
    await asyncio.gather(waiting[1], return_exceptions=True)
    releases.append(await waiting[2])
    for release in releases:
        release()
    assert (memory._reserved, len(memory._waiting)) == (0, 0)


async def test_memory_released_while_a_waiting_call_is_cancelled_goes_to_the_next_answer() -> None:
    """The cancelled call still stands in the queue until its task runs; admitting it would fail the releasing call."""
    memory = AnswerMemory(asyncio.get_running_loop())
    releases = [await memory.reserve(LIMIT) for _ in range(large_bodies.LARGEST_ANSWERS_AT_ONCE)]
    waiting = [asyncio.create_task(memory.reserve(LIMIT)) for _ in range(2)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    releases[0]()
    await asyncio.gather(waiting[0], return_exceptions=True)
    releases.append(await waiting[1])
    for release in releases:
        release()
    assert (memory._reserved, len(memory._waiting)) == (0, 0)


async def test_an_answer_larger_than_all_memory_is_admitted_alone() -> None:
    """With a small limit for all answers one of them must still be read, or it would never end."""
    memory = AnswerMemory(asyncio.get_running_loop())
    release = await asyncio.wait_for(memory.reserve(100 * LIMIT), 5)
    second = asyncio.create_task(memory.reserve(1))
    await asyncio.sleep(0)
    assert not second.done()
    release()
    (await second)()


@pytest.mark.parametrize("through_aiohttp", [False, True])
async def test_the_reply_of_another_server_is_bounded_too(through_aiohttp: bool) -> None:
    """A foreign tool server must not fill the memory of an agent."""
    async with endpoint(TOO_LARGE["endless"][0], endless=True) as there, aiohttp.ClientSession() as own:
        with pytest.raises(ResponseTooLong, match="2,097,152 bytes"):
            response = await http.send(
                "POST", f"{there.url}/tool", data=b"{}", session=own if through_aiohttp else None
            )
            await get_response_json(response)

    assert there.calls == 1


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 * MIB])
@pytest.mark.parametrize("step", [1, 1000, MIB])
def test_decompressing_in_steps_gives_the_same_bytes(size: int, step: int) -> None:
    """A step that loses or repeats input at its border would damage answers silently."""
    content = bytes(range(256)) * (size // 256 + 1)
    decompressor = large_bodies.Decompressor(gzip.compress(content), len(content))
    if size < MIB or step >= 1000:
        while not decompressor.decode(step):
            pass
    else:
        decompressor.decode()
    assert decompressor.body() == content


@pytest.mark.parametrize("cut", [5, 30, -1])
def test_a_truncated_compressed_body_is_an_error(cut: int) -> None:
    """Half an answer must not count as a whole one."""
    content = gzip.compress(bytes(range(256)) * 1000)
    with pytest.raises(zlib.error):
        large_bodies.Decompressor(content[:cut], MIB).decode()
