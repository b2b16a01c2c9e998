"""Base class of environments with the protocol of gymnasium: `reset` and `step`.

A subclass implements `reset`, which begins an episode, and `step`, which applies one turn of the model; both return an
observation, the next message to the model, or an `Opening` and a `Step`, which can also hold tools, images and an
output for each tool call. The base class stores one episode per session, sums the rewards of its steps and returns the
sum from `/verify`. Both methods, and `close`, may be synchronous: they then run on a thread.
"""

import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    Opening,
    SimpleResourcesServer,
    Step,
    ToolError,
)
from nemo_gym.errors import EnvFailed, InvalidReward
from nemo_gym.grading.extraction import assistant_texts, strip_reasoning
from nemo_gym.grading.result_types import ExtractedAnswer
from nemo_gym.keys import EPISODE_HEADER
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseFunctionToolCall
from nemo_gym.serve.call_handler import WholeResponse
from nemo_gym.serve.endpoints import json_endpoint
from nemo_gym.serve.session import SessionStore, new_session_id
from nemo_gym.serve.tools import call_in_session, call_tool, tool_methods
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.wire.call_reply import encode_json, encode_model, parse_tool_arguments
from nemo_gym.wire.episode import Content, Signals, as_content

Metadata = dict[str, Any]
"""The fields of the row, without `responses_create_params`; those of its `verifier_metadata` also at the top level."""
StepTuple = tuple[Any, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info: as in gymnasium."""
StartTuple = tuple[Any, dict[str, Any]]
"""First observation or opening, and info."""

_NOT_METADATA = {"responses_create_params", "response", "capture_rollout_id"}
_VERIFIER_METADATA = "verifier_metadata"


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
    observation: Content | None = None
    info: dict[str, Any] = {}


class EnvOpeningResponse(EnvResetResponse):
    """The answer of `/reset` with messages and tools for the conversation."""

    messages: list[Any] = []
    tools: list[dict[str, Any]] = []


class EnvStepRequest(BaseVerifyRequest):
    """The row, and the model's response in this turn."""

    model_config = ConfigDict(extra="allow")


class EnvStepResponse(BaseModel):
    observation: Content | None = None
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any] = {}


class EnvStepOutputsResponse(EnvStepResponse):
    """The answer of `/step` with an output for each tool call of the turn, by call id."""

    outputs: dict[str, Content]


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
    step_rewards: list[float] = []
    """The reward of each step, which is that of each model turn."""


class AnyRow(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass
class Episode:
    """The state of one session."""

    state: Any = None
    """The value that `save_state` stored."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each step."""
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] | None = None
    """The info of the last step."""

    @property
    def reward(self) -> float:
        return sum(self.rewards)

    @property
    def steps(self) -> int:
        return len(self.rewards)

    @property
    def is_over(self) -> bool:
        return self.terminated or self.truncated


class SessionStates(MutableMapping[str, Any]):
    """The states of the episodes by session id; setting one outside an episode begins an episode."""

    def __init__(self, episodes: SessionStore[Episode]) -> None:
        self._episodes = episodes

    def __getitem__(self, session_id: str) -> Any:
        episode = self._episodes.get(session_id)
        if episode is None:
            raise KeyError(session_id)
        return episode.state

    def __setitem__(self, session_id: str, state: Any) -> None:
        episode = self._episodes.get(session_id)
        if episode is None:
            self._episodes.put(session_id, Episode(state))
        else:
            episode.state = state

    def __delitem__(self, session_id: str) -> None:
        """Remove the state; the rewards of the episode stay until it ends."""
        if self[session_id] is None:
            raise KeyError(session_id)
        self[session_id] = None

    def __iter__(self) -> Iterator[str]:
        return (session_id for session_id in self._episodes.session_ids() if self.get(session_id) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class GymnasiumServer(SimpleResourcesServer):
    """Base class: override `reset` and `step`; store the state of an episode with `save_state` and `load_state`."""

    REPLAYS: ClassVar[bool] = False
    """Set to True if episodes are deterministic: `/verify` then replays the response and needs no session."""
    ROW: ClassVar[type[BaseModel]] = AnyRow
    """The model of a row's fields; an invalid row is rejected with status 422."""

    config: GymnasiumConfig
    _episodes: SessionStore[Episode] = PrivateAttr()

    @field_validator("config", mode="before")
    @classmethod
    def _complete_config(cls, config: Any) -> Any:
        """Complete a configuration that has only the fields of every resources server."""
        if type(config) is BaseResourcesServerConfig and cls.model_fields["config"].annotation is GymnasiumConfig:
            return GymnasiumConfig.model_validate(config.model_dump())
        return config

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        defaults = GymnasiumConfig.model_fields  # a subclass may have a configuration without these fields
        most, idle = (
            getattr(self.config, name, defaults[name].default) for name in ("max_sessions", "session_idle_seconds")
        )
        self._episodes = SessionStore(max_sessions=most, idle_seconds=idle)
        if self._has_close_hook():  # which ends the episodes, so the store must not drop one before
            self._episodes = SessionStore(max_sessions=sys.maxsize, idle_seconds=math.inf)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/reset")(json_endpoint(self.reset_endpoint))
        app.post("/step")(json_endpoint(self.step_endpoint))
        return app

    @abstractmethod
    async def reset(self, metadata: Metadata, session_id: str) -> StartTuple | Opening:
        """Begin an episode; return the first observation (None if the row's prompt is enough) and info, or an opening.

        An override may be synchronous.
        """

    @abstractmethod
    async def step(self, action: NeMoGymResponse, metadata: Metadata, session_id: str) -> StepTuple | Step:
        """Apply one turn of the model. The base class sums the rewards. An override may be synchronous."""

    async def run_tool_calls(self, action: NeMoGymResponse, session_id: str) -> Step:
        """Run the tool calls of a turn, in order, with the methods marked `@tool`; for use in `step`.

        The step has an output for each call, the sum of their rewards, and is done if one of them is.
        """
        tools = tool_methods(type(self))
        outputs: dict[str, Any] = {}
        rewards: list[float] = []
        done = False
        for call in action.output:
            if not isinstance(call, NeMoGymResponseFunctionToolCall):
                continue
            try:
                if call.name not in tools:
                    raise ToolError(f"There is no tool named {call.name!r}.")
                arguments = parse_tool_arguments(call.arguments)
                result = await call_tool(self, tools[call.name], arguments, session_id, self._locks)
            except (ToolError, ValueError) as error:
                result = encode_json({"error": str(error)}).decode()
            step = result if isinstance(result, Step) else Step(result)
            outputs[call.call_id] = step.content
            rewards += [] if step.reward is None else [step.reward]
            done = done or step.done
        return Step(outputs=outputs, reward=sum(rewards) if rewards else None, done=done)

    def save_state(self, session_id: str, state: Any) -> None:
        """Store `state` until the session's episode ends."""
        self._episode(session_id).state = state

    def load_state(self, session_id: str) -> Any:
        """Return the state that `save_state` stored."""
        return self._episode(session_id).state

    @property
    def session_state(self) -> SessionStates:
        """The states of all sessions, for environments that use a mapping instead of the two methods above."""
        return SessionStates(self._episodes)

    def _episode(self, session_id: str) -> Episode:
        return _require(self._episodes.get(session_id))

    async def reset_endpoint(self, request: Request, body: EnvResetRequest) -> EnvResetResponse:
        """Begin an episode in this session, in place of the previous one."""
        session_id, metadata = request.session[SESSION_ID_KEY], self._metadata(body)
        if self._closer is None:
            return await self._begin(session_id, metadata)
        await self._closer.open(session_id)
        try:
            answer = await self._begin(session_id, metadata)
        except BaseException:  # also a cancellation
            self._closer.close_later(session_id)
            raise
        headers = {EPISODE_HEADER: Signals(close=True).header_value()}
        return WholeResponse(encode_model(answer), media_type="application/json", headers=headers)  # type: ignore[return-value]

    async def step_endpoint(self, request: Request, body: EnvStepRequest) -> EnvStepResponse:
        """Apply one turn to the session's episode."""
        if self._closer is not None:
            self._closer.touch(request.session[SESSION_ID_KEY])
        return await self._apply_turn(request.session[SESSION_ID_KEY], body.response, self._metadata(body))

    async def verify(  # type: ignore[override]  # the session comes with the request
        self, request: Request, body: GymnasiumVerifyRequest
    ) -> GymnasiumVerifyResponse:
        """End the episode and return the sum of its rewards: of the session's steps or, with `REPLAYS`, of a replay."""
        metadata = self._metadata(body)
        session_id = request.session[SESSION_ID_KEY]
        episode = self._episodes.pop(session_id) if self._closer is None else self._episodes.get(session_id)
        episode = await self._replay(body.response, metadata) if self.REPLAYS else _require(episode)
        verdict = {
            "reward": episode.reward,
            "steps": episode.steps,
            "terminated": episode.terminated,
            "truncated": not episode.terminated,
            "info": episode.info or {},
            "step_rewards": episode.rewards,
        }
        return GymnasiumVerifyResponse(**(body.model_dump() | verdict))

    async def _begin(self, session_id: str, metadata: Metadata) -> EnvResetResponse:
        """Call `reset` in a new episode; return its observation, and an opening if there are messages or tools."""
        self._episodes.put(session_id, Episode())
        start = await call_in_session(self._locks, session_id, partial(self.reset, metadata, session_id))
        observation, info = (start, {}) if isinstance(start, Opening) else start
        opening = observation if isinstance(observation, Opening) else Opening()
        visible = None if observation is None or observation is opening else as_content(observation)
        tools: list[Any] = self.tool_definitions() if opening.tools is None else opening.tools
        if not tools and not opening.messages:
            return EnvResetResponse(observation=visible, info=info)
        messages = [message.model_dump(mode="json", exclude_unset=True) for message in opening.messages]
        return EnvOpeningResponse(observation=visible, info=info, messages=messages, tools=tools)

    async def _apply_turn(self, session_id: str, action: NeMoGymResponse, metadata: Metadata) -> EnvStepResponse:
        """Call `step` and add its result to the episode; status 409 if the episode is over."""
        episode = self._episode(session_id)
        if episode.is_over:
            raise HTTPException(409, "the episode of this session is over")
        number = episode.steps + 1
        try:
            result = await call_in_session(self._locks, session_id, partial(self.step, action, metadata, session_id))
        except ValidationError as error:
            if error.title != Step.__name__:
                raise
            raise InvalidReward(f"step {number} returned an invalid Step: {error}", where=self.config.name) from None
        outputs: dict[str, Content] | None = None
        if isinstance(result, Step):
            outputs = self._checked_outputs(result, action, number)
            result = _as_tuple(result)
        observation, reward, terminated, truncated, info = result
        if not isinstance(reward, int | float) or not math.isfinite(reward):
            raise InvalidReward(f"step {number} returned the reward {reward}", where=self.config.name)
        episode.rewards.append(reward)
        episode.terminated, episode.truncated, episode.info = terminated, truncated, info
        fields: dict[str, Any] = {
            "observation": None if observation is None else as_content(observation),
            "reward": reward,
            "terminated": terminated,
            "truncated": truncated,
            "info": info,
        }
        return EnvStepResponse(**fields) if outputs is None else EnvStepOutputsResponse(**fields, outputs=outputs)

    def _checked_outputs(self, step: Step, action: NeMoGymResponse, number: int) -> dict[str, Content] | None:
        """Return the outputs of a step as the model sees them; each must belong to a call of the turn."""
        if step.outputs is None:
            return None
        calls = {item.call_id for item in action.output if isinstance(item, NeMoGymResponseFunctionToolCall)}
        unknown = step.outputs.keys() - calls
        if unknown:
            problem = f"step {number} returned an output for '{min(unknown)}', which is no call of the turn"
            raise EnvFailed(problem, where=self.config.name)
        return {call_id: as_content(output) for call_id, output in step.outputs.items()}

    async def _replay(self, response: NeMoGymResponse, metadata: Metadata) -> Episode:
        """Apply the turns of a response to a new episode and return that episode."""
        session_id = f"replay-{new_session_id()}"
        if self._closer is not None:
            await self._closer.open(session_id)
        try:
            await self._begin(session_id, metadata)
            for turn in split_turns(response):
                result = await self._apply_turn(session_id, turn, metadata)
                if result.terminated or result.truncated:
                    break
        finally:
            if self._closer is None:
                episode = self._episodes.pop(session_id)
            else:
                episode = self._episodes.get(session_id)
                self._closer.close_later(session_id)
        return _require(episode)

    def _close_hook(self) -> Callable[..., Any]:
        """Return the hook that closes an episode and then drops it, so that `close` can load its state."""

        async def close_episode(session_id: str) -> None:
            try:
                await call_in_session(self._locks, session_id, partial(self.close, session_id))
            finally:
                self._episodes.pop(session_id)

        return close_episode

    def _metadata(self, body: BaseModel) -> Metadata:
        """Return the row's fields, validated by `ROW`; reject invalid fields with status 422.

        Fields of `verifier_metadata` are fields of the row, which has priority; the mapping itself stays.
        """
        row = {name: value for name, value in body if name not in _NOT_METADATA}
        nested = row.get(_VERIFIER_METADATA)
        if isinstance(nested, Mapping) and _VERIFIER_METADATA not in self.ROW.model_fields:
            del row[_VERIFIER_METADATA]
            row, kept = {**nested, **row}, {_VERIFIER_METADATA: dict(nested)}
        else:
            kept = {}
        try:
            return self.ROW.model_validate(row).model_dump() | kept
        except ValidationError as problem:
            raise RequestValidationError(
                [{**error, "loc": ("body", *error["loc"])} for error in problem.errors(include_url=False)]
            ) from None


def _as_tuple(step: Step) -> StepTuple:
    """Return a step as gymnasium does; the episode is terminated if it is done and not truncated."""
    terminated = step.done and not step.truncated
    return step.content, step.reward or 0.0, terminated, step.truncated, step.info


def _require(episode: Episode | None) -> Episode:
    if episode is None:
        raise HTTPException(409, "this session has no episode: it was not reset, or it was idle for too long")
    return episode
