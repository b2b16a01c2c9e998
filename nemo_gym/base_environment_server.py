"""Environment servers: own an episode from its seed to its cleanup, and answer with a result or a typed failure.

A subclass sets `request_model` and `response_model` and overrides `run` and `aggregate_metrics`.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypeVar

from fastapi import FastAPI
from pydantic import ConfigDict, Field, model_validator

from nemo_gym.config_types import AggregateMetrics, AggregateMetricsRequest, BaseRunServerInstanceConfig
from nemo_gym.failure_kinds import MAX_REASON_CHARACTERS
from nemo_gym.rollout_correlation import rollout_context
from nemo_gym.serve.app import create_app
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.run_counts import counting_run
from nemo_gym.server_utils import SimpleServer
from nemo_gym.wire.episode_task import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure

logger = logging.getLogger("nemo_gym.serve")

RequestT = TypeVar("RequestT", bound=BaseEpisodeRequest[Any])
ResponseT = TypeVar("ResponseT", bound=BaseEpisodeResponse[Any])
Callback = Callable[[], Awaitable[Any]]


class HandledEpisodeError(Exception):
    """The episode ends with this failure; raised by `run`."""

    def __init__(self, failure: EpisodeFailure) -> None:
        super().__init__(failure.failure_reason)
        self.failure = failure


class CleanupHandle:
    """One registered cleanup, which may run before the end of the episode."""

    def __init__(self, name: str, callback: Callback, timeout_seconds: float) -> None:
        self.name = name
        self._callback = callback
        self._timeout_seconds = timeout_seconds
        self._lock = asyncio.Lock()
        self.is_active = True

    async def close(self) -> None:
        """Run the cleanup once, with a timeout; if it fails, the end of the episode runs it again."""
        async with self._lock:
            if self.is_active:
                async with asyncio.timeout(self._timeout_seconds):
                    await self._callback()
                self.is_active = False


class CleanupContext:
    """The cleanups of one episode, run at its end: the last one registered first."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._handles: list[CleanupHandle] = []

    def register_cleanup(self, name: str, callback: Callback) -> CleanupHandle:
        """Register an async function without parameters; return its handle, for running it earlier."""
        handle = CleanupHandle(name, callback, self._timeout_seconds)
        self._handles.append(handle)
        return handle

    async def run_all(self) -> None:
        """Run what is left, within one timeout for all. Failures are logged."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while self._handles:
                    handle = self._handles.pop()
                    try:
                        await handle.close()
                    except Exception:  # the callback is code of a server folder
                        logger.exception("the cleanup %s of an episode failed", handle.name)
        except TimeoutError:
            names = ", ".join(handle.name for handle in self._handles) or "the last one"
            logger.warning("cleanups of an episode took more than %g s; skipped: %s", self._timeout_seconds, names)


class BaseEnvironmentServerConfig(BaseRunServerInstanceConfig):
    """Configuration fields of every environment server. The limits are those of one process."""

    model_config = ConfigDict(extra="forbid")

    max_concurrent_episodes: int | None = Field(default=None, gt=0)
    queue_timeout_seconds: float | None = Field(default=None, gt=0)
    """Longest wait of an episode for its admission; needed with `max_concurrent_episodes`."""
    default_episode_timeout_seconds: float | None = Field(default=None, gt=0)
    cleanup_timeout_seconds: float = Field(gt=0)

    @model_validator(mode="after")
    def _check_queue(self) -> Self:
        if self.max_concurrent_episodes is not None and self.queue_timeout_seconds is None:
            raise ValueError("max_concurrent_episodes needs queue_timeout_seconds")
        return self


class BaseEnvironmentServer(SimpleServer, Generic[RequestT, ResponseT]):
    """Base class of environment servers: routes `/run` and `/aggregate_metrics`."""

    config: BaseEnvironmentServerConfig

    request_model: ClassVar[type[BaseEpisodeRequest[Any]]]
    response_model: ClassVar[type[BaseEpisodeResponse[Any]]]

    @abstractmethod
    async def run(self, request: RequestT, cleanup: CleanupContext) -> ResponseT:
        """Run one episode. Raise `HandledEpisodeError` for a failure that is understood."""

    @abstractmethod
    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        """Answer `POST /aggregate_metrics`."""

    def setup_webserver(self) -> FastAPI:
        """Build the app with the routes of every environment server."""
        app = create_app(title=type(self).__name__)

        async def run(body: Any) -> Any:
            with counting_run():
                return await self.run_request(body)

        run.__annotations__ = {"body": self.request_model, "return": self.response_model}
        app.post("/run")(json_endpoint(run))
        app.post("/aggregate_metrics")(json_endpoint(self.aggregate_metrics))
        return app

    @cached_property
    def _admission(self) -> asyncio.Semaphore | None:
        limit = self.config.max_concurrent_episodes
        return None if limit is None else asyncio.Semaphore(limit)

    async def run_request(self, request: RequestT) -> ResponseT:
        """Admit an episode, run it with its deadline and clean up, whatever happens.

        Raises:
            ValueError: the answer belongs to another episode or task.
        """
        if self._admission is not None:
            try:
                async with asyncio.timeout(self.config.queue_timeout_seconds):
                    await self._admission.acquire()
            except TimeoutError:
                return self._failed_response(request, _failure("Episode admission timed out", stage="admission"))
        try:
            with rollout_context(request.episode_id.capture_key):
                answer = await self._run_and_clean_up(request)
        finally:
            if self._admission is not None:
                self._admission.release()
        response: ResponseT = self.response_model.model_validate(answer.model_dump())  # type: ignore[assignment]
        if (response.episode_id, response.task_id) != (request.episode_id, request.task.task_id):
            raise ValueError(f"the answer is that of {response.episode_id}, {response.task_id}")
        return response

    async def _run_and_clean_up(self, request: RequestT) -> ResponseT:
        cleanup = CleanupContext(self.config.cleanup_timeout_seconds)
        try:
            return await self._run_with_deadline(request, cleanup)
        finally:
            await _finish(cleanup.run_all())

    async def _run_with_deadline(self, request: RequestT, cleanup: CleanupContext) -> ResponseT:
        deadline = asyncio.timeout(self.config.default_episode_timeout_seconds)
        try:
            async with deadline:
                return await self.run(request, cleanup)
        except HandledEpisodeError as error:
            return self._failed_response(request, error.failure)
        except Exception as error:  # the code of a server folder may fail in any way
            if deadline.expired() and isinstance(error, TimeoutError):
                return self._failed_response(request, _failure("Episode timed out"))
            logger.exception("%s: an episode failed", self.config.name)
            reason = f"Unhandled environment server error: {type(error).__name__}: {error}"
            return self._failed_response(request, _failure(reason, terminal=True))

    def _failed_response(self, request: RequestT, failure: EpisodeFailure) -> ResponseT:
        fields = {"episode_id": request.episode_id, "task_id": request.task.task_id, "failure": failure.model_dump()}
        answer: ResponseT = self.response_model.model_validate(fields)  # type: ignore[assignment]
        return answer


def _failure(reason: str, *, terminal: bool = False, stage: Any = None) -> EpisodeFailure:
    return EpisodeFailure(failure_reason=reason[:MAX_REASON_CHARACTERS], terminal=terminal, stage=stage)


async def _finish(work: Awaitable[None]) -> None:
    """Await work to its end, also if the caller is cancelled meanwhile, even twice; then raise the cancellation."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation
