"""The parts of an agent that plays episodes with a model server and a resources server: session, end and verification.

`simple_agent` and `gymnasium_agent` add the loop.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.authoring.external_mcp import McpTools
from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.errors import EnvFailed
from nemo_gym.keys import (
    CLOSE_PATH,
    NG_AGENT_OBSERVATIONS_KEY,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_TOOL_ERRORS_KEY,
    NG_TURNS_KEY,
    STEP_REWARDS_KEY,
)
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import (
    ModelServerRef,
    ResourcesServerRef,
    get_first_server_config_dict,
    get_response_json,
    get_response_model,
    raise_for_status,
)
from nemo_gym.transport import deadlines
from nemo_gym.transport.client_response import is_ok
from nemo_gym.wire.base import TOKEN_METADATA_FIELDS, replace_fields
from nemo_gym.wire.observations import (
    AgentInvocation,
    AgentObservationBundle,
    ContextCompactionObservation,
    ObservedStatus,
)
from nemo_gym.wire.run_seed_verify import verify_fields

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Limit of the call that ends an unverified session."""


@dataclass
class EpisodeSession:
    """The state of an episode between calls: the cookies of both servers, whose names differ."""

    cookies: dict[str, str]
    opened: bool = False
    """The environment has replied once, so its cookie is known."""
    limit: str | None = None
    """The limit of the rollout that ended the episode before the model was done."""
    done: bool = False
    """The environment ended the episode."""
    needs_close: bool = False
    """The environment keeps resources for this session, and has not verified it yet."""
    step_rewards: list[float] = field(default_factory=list)
    """The reward of each model turn: the sum of the rewards of its tool calls."""
    has_step_rewards: bool = False
    """The environment gave at least one reward for a step."""
    tool_errors: list[dict[str, str]] = field(default_factory=list)
    """Exceptions of tools that the model saw as output."""
    turns: list[list[int]] = field(default_factory=list)
    """Items and tokens of each model turn (`keys.NG_TURNS_KEY`)."""
    tool_names: list[str] = field(default_factory=list)
    """Names of the tools that the model was offered."""
    spent: list[Any] = field(default_factory=list)
    """The usage of every model call of the rollout; sub-agents share this list."""
    invocation_id: str | None = None
    """Names the run of an agent that the next model calls belong to; sent with them, so that captures know it."""
    observations: list[AgentInvocation | ContextCompactionObservation] = field(default_factory=list)
    """Runs of sub-agents and segments of the context, for the record of the rollout."""
    max_steps: int | None = None
    """Model turns of this episode, instead of the number in the configuration."""
    model_server: str | None = None
    """The model server of this episode, instead of the one in the configuration."""
    external: McpTools | None = None
    """The tools of external MCP servers, while they are connected."""
    state: Any = None
    """Values that a subclass of an agent keeps for the episode."""

    def remember(self, reply: Any) -> None:
        """Store the cookies of a reply."""
        values = getattr(reply, "cookie_values", None)  # set by a server in this process
        if not isinstance(values, dict):
            values = {name: getattr(cookie, "value", cookie) for name, cookie in reply.cookies.items()}
        self.cookies.update(values)

    def add_reward(self, reward: float) -> None:
        """Add a reward to the current turn."""
        self.has_step_rewards = True
        self.step_rewards = self.step_rewards or [0.0]
        self.step_rewards[-1] += reward


def turn_counts(response: NeMoGymResponse) -> list[int]:
    """Return the number of items of a model turn, then its input, cached, output and reasoning tokens, if reported."""
    usage = response.usage
    if usage is None:
        return [len(response.output)]
    read, written = usage.input_tokens_details, usage.output_tokens_details
    cached = read.cached_tokens if read is not None else None
    reasoning = written.reasoning_tokens if written is not None else None
    return [len(response.output), usage.input_tokens, cached or 0, usage.output_tokens, reasoning or 0]


class Watcher(Protocol):
    """An observer of an episode, which cannot change it."""

    def model_turn(self, response: NeMoGymResponse) -> None: ...

    def tool_turn(self, call: NeMoGymResponseFunctionToolCall, output: NeMoGymFunctionCallOutput) -> None: ...

    def episode_finished(self, response: NeMoGymResponse) -> None: ...


def model_limit(response: NeMoGymResponse) -> str | None:
    """Return the limit that kept the model from answering (`context_length`); None if it answered.

    Such a response has no tokens, so it is not part of the episode.
    """
    return response.incomplete_details.limit_name if response.incomplete_details else None


def verify_request(body: BaseRunRequest, response: NeMoGymResponse) -> "EpisodeVerifyRequest":
    """Build the body of `/verify`: the fields of the run request, and the response."""
    if not all(isinstance(item, BaseModel) for item in response.output):  # built without validation, by a subclass
        response = NeMoGymResponse.model_validate(response.model_dump(exclude_unset=True))
    fields = {name: value for name, value in vars(body).items() if name in body.model_fields_set}
    return EpisodeVerifyRequest.model_validate({**fields, **(body.model_extra or {}), "response": response})


def episode_response(last: NeMoGymResponse, items: list[Any], usages: Sequence[Any]) -> NeMoGymResponse:
    """Build the response of a whole episode: all items, and the usage of all turns."""
    if len(usages) == 1 and usages[0] is last.usage:
        return last.model_copy(update={"output": items})
    usage = NeMoGymResponseUsage.sum_from_list(list(usages)) if any(usages) else None
    return replace_fields(last, output=items, usage=usage)


def text_message(role: Literal["user", "assistant", "system", "developer"], text: Any) -> NeMoGymEasyInputMessage:
    """Return a message; it has a type, which items of a response need."""
    return NeMoGymEasyInputMessage(type="message", role=role, content=text)


def prompt_items(prompt: str | Sequence[Any]) -> list[Any]:
    """Return the input of a request as items."""
    return [text_message("user", prompt)] if isinstance(prompt, str) else list(prompt)


def recorded_items(items: Sequence[Any]) -> list[Any]:
    """Return items as JSON objects without token fields, which are in the response or in a token trace."""
    plain = [
        item.model_dump(mode="json", exclude_unset=True) if isinstance(item, BaseModel) else item for item in items
    ]
    return [{name: value for name, value in item.items() if name not in TOKEN_METADATA_FIELDS} for item in plain]


def record_invocation(
    session: EpisodeSession,
    invocation_id: str,
    items: Sequence[Any],
    *,
    parent: str | None = None,
    call_id: str | None = None,
    status: ObservedStatus = "completed",
) -> None:
    """Add one run of an agent, with its conversation, to the record of the rollout."""
    invocation = AgentInvocation(
        invocation_id=invocation_id,
        parent_invocation_id=parent,
        spawned_by_tool_call_id=call_id,
        status=status,
        conversation=recorded_items(items),
    )
    session.observations.append(invocation)


def has_invocation(session: EpisodeSession, invocation_id: str) -> bool:
    """Return whether a run of an agent is in the record of the rollout."""
    return any(
        isinstance(record, AgentInvocation) and record.invocation_id == invocation_id for record in session.observations
    )


class EpisodeAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Model turns per episode; unlimited when unset."""


class EpisodeRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    FIELDS_ARE_VALIDATED: ClassVar[bool] = True  # by pydantic, when the request arrived


class EpisodeVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")

    FIELDS_ARE_VALIDATED: ClassVar[bool] = True  # by `verify_request`


class EpisodeVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class EpisodeAgent(SimpleResponsesAPIAgent):
    """An agent whose episodes have a session at its resources server, which verifies them."""

    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie

    config: EpisodeAgentConfig
    _closing: set[asyncio.Task[None]] = PrivateAttr(default_factory=set)

    def watchers(self) -> Sequence[Watcher]:
        """Return the observers of the next episode; override to record or display episodes."""
        return ()

    def close_unverified(self, session: EpisodeSession) -> None:
        """Let the environment free the resources of a session that ends without verification, in the background.

        After a verification the environment does so itself. The deadline of the rollout, which may have passed, does
        not apply.
        """
        if session.needs_close:
            session.needs_close = False
            task = asyncio.get_running_loop().create_task(self._post_close(session), context=Context())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _post_close(self, session: EpisodeSession) -> None:
        try:
            with deadlines.time_limit(CLOSE_SECONDS):
                await self._reply(self.config.resources_server.name, CLOSE_PATH, {}, session)
        except Exception as error:  # the rollout has its outcome; the environment closes idle sessions
            logger.warning("%s: a session was not closed: %s", self.config.resources_server.name, error)

    async def verify_episode(self, body: EpisodeVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        """Verify an episode, unless a limit ended it or verification is switched off."""
        if session.tool_errors:
            errors = {NG_TOOL_ERRORS_KEY: session.tool_errors}
            session.tool_errors = []
            return (await self.verify_episode(body, session)).model_copy(update=errors)
        if not session.has_step_rewards:
            return await self._verify_or_skip(body, session)
        rewards = {STEP_REWARDS_KEY: session.step_rewards}
        result = await self._verify_or_skip(body.model_copy(update=rewards), session)
        return result if STEP_REWARDS_KEY in (result.model_extra or {}) else result.model_copy(update=rewards)

    async def verify_with_turns(self, body: EpisodeVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        """Verify an episode as `verify_episode` does, and add the items and tokens of its turns."""
        result = await self.verify_episode(body, session)
        if result.__pydantic_extra__ is not None:
            result.__pydantic_extra__[NG_TURNS_KEY] = session.turns
            if session.observations:
                bundle = AgentObservationBundle(source=self.config.name, records=list(session.observations))
                result.__pydantic_extra__[NG_AGENT_OBSERVATIONS_KEY] = bundle.model_dump(mode="json", exclude_none=True)
        return result

    async def _verify_or_skip(self, body: EpisodeVerifyRequest, session: EpisodeSession) -> EpisodeVerifyResponse:
        if session.limit:
            failure = {NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: {"which": session.limit}}
            return EpisodeVerifyResponse.model_validate({**dict(body), **failure, "reward": 0.0})
        if self.config.skip_verification:
            skipped = {"reward": self.config.skip_verification_reward, "verification_skipped": True}
            return EpisodeVerifyResponse.model_validate({**dict(body), **skipped})
        reply = await self._reply(self.config.resources_server.name, "/verify", body, session)
        session.needs_close = False  # the environment closes a session that it verified
        result = getattr(reply, "model", None)  # a server in this process returns the object itself
        if isinstance(result, BaseVerifyResponse):
            result = verify_fields(result)
        else:
            result = await get_response_json(reply)
        try:
            return EpisodeVerifyResponse.model_validate(dict(result))
        except (TypeError, ValueError) as error:  # also pydantic's ValidationError
            problem = f"/verify answered with an invalid result: {error}"
            raise EnvFailed(problem, where=self.config.resources_server.name) from None

    @cached_property
    def fails_on_tool_errors(self) -> bool:
        """The resources server declares `tool_errors: fail`."""
        config = self.server_client.global_config_dict
        with suppress(KeyError, TypeError, AttributeError):  # a server that this configuration does not describe
            block = get_first_server_config_dict(config, self.config.resources_server.name)
            return bool(block.get("tool_errors") == "fail")
        return False

    async def ask_model(
        self, path: str, body: Any, session: EpisodeSession, server: str | None = None
    ) -> NeMoGymResponse:
        """Send a request to the model, or to another model server, and return its response.

        A named invocation is sent in the header `x-session-id`, by which captured calls are joined to it.
        """
        server = server or session.model_server or self.config.model_server.name
        headers = {"x-session-id": session.invocation_id} if session.invocation_id else None
        reply = await self._reply(server, path, body, session, headers)
        response: NeMoGymResponse = await get_response_model(reply, NeMoGymResponse)
        return response

    async def _reply(
        self, server: str, path: str, body: Any, session: EpisodeSession, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request within the session and return the successful reply."""
        options = {"headers": headers} if headers else {}
        reply = await self.server_client.post(
            server_name=server, url_path=path, json=body, cookies=session.cookies.copy(), **options
        )
        if not is_ok(reply):
            await raise_for_status(reply)
        session.remember(reply)
        return reply

    async def _post(self, server: str, path: str, body: Any, session: EpisodeSession) -> Mapping[str, Any]:
        """Send a request within the session and return the JSON object of the reply."""
        payload: Mapping[str, Any] = await get_response_json(await self._reply(server, path, body, session))
        return payload

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Forward to the resources server, which knows its fields; compute standard metrics without verification."""
        if self.config.skip_verification:
            return await super().aggregate_metrics(body)
        metrics = await self._post(self.config.resources_server.name, "/aggregate_metrics", body, EpisodeSession({}))
        return AggregateMetrics.model_validate(metrics)
