"""Reading responses, real ones and the stand-ins that server folders use in their tests."""

from types import SimpleNamespace
from unittest.mock import AsyncMock, MagicMock

import aiohttp
import pytest

from nemo_gym.errors import DeadlineExceeded
from nemo_gym.net.client import send
from nemo_gym.net.status import get_response_json, raise_for_status


def reads(value):
    async def read():
        return value

    return read


STAND_INS = {
    "only read()": SimpleNamespace(read=reads(b'{"a": 1}')),
    "only json()": SimpleNamespace(json=reads({"a": 1})),
    "json() that is not a coroutine": SimpleNamespace(json=lambda: {"a": 1}),
    "only content.read()": SimpleNamespace(content=SimpleNamespace(read=reads(b'{"a": 1}'))),
    "a mock with json": MagicMock(json=AsyncMock(return_value={"a": 1})),
    "a mock with read": MagicMock(read=AsyncMock(return_value=b'{"a": 1}')),
    "an async mock with text": AsyncMock(read=AsyncMock(return_value='{"a": 1}')),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("response", STAND_INS.values(), ids=STAND_INS.keys())
async def test_json_is_found_in_any_stand_in(response):
    """160 test files mock the client in about as many ways."""
    assert await get_response_json(response) == {"a": 1}
    await raise_for_status(response)


@pytest.mark.asyncio
async def test_an_error_keeps_what_the_server_said(scripted_server, say):
    """The text of a failed call is all a person has to find out why."""
    async with scripted_server(say(500, b'"out of memory"')) as server:
        response = await send("GET", server.url)

        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await raise_for_status(response)

    assert caught.value.status == 500
    assert caught.value.response_content == b'"out of memory"'


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "response",
    [
        SimpleNamespace(status=418, read=reads(b"tea")),
        MagicMock(ok=False, status=418, read=AsyncMock(return_value=b"tea")),
        SimpleNamespace(ok=False, status=418, content=SimpleNamespace(read=reads(b"tea"))),
    ],
)
async def test_a_stand_in_with_a_bad_status_raises_too(response):
    with pytest.raises(aiohttp.ClientResponseError) as caught:
        await raise_for_status(response)

    assert (caught.value.status, caught.value.response_content) == (418, b"tea")


@pytest.mark.asyncio
async def test_a_body_that_stops_half_way_ends_with_the_deadline(scripted_server):
    """The deadline covers the body, not only the headers."""
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    async with scripted_server(half) as server:
        response = await send("GET", server.url, timeout=1)

        with pytest.raises(DeadlineExceeded, match="did not end in time"):
            await get_response_json(response)


@pytest.mark.asyncio
async def test_a_stand_in_without_any_body_is_a_clear_mistake():
    with pytest.raises(TypeError, match="no JSON body"):
        await get_response_json(MagicMock())
