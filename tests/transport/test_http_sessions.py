"""Sessions: one per loop, closed with it, without a warning (warnings are errors here)."""

import asyncio
import contextlib
import gc
import socket

import pytest
from pydantic import ValidationError
from yarl import URL

from nemo_gym.transport import http_sessions
from nemo_gym.transport.http_sessions import GlobalAIOHTTPAsyncClientConfig


async def open_one() -> object:
    first = http_sessions.current_session()
    assert http_sessions.current_session() is first
    assert http_sessions.has_session()
    return first


def test_each_loop_has_its_own_session_and_closes_it():
    """Two loops sharing a session fail in ways that look like network errors."""
    first, second = asyncio.run(open_one()), asyncio.run(open_one())

    assert first is not second
    assert first.closed and second.closed
    assert not http_sessions.has_session()
    gc.collect()


def test_a_loop_that_was_closed_carelessly_leaves_no_warning():
    """Libraries close loops without shutting down generators; that is no reason to warn our users at exit."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(open_one())
    loop.close()

    asyncio.run(open_one())

    gc.collect()


def test_what_is_open_can_be_closed_from_outside():
    """Sockets of a loop that has ended would leak and cause warnings at exit."""
    loop = asyncio.new_event_loop()
    session = loop.run_until_complete(open_one())

    http_sessions.close_all()

    assert session.closed
    loop.close()


@pytest.mark.asyncio
async def test_a_closed_session_is_replaced():
    """Otherwise every call after a cleanup would fail."""
    first = http_sessions.current_session()
    await http_sessions.close_current_session()

    assert first.closed
    assert http_sessions.current_session() is not first


@pytest.mark.asyncio
async def test_limits_are_shared_among_workers_and_cookies_are_not_kept(monkeypatch):
    """N workers together must stay below the configured limit; one rollout's cookie is not another's."""
    monkeypatch.setenv("NEMO_GYM_FASTAPI_NUM_WORKERS", "4")
    http_sessions.configure(
        GlobalAIOHTTPAsyncClientConfig(global_aiohttp_connector_limit=10, global_aiohttp_connector_limit_per_host=3)
    )

    session = http_sessions.current_session()

    assert session.connector.limit == 2
    assert session.connector.limit_per_host == 1
    session.cookie_jar.update_cookies({"a": "b"})
    assert len(session.cookie_jar) == 0


def test_sockets_notice_a_peer_that_vanished():
    """Without keep-alive a call to a machine that lost power waits forever."""
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))

    with http_sessions._keepalive_socket(address, GlobalAIOHTTPAsyncClientConfig()) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_settings_come_from_the_global_keys_and_nonsense_is_refused():
    """A timeout of zero would fail every call, far from the setting that caused it."""
    made = GlobalAIOHTTPAsyncClientConfig.from_global_config({"request_timeout_seconds": 5, "policy_api_key": "x"})

    assert made.request_timeout_seconds == 5
    assert made.global_aiohttp_connector_limit == 102400
    with pytest.raises(ValidationError):
        GlobalAIOHTTPAsyncClientConfig(request_timeout_seconds=0)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, 1024),
        ({"num_samples_in_parallel": 64}, 1024),
        ({"num_samples_in_parallel": 4096}, 4096),
        ({"num_samples_in_parallel": None}, 1024),
        ({"num_samples_in_parallel": 4096, "global_aiohttp_connector_limit_per_host": 10}, 10),
    ],
)
def test_a_run_with_many_rollouts_in_flight_gets_a_connection_for_each(config, expected):
    """4,096 in flight must not queue for 1,024 connections because of a second key."""
    assert GlobalAIOHTTPAsyncClientConfig.from_global_config(config).global_aiohttp_connector_limit_per_host == expected


@pytest.mark.asyncio
async def test_connections_never_exceed_the_open_file_limit_and_the_log_names_it(monkeypatch, caplog):
    """Without the cap calls fail with "too many open files", as if the endpoint were down."""
    monkeypatch.setattr(http_sessions.resource, "getrlimit", lambda _: (http_sessions.OTHER_OPEN_FILES + 2, 4096))
    http_sessions.configure(GlobalAIOHTTPAsyncClientConfig(global_aiohttp_connector_limit_per_host=10_000))
    everyone_waits = asyncio.Event()
    handlers: list[asyncio.Task] = []

    async def answer_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"\r\n\r\n"):
                await everyone_waits.wait()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer_later, "127.0.0.1", 0)
    url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    calls = [asyncio.create_task(http_sessions.current_pool().request("GET", url, {}, b"")) for _ in range(5)]
    while not caplog.messages:  # noqa: ASYNC110 - a log announces nothing
        await asyncio.sleep(0.001)
    everyone_waits.set()
    answers = await asyncio.gather(*calls)
    await http_sessions.close_current_session()
    server.close()
    await asyncio.gather(*handlers)

    assert [answer.status for answer in answers] == [200] * 5
    assert "all 2 connections" in caplog.messages[0]
    assert "ulimit -n" in caplog.messages[0]
