"""Environment servers: admission, deadline, failures and cleanup of an episode, whatever its code does."""

import asyncio
from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient

from nemo_gym.base_environment_server import (
    BaseEnvironmentServer,
    BaseEnvironmentServerConfig,
    CleanupContext,
    HandledEpisodeError,
)
from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.episode_types import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.server_utils import ServerClient

TASK = {"task_id": {"taskset": "sums", "task_id": "7"}, "task_input": {"what": "score"}}
REQUEST = {"episode_id": {"rollout_id": "7-0", "attempt": 2}, "task": TASK}


class EpisodeRequest(BaseEpisodeRequest[dict[str, Any]]):
    pass


class EpisodeResponse(BaseEpisodeResponse[dict[str, Any]]):
    pass


class SumsEnvironment(BaseEnvironmentServer[EpisodeRequest, EpisodeResponse]):
    ray_enabled = False
    request_model = EpisodeRequest
    response_model = EpisodeResponse

    config: BaseEnvironmentServerConfig
    events: list[str] = []
    busy: Any = None

    async def run(self, request: EpisodeRequest, cleanup: CleanupContext) -> EpisodeResponse:
        async def free(name: str) -> None:
            self.events.append(f"free {name}")

        async def fail() -> None:
            raise OSError("gone")

        first = cleanup.register_cleanup("first", lambda: free("first"))
        cleanup.register_cleanup("broken", fail)
        cleanup.register_cleanup("second", lambda: free("second"))
        what = request.task.task_input["what"]
        if what == "fail":
            raise HandledEpisodeError(EpisodeFailure(failure_reason="no seat", terminal=False, stage="seed"))
        if what == "break":
            raise RuntimeError("x" * 5000)
        if what == "wait":
            self.busy.set()
            await asyncio.Event().wait()
        if what == "early":
            await first.close()
            await first.close()
        task_id = request.task.task_id if what != "other" else {"taskset": "sums", "task_id": "8"}
        result = {"reward": 1.0, "rollout": current_rollout_id()}
        return EpisodeResponse(episode_id=request.episode_id, task_id=task_id, result=result)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics(agent_metrics={"n": len(body.verify_responses)})


def make_server(**config: Any) -> SumsEnvironment:
    fields = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "sums", "cleanup_timeout_seconds": 5}
    settings = BaseEnvironmentServerConfig.model_validate({**fields, **config})
    return SumsEnvironment(config=settings, server_client=MagicMock(spec=ServerClient), events=[])


def request_for(what: str) -> dict[str, Any]:
    return {**REQUEST, "task": {**TASK, "task_input": {"what": what}}}


def test_a_result_names_its_episode_and_cleanup_runs_in_reverse_order() -> None:
    """What a later step acquired may depend on an earlier one."""
    server = make_server()

    answer = TestClient(server.setup_webserver()).post("/run", json=REQUEST)

    assert answer.status_code == 200, answer.text
    assert answer.json()["result"] == {"reward": 1.0, "rollout": "7-0-a2"}
    assert answer.json()["episode_id"] == REQUEST["episode_id"]
    assert server.events == ["free second", "free first"]


def test_a_cleanup_that_ran_early_runs_once() -> None:
    """A session is closed to read its observations, before the episode ends."""
    server = make_server()

    assert TestClient(server.setup_webserver()).post("/run", json=request_for("early")).status_code == 200
    assert server.events == ["free first", "free second"]


@pytest.mark.parametrize(
    ("what", "reason", "terminal", "stage"),
    [("fail", "no seat", False, "seed"), ("break", "Unhandled environment server error: RuntimeError: x", True, None)],
)
def test_errors_are_typed_failures(what: str, reason: str, terminal: bool, stage: str | None) -> None:
    """A failure is not a reward, and says whether another attempt makes sense."""
    server = make_server()

    failure = TestClient(server.setup_webserver()).post("/run", json=request_for(what)).json()["failure"]

    assert failure["failure_reason"].startswith(reason)
    assert len(failure["failure_reason"]) <= 2000
    assert (failure["terminal"], failure.get("stage")) == (terminal, stage)
    assert server.events == ["free second", "free first"]


async def test_an_episode_has_a_deadline_and_waits_for_its_admission() -> None:
    """Nothing waits without an end."""
    server = make_server(max_concurrent_episodes=1, queue_timeout_seconds=0.01, default_episode_timeout_seconds=0.2)
    server.busy = asyncio.Event()
    request = EpisodeRequest.model_validate(request_for("wait"))
    running = asyncio.create_task(server.run_request(request))
    await server.busy.wait()

    refused = await server.run_request(request)
    timed_out = await running

    assert refused.failure == EpisodeFailure(
        failure_reason="Episode admission timed out", terminal=False, stage="admission"
    )
    assert timed_out.failure == EpisodeFailure(failure_reason="Episode timed out", terminal=False)
    assert (await server.run_request(EpisodeRequest.model_validate(REQUEST))).result is not None


async def test_a_cancelled_episode_is_cleaned_up() -> None:
    """A client that leaves must not leave sandboxes behind."""
    server = make_server()
    server.busy = asyncio.Event()
    running = asyncio.create_task(server.run_request(EpisodeRequest.model_validate(request_for("wait"))))
    await server.busy.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert server.events == ["free second", "free first"]


async def test_a_cleanup_ends_also_if_its_episode_is_cancelled_twice() -> None:
    """The caller gives up, then the server stops: the sandbox of the episode must still be freed."""
    server, cleaning, may_end = make_server(), asyncio.Event(), asyncio.Event()

    async def free_slowly() -> None:
        cleaning.set()
        await may_end.wait()
        server.events.append("free slowly")

    async def run(request: EpisodeRequest, cleanup: CleanupContext) -> EpisodeResponse:
        cleanup.register_cleanup("slow", free_slowly)
        return EpisodeResponse(episode_id=request.episode_id, task_id=request.task.task_id, result={"reward": 1.0})

    object.__setattr__(server, "run", run)
    episode = asyncio.ensure_future(server.run_request(EpisodeRequest.model_validate(REQUEST)))
    await cleaning.wait()
    for _ in range(2):
        episode.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await episode
    assert server.events == ["free slowly"]


async def test_an_answer_of_another_task_is_an_error() -> None:
    """It would be stored under the wrong task."""
    with pytest.raises(ValueError, match="the answer is that of"):
        await make_server().run_request(EpisodeRequest.model_validate(request_for("other")))


@pytest.mark.parametrize("config", [{"max_concurrent_episodes": 3}, {"cleanup_timeout_seconds": 0}, {"typo": 1}])
def test_a_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    """An unlimited queue would wait without an end."""
    with pytest.raises(ValueError):
        make_server(**config)
