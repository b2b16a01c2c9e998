"""Model answers that are kept on disk: the same request is answered once, and nothing else is mistaken for it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from nemo_gym.base_responses_api_model import (
    Body,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollouts.run_identity import server_fields
from nemo_gym.serve.response_cache import ResponseCache
from nemo_gym.transport.call_timing import set_current_rollout
from tests.test_base_responses_api_model import USER, Echo, Failing, model, response


class Question(BaseModel):
    text: str
    temperature: float | None = None


class Answer(BaseModel):
    text: str


def counting(calls: list[int]) -> Callable[[], Awaitable[Answer]]:
    async def call() -> Answer:
        calls.append(1)
        return Answer(text=f"answer {len(calls)}")

    return call


async def test_a_repeated_request_is_not_sent_again(tmp_path: Path) -> None:
    """A second run over the same rows should be free, also in another process."""
    calls: list[int] = []
    for _ in range(2):
        cache = ResponseCache(tmp_path, {"model": "m", "port": len(calls)})
        assert (await cache.answer(Question(text="?"), Answer, counting(calls))).text == "answer 1"

    assert len(calls) == 1


async def test_sampling_the_model_and_the_repeat_are_part_of_the_key(tmp_path: Path) -> None:
    """Four repeats of a task with one answer would be one sample, reported as four."""
    calls: list[int] = []
    for server, temperature, rollout in (("m", 0.1, 0), ("m", 0.2, 0), ("n", 0.1, 0), ("m", 0.1, 1), ("m", 0.1, 0)):
        set_current_rollout((5, rollout))
        cache = ResponseCache(tmp_path, {"model": server, "api_key": "secret"})
        await cache.answer(Question(text="?", temperature=temperature), Answer, counting(calls))

    assert len(calls) == 4
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.rglob("*.json"))  # noqa: ASYNC240


async def test_a_damaged_file_or_a_full_disk_does_not_fail_the_call(tmp_path: Path) -> None:
    """A cache may make a run cheaper, never worse."""
    calls: list[int] = []
    cache = ResponseCache(tmp_path / "cache", {})
    await cache.answer(Question(text="?"), Answer, counting(calls))
    (path,) = tmp_path.rglob("*.json")  # noqa: ASYNC240
    path.write_text("{")

    assert (await cache.answer(Question(text="?"), Answer, counting(calls))).text == "answer 2"
    (tmp_path / "file").touch()
    await ResponseCache(tmp_path / "file", {}).answer(Question(text="?"), Answer, counting(calls))


def test_a_model_server_uses_the_cache_if_the_configuration_says_so(tmp_path: Path) -> None:
    """Off by default: a second sample is what most runs want."""
    for config, expected in (({}, 3), ({"response_cache": True, "cache_dir": str(tmp_path)}, 2)):
        server = model(global_config=config)
        client = TestClient(server.setup_webserver())

        replies = [client.post("/v1/responses", json={"input": USER, "top_p": p}).json() for p in (0.5, 0.5, 0.9)]

        assert replies[0]["output"] == replies[1]["output"] and replies[1]["usage"]["total_tokens"] == 5
        assert len(server.requests) == expected
        server.requests.clear()


def test_errors_are_not_stored(tmp_path: Path) -> None:
    """An outage must end."""
    server = model(Failing, {"response_cache": True, "cache_dir": str(tmp_path)})
    client = TestClient(server.setup_webserver(), raise_server_exceptions=False)

    assert client.post("/v1/responses", json={"input": USER}).status_code == 500
    assert list(tmp_path.rglob("*.json")) == []


def test_a_response_that_failed_is_not_stored(tmp_path: Path) -> None:
    """The Responses API reports some failures of an endpoint in a response with the HTTP status 200."""

    class FailingInside(Echo):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            return response(status="failed", output=[], error={"code": "server_error", "message": "try again"})

    server = model(FailingInside, {"response_cache": True, "cache_dir": str(tmp_path)})

    answer = TestClient(server.setup_webserver()).post("/v1/responses", json={"input": USER}).json()

    assert answer["status"] == "failed"
    assert list(tmp_path.rglob("*.json")) == []


def test_repeats_of_an_external_program_get_answers_of_their_own(tmp_path: Path) -> None:
    """A program sends no header of ours: its rollout is known by the base URL that the agent gave to it."""
    server = model(global_config={"response_cache": True, "cache_dir": str(tmp_path)})
    client = TestClient(server.setup_webserver())

    for rollout_id in ("5-0", "5-1", "5-1-a2", "6-1", "mine-1", "mine-2", "mine-2"):
        client.post(f"/ng-rollout/{rollout_id}/v1/responses", json={"input": USER})

    assert len(server.requests) == 4, "two repeats, and two ids that are not of the collector"


@pytest.mark.parametrize(("config", "fields"), [({"response_cache": True}, {"response_cache": True}), ({}, {})])
def test_the_cache_is_part_of_the_identity_of_a_run(config: dict[str, Any], fields: dict[str, Any]) -> None:
    """A run with stored answers and one without must not be mixed by --resume."""
    assert server_fields(config) == fields
