"""Base class of environments with the protocol of gymnasium: `reset` and `step`.

A subclass implements `reset`, which begins an episode, and `step`, which applies one turn of the model; both return an
observation, the next message to the model. The base class stores one episode per session, sums the rewards of its steps
and returns the sum from `/verify`.
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
from nemo_gym.errors import InvalidReward
from nemo_gym.grading.extraction import assistant_texts, strip_reasoning
from nemo_gym.grading.result_types import ExtractedAnswer
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.serve.session import SessionStore, new_session_id
from nemo_gym.server_utils import SESSION_ID_KEY

Metadata = dict[str, Any]
"""The fields of the row, without `responses_create_params`."""
Step = tuple[str | None, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info: as in gymnasium."""

_NOT_METADATA = {"responses_create_params", "response"}


def extract_text(response: NeMoGymResponse) -> str:
    """Return the text of one turn without its reasoning; empty if the turn was cut off inside its reasoning."""
    text = strip_reasoning("".join(assistant_texts(response)))
    return text.value if isinstance(text, ExtractedAnswer) else ""


def split_turns(response: NeMoGymResponse) -> Iterator[NeMoGymResponse]:
    """Split the response of a whole episode into its turns: the items of the model between two observations or outputs.

    A turn without items is yielded as well: the model produced no output there.
    """
    turn: list[Any] = []
    previous_kind = ""
    for item in response.output:
        is_observation = getattr(item, "role", "assistant") != "assistant"
        kind = "observation" if is_observation else item.type
        # Consecutive tool outputs belong to one turn: only the first of them ends it.
        if is_observation or (kind == "function_call_output" and previous_kind != kind):
            yield response.model_copy(update={"output": turn})
            turn = []
        elif kind != "function_call_output":
            turn.append(item)
        previous_kind = kind
    yield response.model_copy(update={"output": turn})


class GymnasiumConfig(BaseResourcesServerConfig):
    max_sessions: int = Field(default=10_000, ge=1)
    """Maximum number of stored episodes; when it is exceeded, the least recently used episode is dropped."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """An episode is dropped after this time without a call."""


class EnvResetRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class EnvResetResponse(BaseModel):
    observation: str | None = None
    info: dict[str, Any] = {}


class EnvStepRequest(BaseVerifyRequest):
    """The row, and the model's response in this turn."""

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
    """The environment ended the episode."""
    truncated: bool
    """The episode did not terminate: the environment truncated it, or the agent stopped."""
    info: dict[str, Any] = {}
    """The info of the last step."""


class AnyRow(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass
class Episode:
    """The state of one session."""

    state: Any = None
    """The value that `save_state` stored."""
    reward: float = 0.0
    steps: int = 0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] | None = None
    """The info of the last step."""

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated


class GymnasiumServer(SimpleResourcesServer):
    """Base class: override `reset` and `step`; store the state of an episode with `save_state` and `load_state`."""

    REPLAYS: ClassVar[bool] = False
    """Set to True if episodes are deterministic: `/verify` then replays the response and needs no session."""
    ROW: ClassVar[type[BaseModel]] = AnyRow
    """The model of a row's fields; an invalid row is rejected with status 422."""

    config: GymnasiumConfig
    _episodes: SessionStore[Episode] = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        config = self.config
        self._episodes = SessionStore(max_sessions=config.max_sessions, idle_seconds=config.session_idle_seconds)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/reset")(self.reset_endpoint)
        app.post("/step")(self.step_endpoint)
        return app

    @abstractmethod
    async def reset(self, metadata: Metadata, session_id: str) -> tuple[str | None, dict[str, Any]]:
        """Begin an episode; return the first observation (None if the row's prompt is enough) and info."""

    @abstractmethod
    async def step(self, action: NeMoGymResponse, metadata: Metadata, session_id: str) -> Step:
        """Apply one turn of the model. The base class sums the rewards."""

    def save_state(self, session_id: str, state: Any) -> None:
        """Store `state` until the session's episode ends."""
        self._episode(session_id).state = state

    def load_state(self, session_id: str) -> Any:
        """Return the state that `save_state` stored."""
        return self._episode(session_id).state

    def _episode(self, session_id: str) -> Episode:
        return _require(self._episodes.get(session_id))

    async def reset_endpoint(self, request: Request, body: EnvResetRequest) -> EnvResetResponse:
        """Begin an episode in this session, in place of the previous one."""
        observation, info = await self._begin(request.session[SESSION_ID_KEY], self._metadata(body))
        return EnvResetResponse(observation=observation, info=info)

    async def step_endpoint(self, request: Request, body: EnvStepRequest) -> EnvStepResponse:
        """Apply one turn to the session's episode."""
        return await self._apply_turn(request.session[SESSION_ID_KEY], body.response, self._metadata(body))

    async def verify(  # type: ignore[override]  # the session comes with the request
        self, request: Request, body: GymnasiumVerifyRequest
    ) -> GymnasiumVerifyResponse:
        """End the episode and return the sum of its rewards: of the session's steps or, with `REPLAYS`, of a replay."""
        metadata = self._metadata(body)
        episode = self._episodes.pop(request.session[SESSION_ID_KEY])
        episode = await self._replay(body.response, metadata) if self.REPLAYS else _require(episode)
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

    async def _apply_turn(self, session_id: str, action: NeMoGymResponse, metadata: Metadata) -> EnvStepResponse:
        """Call `step` and add its result to the episode; status 409 if the episode is over."""
        episode = self._episode(session_id)
        if episode.is_over:
            raise HTTPException(409, "the episode of this session is over")
        observation, reward, terminated, truncated, info = await self.step(action, metadata, session_id)
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise InvalidReward(f"step {episode.steps + 1} returned the reward {reward}", where=self.config.name)
        episode.reward += reward
        episode.steps += 1
        episode.terminated, episode.truncated, episode.info = terminated, truncated, info
        return EnvStepResponse(
            observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info
        )

    async def _replay(self, response: NeMoGymResponse, metadata: Metadata) -> Episode:
        """Apply the turns of a response to a new episode and return that episode."""
        session_id = f"replay-{new_session_id()}"
        try:
            await self._begin(session_id, metadata)
            for turn in split_turns(response):
                result = await self._apply_turn(session_id, turn, metadata)
                if result.terminated or result.truncated:
                    break
        finally:
            episode = self._episodes.pop(session_id)
        return _require(episode)

    def _metadata(self, body: BaseModel) -> Metadata:
        """Return the row's fields, validated by `ROW`; reject invalid fields with status 422."""
        row = {name: value for name, value in body if name not in _NOT_METADATA}
        try:
            return self.ROW.model_validate(row).model_dump()
        except ValidationError as problem:
            raise RequestValidationError(
                [{**error, "loc": ("body", *error["loc"])} for error in problem.errors(include_url=False)]
            ) from None


def _require(episode: Episode | None) -> Episode:
    if episode is None:
        raise HTTPException(409, "this session has no episode: it was not reset, or it was idle for too long")
    return episode
