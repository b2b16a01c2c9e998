"""The base of environments that are played step by step.

A subclass says how an episode begins (`reset`) and what one turn of the model does to it (`step`). The base keeps one
episode for each session, sums its rewards and gives the verdict: the model's side never says what it earned.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.errors import EnvFailed
from nemo_gym.grading.last_text import assistant_texts, without_reasoning
from nemo_gym.grading.verdict import Extracted
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.serve.session import new_session_id
from nemo_gym.server_utils import SESSION_ID_KEY
from resources_servers.gymnasium.sessions import Sessions

Metadata = dict[str, Any]
"""The fields of the row, without `responses_create_params`."""
Step = tuple[str | None, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info: as in gymnasium."""

_NOT_METADATA = {"responses_create_params", "response"}


def extract_text(response: NeMoGymResponse) -> str:
    """What the model said in one turn, without its reasoning; nothing when it was cut off while it reasoned."""
    said = without_reasoning("".join(assistant_texts(response)))
    return said.value if isinstance(said, Extracted) else ""


def turns(response: NeMoGymResponse) -> Iterator[NeMoGymResponse]:
    """A whole episode's response as the turns it was played in: what lies between observations is one.

    Where nothing lies between two, before the first or behind the last, the model had its turn and was silent.
    """
    turn: list[Any] = []
    before = ""
    for item in response.output:
        kind = item.type if getattr(item, "role", "assistant") == "assistant" else "observation"
        if kind == "observation" or (kind == "function_call_output" and before != kind):  # outputs of one turn
            yield response.model_copy(update={"output": turn})
            turn = []
        elif kind != "function_call_output":
            turn.append(item)
        before = kind
    yield response.model_copy(update={"output": turn})


class GymnasiumConfig(BaseResourcesServerConfig):
    max_sessions: int = Field(default=10_000, ge=1)
    """Episodes kept at once; beyond it the one left alone longest is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """An episode without a call for so long is dropped."""


class EnvResetRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class EnvResetResponse(BaseModel):
    observation: str | None = None
    info: dict[str, Any] = {}


class EnvStepRequest(BaseVerifyRequest):
    """The row, and what the model answered on this turn."""

    model_config = ConfigDict(extra="allow")


class EnvStepResponse(BaseModel):
    observation: str | None = None
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = {}


class GymnasiumVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class GymnasiumVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    steps: int
    terminated: bool
    """The episode came to its own end."""
    truncated: bool
    """It was ended: by the environment, or because the agent stopped."""
    info: dict[str, Any] = {}
    """Of the last step."""


class AnyRow(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass
class Episode:
    """How far a session has come."""

    state: Any = None
    """Whatever the environment keeps."""
    reward: float = 0.0
    steps: int = 0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] | None = None
    """Of the last step."""

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated


class GymnasiumServer(SimpleResourcesServer):
    """Override `reset` and `step`; what belongs to one episode goes through `keep` and comes back from `kept`."""

    REPLAYS: ClassVar[bool] = False
    """The same row and the same turns always play out the same: the verdict comes from the response alone."""
    ROW: ClassVar[type[BaseModel]] = AnyRow
    """What a row has to look like; one that does not is a 422."""

    config: GymnasiumConfig
    _episodes: Sessions[Episode] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        config = self.config
        self._episodes = Sessions(most=config.max_sessions, idle_seconds=config.session_idle_seconds)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/reset")(self.reset_endpoint)
        app.post("/step")(self.step_endpoint)
        return app

    @abstractmethod
    async def reset(self, metadata: Metadata, session_id: str) -> tuple[str | None, dict[str, Any]]:
        """Begin an episode: the first observation (None when the row's prompt says all) and info."""

    @abstractmethod
    async def step(self, action: NeMoGymResponse, metadata: Metadata, session_id: str) -> Step:
        """Take one turn of the model. Its reward is added up by the base."""

    def keep(self, session_id: str, state: Any) -> None:
        """Remember `state` until the session's episode ends."""
        episode = self._episodes.get(session_id)
        if episode is None:
            raise _no_episode()
        episode.state = state

    def kept(self, session_id: str) -> Any:
        """What was given to `keep`."""
        episode = self._episodes.get(session_id)
        if episode is None:
            raise _no_episode()
        return episode.state

    async def reset_endpoint(self, request: Request, body: EnvResetRequest) -> EnvResetResponse:
        """Begin an episode in this session, in place of one that may be there."""
        observation, info = await self._begin(request.session[SESSION_ID_KEY], self._metadata(body))
        return EnvResetResponse(observation=observation, info=info)

    async def step_endpoint(self, request: Request, body: EnvStepRequest) -> EnvStepResponse:
        """One turn of the session's episode."""
        return await self._take(request.session[SESSION_ID_KEY], body.response, self._metadata(body))

    async def verify(self, request: Request, body: GymnasiumVerifyRequest) -> GymnasiumVerifyResponse:
        """The sum of all steps' rewards; the session ends. Where episodes can be played again, the response decides."""
        metadata = self._metadata(body)
        episode = self._episodes.pop(request.session[SESSION_ID_KEY])
        if self.REPLAYS:
            episode = await self._replayed(body.response, metadata)
        if episode is None:
            raise _no_episode()
        verdict = {
            "reward": episode.reward,
            "steps": episode.steps,
            "terminated": episode.terminated,
            "truncated": not episode.terminated,
            "info": episode.info or {},
        }
        return GymnasiumVerifyResponse(**(body.model_dump() | verdict))

    async def _begin(self, session_id: str, metadata: Metadata) -> tuple[str | None, dict[str, Any]]:
        self._episodes.put(session_id, Episode())
        return await self.reset(metadata, session_id)

    async def _take(self, session_id: str, action: NeMoGymResponse, metadata: Metadata) -> EnvStepResponse:
        episode = self._episodes.get(session_id)
        if episode is None:
            raise _no_episode()
        if episode.is_over:
            raise HTTPException(409, "the episode of this session is over")
        observation, reward, terminated, truncated, info = await self.step(action, metadata, session_id)
        if not math.isfinite(reward):
            raise EnvFailed(f"step {episode.steps + 1} gave the reward {reward}", where=self.config.name)
        episode.reward += reward
        episode.steps += 1
        episode.terminated, episode.truncated, episode.info = terminated, truncated, info
        return EnvStepResponse(
            observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info
        )

    async def _replayed(self, response: NeMoGymResponse, metadata: Metadata) -> Episode:
        """The episode these turns make."""
        session_id = f"replay-{new_session_id()}"
        try:
            await self._begin(session_id, metadata)
            for turn in turns(response):
                taken = await self._take(session_id, turn, metadata)
                if taken.terminated or taken.truncated:
                    break
        finally:
            episode = self._episodes.pop(session_id)
        if episode is None:
            raise _no_episode()
        return episode

    def _metadata(self, body: BaseModel) -> Metadata:
        row = {name: value for name, value in body if name not in _NOT_METADATA}
        try:
            return self.ROW.model_validate(row).model_dump()
        except ValidationError as problem:
            raise RequestValidationError(
                [{**error, "loc": ("body", *error["loc"])} for error in problem.errors(include_url=False)]
            ) from None


def _no_episode() -> HTTPException:
    return HTTPException(409, "this session has no episode: it was not reset, or it was left alone for too long")
