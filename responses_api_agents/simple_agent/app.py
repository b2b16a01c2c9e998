"""Simple agent: alternate model turns and tool calls until the model is done, then verify its answer."""

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Protocol

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import (
    BaseResponsesAPIAgentConfig,
    Body,
    SimpleResponsesAPIAgent,
    episode_signals,
    open_conversation,
)
from nemo_gym.errors import EnvFailed, InvalidReward, RequestCancelled, ServerUnreachable
from nemo_gym.keys import (
    CLOSE_PATH,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    STEP_REWARDS_KEY,
    UNCALLABLE_NAMES,
)
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import (
    ModelServerRef,
    ResourcesServerRef,
    get_response_json,
    get_response_model,
    raise_for_status,
)
from nemo_gym.transport import deadlines
from nemo_gym.transport.client_response import read_at_most, reply_header
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.transport.response_errors import ERROR_HEADER
from nemo_gym.wire.call_reply import parse_tool_arguments
from nemo_gym.wire.episode import Content, read_content

logger = logging.getLogger("nemo_gym.simple_agent")

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+")
MAX_SILENT_TURNS = 2
"""Turns in a row without a tool call or a message after which the episode ends."""
CLOSE_SECONDS = 10.0
"""Limit of the call that ends an unverified session."""

FAILURES_OF_TOOLS = frozenset(error.__name__ for error in (InvalidReward, RequestCancelled, ServerUnreachable))
"""Errors in the reply of a tool that fail the rollout: they are no answer to the model."""


@dataclass
class Session:
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


class Watcher(Protocol):
    """An observer of an episode, which cannot change it."""

    def model_turn(self, response: NeMoGymResponse) -> None: ...

    def tool_turn(self, call: NeMoGymResponseFunctionToolCall, output: NeMoGymFunctionCallOutput) -> None: ...

    def episode_finished(self, response: NeMoGymResponse) -> None: ...


def tool_arguments(call: NeMoGymResponseFunctionToolCall) -> dict[str, Any]:
    """Parse the arguments of a tool call.

    Raises:
        ValueError: the message is written for the model.
    """
    if call.name in UNCALLABLE_NAMES or not TOOL_NAME.fullmatch(call.name):
        raise ValueError(f"There is no tool named {call.name!r}.")
    return parse_tool_arguments(call.arguments)


def has_message(response: NeMoGymResponse) -> bool:
    return any(item.type == "message" and getattr(item, "role", None) == "assistant" for item in response.output)


def model_limit(response: NeMoGymResponse) -> str | None:
    """Return the limit that kept the model from answering (`context_length`); None if it answered.

    Such a response has no tokens, so it is not part of the episode.
    """
    return response.incomplete_details.limit_name if response.incomplete_details else None


def verify_request(body: BaseRunRequest, response: NeMoGymResponse) -> "SimpleAgentVerifyRequest":
    """Build the body of `/verify`: the fields of the run request, and the response."""
    if not all(isinstance(item, BaseModel) for item in response.output):  # built without validation, by a subclass
        response = NeMoGymResponse.model_validate(response.model_dump(exclude_unset=True))
    fields = {name: value for name, value in vars(body).items() if name in body.model_fields_set}
    return SimpleAgentVerifyRequest.model_validate({**fields, **(body.model_extra or {}), "response": response})


def episode_response(last: NeMoGymResponse, items: list[Any], usages: Sequence[Any]) -> NeMoGymResponse:
    """Build the response of a whole episode: all items, and the usage of all turns."""
    usage = NeMoGymResponseUsage.sum_from_list(list(usages)) if any(usages) else None
    return last.model_copy(update={"output": items, "usage": usage})


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Model turns per episode; unlimited when unset."""
    max_tool_output_bytes: int = Field(default=10_000_000, ge=1)
    """Longest tool output in bytes; the model gets an error instead of a longer one."""


class SimpleAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    FIELDS_ARE_VALIDATED: ClassVar[bool] = True  # by pydantic, when the request arrived


class SimpleAgentVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")

    FIELDS_ARE_VALIDATED: ClassVar[bool] = True  # by `verify_request`


class SimpleAgentVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie

    config: SimpleAgentConfig
    _closing: set[asyncio.Task[None]] = PrivateAttr(default_factory=set)

    def watchers(self) -> Sequence[Watcher]:
        """Return the observers of the next episode; override to record or display episodes."""
        return ()

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        """Seed the session, run one episode and verify it."""
        session = Session(dict(request.cookies))
        try:
            reply = await self._reply(self.config.resources_server.name, "/seed_session", body, session)
            session.opened = True
            body = await self.open_episode(reply, body, session)

            path = self.url_path_for_run("/v1/responses", body)
            response = await self.episode(body.responses_create_params, path, session)

            return await self.verify_episode(verify_request(body, response), session)
        finally:
            self.close_unverified(session)

    async def open_episode(self, reply: Any, body: SimpleAgentRunRequest, session: Session) -> SimpleAgentRunRequest:
        """Add the messages and tools of the environment's opening, if the answer of `/seed_session` has one."""
        signals = episode_signals(reply)
        session.needs_close = signals.close
        if not signals.opening:
            return body
        params = await open_conversation(reply, body.responses_create_params)
        return body.model_copy(update={"responses_create_params": params})

    def close_unverified(self, session: Session) -> None:
        """Let the environment free the resources of a session that ends without verification, in the background.

        After a verification the environment does so itself. The deadline of the rollout, which may have passed, does
        not apply.
        """
        if session.needs_close:
            session.needs_close = False
            task = asyncio.get_running_loop().create_task(self._post_close(session), context=Context())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _post_close(self, session: Session) -> None:
        try:
            with deadlines.time_limit(CLOSE_SECONDS):
                await self._reply(self.config.resources_server.name, CLOSE_PATH, {}, session)
        except Exception as error:  # the rollout has its outcome; the environment closes idle sessions
            logger.warning("%s: a session was not closed: %s", self.config.resources_server.name, error)

    async def verify_episode(self, body: SimpleAgentVerifyRequest, session: Session) -> SimpleAgentVerifyResponse:
        """Verify an episode, unless a limit ended it or verification is switched off."""
        if not session.has_step_rewards:
            return await self._verify_or_skip(body, session)
        rewards = {STEP_REWARDS_KEY: session.step_rewards}
        result = await self._verify_or_skip(body.model_copy(update=rewards), session)
        return result if STEP_REWARDS_KEY in (result.model_extra or {}) else result.model_copy(update=rewards)

    async def _verify_or_skip(self, body: SimpleAgentVerifyRequest, session: Session) -> SimpleAgentVerifyResponse:
        if session.limit:
            failure = {NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: {"which": session.limit}}
            return SimpleAgentVerifyResponse.model_validate({**dict(body), **failure, "reward": 0.0})
        if self.config.skip_verification:
            skipped = {"reward": self.config.skip_verification_reward, "verification_skipped": True}
            return SimpleAgentVerifyResponse.model_validate({**dict(body), **skipped})
        reply = await self._reply(self.config.resources_server.name, "/verify", body, session)
        session.needs_close = False  # the environment closes a session that it verified
        result = getattr(reply, "model", None)  # a server in this process returns the object itself
        if isinstance(result, BaseVerifyResponse):
            result = {**vars(result), **(result.model_extra or {})}
        else:
            result = await get_response_json(reply)
        try:
            return SimpleAgentVerifyResponse.model_validate(dict(result))
        except (TypeError, ValueError) as error:  # also pydantic's ValidationError
            problem = f"/verify answered with an invalid result: {error}"
            raise EnvFailed(problem, where=self.config.resources_server.name) from None

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Run one episode without seed and verification, and return the cookies of both servers with the reply."""
        session = Session(dict(request.cookies))
        path = self.url_path_for_request("/v1/responses", request)
        final = await self.episode(body, path, session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def episode(
        self, params: NeMoGymResponseCreateParamsNonStreaming, model_path: str, session: Session
    ) -> NeMoGymResponse:
        """Alternate model turns and tool calls until the model is done, and update `session`."""
        prompt = params.input
        if isinstance(prompt, str):
            prompt = [NeMoGymEasyInputMessage(role="user", content=prompt)]
        items: list[Any] = []
        usages: list[Any] = []
        silent = 0
        watchers = self.watchers()

        for turn in count(1):
            body = params.model_copy(update={"input": [*prompt, *items]})
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            session.limit = model_limit(response)
            if session.limit:
                break
            items += response.output
            usages.append(response.usage)
            session.step_rewards.append(0.0)
            for watcher in watchers:
                watcher.model_turn(response)

            calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            silent = 0 if calls else silent + 1
            if response.incomplete_details or (not calls and (has_message(response) or silent == MAX_SILENT_TURNS)):
                break
            session.limit = deadlines.reached_limit(steps=turn, usages=usages)
            if session.limit:
                break
            outputs = await self._run_tools(calls, session)
            items += outputs
            for watcher in watchers:
                for call, output in zip(calls, outputs, strict=True):
                    watcher.tool_turn(call, output)
            if session.done or turn == self.config.max_steps:
                break

        final = episode_response(response, items, usages)
        for watcher in watchers:
            watcher.episode_finished(final)
        return final

    async def _run_tools(
        self, calls: Sequence[NeMoGymResponseFunctionToolCall], session: Session
    ) -> list[NeMoGymFunctionCallOutput]:
        """Run all calls of one turn concurrently; return their outputs in the order of the calls."""
        outputs: list[NeMoGymFunctionCallOutput] = []
        # Concurrent calls would each open a session, so open it with the first; a single call needs no task group.
        while len(outputs) < len(calls) and (not session.opened or len(calls) == 1):
            outputs.append(await self._tool(calls[len(outputs)], session))
        if len(outputs) == len(calls):
            return outputs
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._tool(call, session)) for call in calls[len(outputs) :]]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [*outputs, *(task.result() for task in running)]

    async def _tool(self, call: NeMoGymResponseFunctionToolCall, session: Session) -> NeMoGymFunctionCallOutput:
        """Run one tool call; the output is the tool's reply or an error for the model."""
        output: Content
        try:
            arguments = tool_arguments(call)
        except ValueError as problem:
            output = json.dumps({"error": f"The call cannot be run: {problem}"})
        else:
            reply = await self.server_client.post(
                server_name=self.config.resources_server.name,
                url_path=f"/{call.name}",
                json=arguments,
                cookies=session.cookies.copy(),
            )
            session.remember(reply)
            session.opened = True
            output = await self._tool_output(reply, call.name, session)
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=output)

    async def _tool_output(self, reply: Any, tool: str, session: Session) -> Content:
        """Read the reply of a tool, which may be a step, or return an error for the model if it is too long."""
        signals = episode_signals(reply)
        if reply_header(reply, ERROR_HEADER) in FAILURES_OF_TOOLS:
            await raise_for_status(reply)
        session.done = session.done or signals.done
        if signals.reward is not None:
            session.add_reward(signals.reward)
        limit, where = self.config.max_tool_output_bytes, f"{self.config.resources_server.name} /{tool}"
        try:
            content = await read_at_most(reply, limit, callee=where)
        except ResponseTooLong as problem:
            logger.warning("%s; the model gets an error instead (max_tool_output_bytes)", problem)
            return json.dumps({"error": f"The tool's answer is longer than {limit:,} bytes. Ask for less."})
        try:
            return read_content(content, signals)
        except ValueError as problem:
            raise EnvFailed(f"/{tool}: {problem}", where=self.config.resources_server.name) from None

    async def _reply(self, server: str, path: str, body: Any, session: Session) -> Any:
        """Send a request within the session and return the successful reply."""
        reply = await self.server_client.post(
            server_name=server, url_path=path, json=body, cookies=session.cookies.copy()
        )
        await raise_for_status(reply)
        session.remember(reply)
        return reply

    async def _post(self, server: str, path: str, body: Any, session: Session) -> Mapping[str, Any]:
        """Send a request within the session and return the JSON object of the reply."""
        payload: Mapping[str, Any] = await get_response_json(await self._reply(server, path, body, session))
        return payload

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """Forward to the resources server, which knows its fields; compute standard metrics without verification."""
        if self.config.skip_verification:
            return await super().aggregate_metrics(body)
        metrics = await self._post(self.config.resources_server.name, "/aggregate_metrics", body, Session({}))
        return AggregateMetrics.model_validate(metrics)


if __name__ == "__main__":
    SimpleAgent.run_webserver()
