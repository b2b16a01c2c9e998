"""A missing model endpoint is reported before the run, not after a quarter of an hour of retries."""

import asyncio
import socket

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch import model_endpoints as readiness
from nemo_gym.launch.model_endpoints import Endpoint, model_endpoints, wait_for_endpoints
from nemo_gym.launch.ports import listen


def config_for(url: object, **keys: object) -> dict[str, object]:
    return {"policy_model": {"responses_api_models": {"openai_model": {"openai_base_url": url}}}, **keys}


def test_every_base_url_of_every_model_is_checked_once() -> None:
    """Models may list several endpoints and share them; the placeholder model has an empty one."""
    config = {
        "a": {"responses_api_models": {"vllm_model": {"base_url": ["http://h:1/v1", "http://h:2/v1"], "api_key": "x"}}},
        "b": {"responses_api_models": {"openai_model": {"openai_base_url": "http://h:1/v1"}}},
        "c": {"responses_api_models": {"openai_model": {"openai_base_url": ""}}},
        "d": {"resources_servers": {"x": {"base_url": "http://h:3"}}},
        "e": 4,
    }

    endpoints = model_endpoints(config)

    assert endpoints == [
        Endpoint("a.responses_api_models.vllm_model.base_url", "http://h:1/v1"),
        Endpoint("a.responses_api_models.vllm_model.base_url", "http://h:2/v1"),
    ]
    assert endpoints[0].probe_url == "http://h:1/v1/models"


async def answer_once(listener: socket.socket, reply: bytes) -> None:
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    with connection:
        await asyncio.get_running_loop().sock_recv(connection, 4096)
        await asyncio.get_running_loop().sock_sendall(connection, reply)


async def test_any_answer_counts_even_a_refusal() -> None:
    """401 means that a server answers; the first call shows whether the key is right."""
    with listen("m", "127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        answering = asyncio.create_task(
            answer_once(listener, b"HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        )

        await wait_for_endpoints(config_for(f"http://127.0.0.1:{port}/v1"), notify=lambda _: None)

        await answering


async def test_an_endpoint_that_does_not_answer_is_named_with_its_key() -> None:
    """The most frequent mistake of a first run: a wrong port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = taken.getsockname()[1]
        config = config_for(f"http://127.0.0.1:{port}/v1", model_endpoint_readiness_timeout_seconds=0.5)

        with pytest.raises(ConfigError) as raised:
            await wait_for_endpoints(config, notify=lambda _: None)

    assert f"http://127.0.0.1:{port}/v1 (policy_model.responses_api_models.openai_model.openai_base_url)" in str(
        raised.value
    )
    assert "nothing listens there" in str(raised.value)


@pytest.mark.parametrize("limit", [0, -1])
async def test_the_check_can_be_switched_off(limit: float) -> None:
    """Some endpoints answer only real calls."""
    await wait_for_endpoints(
        config_for("http://127.0.0.1:1/v1", model_endpoint_readiness_timeout_seconds=limit), notify=lambda _: None
    )


async def test_an_invalid_url_is_reported_at_once() -> None:
    """Waiting ten minutes does not make it valid."""
    with pytest.raises(ConfigError, match="not a URL"):
        await wait_for_endpoints(config_for("http://:::/v1"), notify=lambda _: None)


async def test_a_long_wait_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten minutes with one line look like a hang."""
    notices: list[str] = []
    for name in ("NOTICE_SECONDS", "REPEATED_NOTICE_SECONDS", "PAUSE_SECONDS"):
        monkeypatch.setattr(readiness, name, 0.01)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        config = config_for(
            f"http://127.0.0.1:{taken.getsockname()[1]}/v1", model_endpoint_readiness_timeout_seconds=0.5
        )
        with pytest.raises(ConfigError):
            await wait_for_endpoints(config, notify=notices.append)

    assert len(notices) >= 2
    assert "nothing listens there" in notices[-1]
