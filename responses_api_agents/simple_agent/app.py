"""Simple agent: alternate model turns and tool calls until the model is done, then verify its answer."""

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from itertools import count
from typing import Any

from fastapi import Request, Response
from pydantic import Field

from nemo_gym.authoring.episode_agent import (
    EpisodeAgent,
    EpisodeAgentConfig,
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
    episode_response,
    model_limit,
    turn_counts,
    verify_request,
)
from nemo_gym.base_responses_api_agent import Body, episode_signals, open_conversation
from nemo_gym.errors import EnvFailed, InvalidReward, RequestCancelled, ServerUnreachable
from nemo_gym.keys import UNCALLABLE_NAMES
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.server_utils import get_response_model, raise_for_status
from nemo_gym.transport import deadlines
from nemo_gym.transport.client_response import read_at_most, reply_header
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.transport.response_errors import ERROR_HEADER, RAISED_AT_HEADER
from nemo_gym.wire.base import replace_fields
from nemo_gym.wire.call_reply import parse_tool_arguments
from nemo_gym.wire.episode import Content, read_content

logger = logging.getLogger("nemo_gym.simple_agent")

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+")
MAX_SILENT_TURNS = 2
"""Turns in a row without a tool call or a message after which the episode ends."""

NO_ROUTE = b'{"detail":"Not Found"}'
"""Answer of a server without a route for the path, or of a tool that raises `HTTPException(404)`."""

FAILURES_OF_TOOLS = frozenset(error.__name__ for error in (InvalidReward, RequestCancelled, ServerUnreachable))
"""Errors in the reply of a tool that fail the rollout: they are no answer to the model."""


def tool_arguments(call: NeMoGymResponseFunctionToolCall) -> dict[str, Any]:
    """Parse the arguments of a tool call.

    Raises:
        ValueError: the message is written for the model.
    """
    if call.name in UNCALLABLE_NAMES or not TOOL_NAME.fullmatch(call.name):
        raise ValueError(f"There is no tool named {call.name!r}.")
    return parse_tool_arguments(call.arguments)


def offered_tools(params: NeMoGymResponseCreateParamsNonStreaming) -> list[str]:
    """Return the names of the functions that a request offers."""
    tools = [tool if isinstance(tool, dict) else vars(tool) for tool in params.tools or ()]
    return [tool["name"] for tool in tools if tool.get("name")]


def unknown_tool(name: str, offered: Sequence[str]) -> str:
    """Return the output of a call of a tool that does not exist, so that the model can choose another one."""
    listed = f" Tools: {', '.join(offered)}." if offered else ""
    return json.dumps({"error": f"There is no tool named {name!r}.{listed}"})


def has_message(response: NeMoGymResponse) -> bool:
    return any(item.type == "message" and getattr(item, "role", None) == "assistant" for item in response.output)


class SimpleAgentConfig(EpisodeAgentConfig):
    max_tool_output_bytes: int = Field(default=10_000_000, ge=1)
    """Longest tool output in bytes; the model gets an error instead of a longer one."""


SimpleAgentRunRequest, SimpleAgentVerifyRequest, SimpleAgentVerifyResponse = (
    EpisodeRunRequest,
    EpisodeVerifyRequest,
    EpisodeVerifyResponse,
)
"""The names that agents written by others import."""


class SimpleAgent(EpisodeAgent):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie

    config: SimpleAgentConfig

    async def run(self, request: Request, body: EpisodeRunRequest) -> EpisodeVerifyResponse:
        """Seed the session, run one episode and verify it."""
        session = EpisodeSession(dict(request.cookies))
        try:
            reply = await self._reply(self.config.resources_server.name, "/seed_session", body, session)
            session.opened = True
            body = await self.open_episode(reply, body, session)

            path = self.url_path_for_run("/v1/responses", body)
            response = await self.episode(body.responses_create_params, path, session)

            return await self.verify_with_turns(verify_request(body, response), session)
        finally:
            self.close_unverified(session)

    async def open_episode(self, reply: Any, body: EpisodeRunRequest, session: EpisodeSession) -> EpisodeRunRequest:
        """Add the messages and tools of the environment's opening, if the answer of `/seed_session` has one."""
        signals = episode_signals(reply)
        session.needs_close = signals.close
        if not signals.opening:
            return body
        params = await open_conversation(reply, body.responses_create_params)
        return body.model_copy(update={"responses_create_params": params})

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Run one episode without seed and verification, and return the cookies of both servers with the reply."""
        session = EpisodeSession(dict(request.cookies))
        path = self.url_path_for_request("/v1/responses", request)
        final = await self.episode(body, path, session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def episode(
        self, params: NeMoGymResponseCreateParamsNonStreaming, model_path: str, session: EpisodeSession
    ) -> NeMoGymResponse:
        """Alternate model turns and tool calls until the model is done, and update `session`."""
        prompt = params.input
        if isinstance(prompt, str):
            prompt = [NeMoGymEasyInputMessage(role="user", content=prompt)]
        session.tool_names = offered_tools(params)
        items: list[Any] = []
        usages: list[Any] = []
        silent = 0
        watchers = self.watchers()

        for turn in count(1):
            body = replace_fields(params, input=[*prompt, *items])
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            session.limit = model_limit(response)
            if session.limit:
                break
            items += response.output
            usages.append(response.usage)
            session.turns.append(turn_counts(response))
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
        self, calls: Sequence[NeMoGymResponseFunctionToolCall], session: EpisodeSession
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

    async def _tool(self, call: NeMoGymResponseFunctionToolCall, session: EpisodeSession) -> NeMoGymFunctionCallOutput:
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

    async def _tool_output(self, reply: Any, tool: str, session: EpisodeSession) -> Content:
        """Read the reply of a tool, which may be a step, or return an error for the model if it is too long."""
        signals = episode_signals(reply)
        error = reply_header(reply, ERROR_HEADER)
        if error is not None:
            if error in FAILURES_OF_TOOLS or self.fails_on_tool_errors:
                await raise_for_status(reply)
            at = reply_header(reply, RAISED_AT_HEADER) or ""
            session.tool_errors.append({"tool": tool, "error": error, "at": at})
        session.done = session.done or signals.done
        if signals.reward is not None:
            session.add_reward(signals.reward)
        limit, where = self.config.max_tool_output_bytes, f"{self.config.resources_server.name} /{tool}"
        try:
            content = await read_at_most(reply, limit, callee=where)
        except ResponseTooLong as problem:
            logger.warning("%s; the model gets an error instead (max_tool_output_bytes)", problem)
            return json.dumps({"error": f"The tool's answer is longer than {limit:,} bytes. Ask for less."})
        if reply.status == HTTPStatus.NOT_FOUND and content == NO_ROUTE and tool not in session.tool_names:
            return unknown_tool(tool, session.tool_names)
        try:
            return read_content(content, signals)
        except ValueError as problem:
            raise EnvFailed(f"/{tool}: {problem}", where=self.config.resources_server.name) from None


if __name__ == "__main__":
    SimpleAgent.run_webserver()
