"""Connecting: at once where that is possible, in order of the addresses, one question for one name."""

import asyncio
import errno
import socket
from typing import Any

import pytest

from nemo_gym.net.dialling import Dialling


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


async def test_a_connection_on_this_machine_is_there_without_waiting(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waited(*_: Any) -> None:
        raise AssertionError("the loop was asked to wait")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", waited, raising=False)
    configured: list[socket.socket] = []
    connection = await Dialling(configured.append).dial(listening.getsockname())
    with connection:
        assert configured == [connection]
        assert connection.getpeername() == listening.getsockname()
        assert not connection.getblocking()
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("said", [None, errno.EISCONN])
async def test_one_that_is_under_way_is_waited_for(
    said: int | None, listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is done between the first look and the second."""
    loop, waited = asyncio.get_running_loop(), []
    connect = loop.sock_connect

    async def wait(connection: socket.socket, address: Any) -> None:
        waited.append(address)
        if said is not None:
            raise OSError(said, "told by another system")
        await connect(connection, address)

    monkeypatch.setattr(loop, "sock_connect", wait, raising=False)
    monkeypatch.setattr(socket.socket, "connect_ex", lambda *_: errno.EINPROGRESS, raising=False)
    connection = await Dialling(lambda _: None).dial(listening.getsockname())
    connection.close()
    assert waited == [listening.getsockname()]


async def test_the_next_address_is_tried_when_one_refuses(listening: socket.socket, monkeypatch: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()
    asked: list[Any] = []

    async def addresses(*address: Any, **_: Any) -> list[Any]:
        asked.append(address)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
        return [(*kind, closed), (*kind, listening.getsockname())]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", addresses, raising=False)
    calling = Dialling(lambda _: None)
    both = await asyncio.gather(calling.dial(("somewhere", 80)), calling.dial(("somewhere", 80)))
    assert [connection.getpeername() for connection in both] == [listening.getsockname()] * 2
    assert asked == [("somewhere", 80)]
    for connection in both:
        connection.close()


async def test_when_all_refuse_the_last_problem_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        closed = other.getsockname()
    calling = Dialling(lambda _: None)
    with pytest.raises(ConnectionRefusedError):
        await calling.dial(closed)

    async def none(*_: Any, **__: Any) -> list[Any]:
        return []

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", none, raising=False)
    with pytest.raises(OSError, match="no address for nowhere"):
        await calling.dial(("nowhere", 1))
    calling.close()
