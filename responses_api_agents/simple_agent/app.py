"""Simple agent: alternate model turns and tool calls until the model is done, then verify its answer."""

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Protocol

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import (
    RESERVED_MCP_TOOL_NAMES,
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.errors import EnvFailed
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY
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
from nemo_gym.transport.client_response import read_at_most
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.wire.call_reply import parse_tool_arguments

logger = logging.getLogger("nemo_gym.simple_agent")

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+")
MAX_SILENT_TURNS = 2
"""Turns in a row without a tool call or a message after which the episode ends."""


@dataclass
class Session:
    """The state of an episode between calls: the cookies of both servers, whose names differ."""

    cookies: dict[str, str]
    opened: bool = False
    """The environment has replied once, so its cookie is known."""
    limit: str | None = None
    """The limit of the rollout that ended the episode before the model was done."""

    def remember(self, reply: Any) -> None:
        """Store the cookies of a reply."""
        values = getattr(reply, "cookie_values", None)  # set by a server in this process
        if not isinstance(values, dict):
            values = {name: getattr(cookie, "value", cookie) for name, cookie in reply.cookies.items()}
        self.cookies.update(values)


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
    if call.name in RESERVED_MCP_TOOL_NAMES or not TOOL_NAME.fullmatch(call.name):
        raise ValueError(f"There is no tool named {call.name!r}.")
    return parse_tool_arguments(call.arguments)


def has_message(response: NeMoGymResponse) -> bool:
    return any(item.type == "message" and getattr(item, "role", None) == "assistant" for item in response.output)


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

    def watchers(self) -> Sequence[Watcher]:
        """Return the observers of the next episode; override to record or display episodes."""
        return ()

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        """Seed the session, run one episode and verify it."""
        session = Session(dict(request.cookies))
        await self._reply(self.config.resources_server.name, "/seed_session", body, session)
        session.opened = True

        path = self.url_path_for_run("/v1/responses", body)
        response = await self.episode(body.responses_create_params, path, session)

        return await self.verify_episode(verify_request(body, response), session)

    async def verify_episode(self, body: SimpleAgentVerifyRequest, session: Session) -> SimpleAgentVerifyResponse:
        """Verify an episode, unless a limit ended it or verification is switched off."""
        if session.limit:
            failure = {NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: {"which": session.limit}}
            return SimpleAgentVerifyResponse.model_validate({**dict(body), **failure, "reward": 0.0})
        if self.config.skip_verification:
            skipped = {"reward": self.config.skip_verification_reward, "verification_skipped": True}
            return SimpleAgentVerifyResponse.model_validate({**dict(body), **skipped})
        reply = await self._reply(self.config.resources_server.name, "/verify", body, session)
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
            items += response.output
            usages.append(response.usage)
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
            if turn == self.config.max_steps:
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
        try:
            arguments = tool_arguments(call)
        except ValueError as problem:
            text = json.dumps({"error": f"The call cannot be run: {problem}"})
        else:
            reply = await self.server_client.post(
                server_name=self.config.resources_server.name,
                url_path=f"/{call.name}",
                json=arguments,
                cookies=session.cookies.copy(),
            )
            session.remember(reply)
            session.opened = True
            text = await self._tool_text(reply, call.name)
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=text)

    async def _tool_text(self, reply: Any, tool: str) -> str:
        """Read the reply of a tool, or return an error for the model if it is too long."""
        limit, where = self.config.max_tool_output_bytes, f"{self.config.resources_server.name} /{tool}"
        try:
            return (await read_at_most(reply, limit, callee=where)).decode(errors="replace")
        except ResponseTooLong as problem:
            logger.warning("%s; the model gets an error instead (max_tool_output_bytes)", problem)
            return json.dumps({"error": f"The tool's answer is longer than {limit:,} bytes. Ask for less."})

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
