"""Base class of agents with tools: alternate model turns and tool calls until the model is done, then verify.

`simple_agent` is this loop. Others override what the model sees (`next_turn`), how tools are called (`call_tool`),
what follows a message (`answer_message`) or the whole rollout (`run`).
"""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from pydantic import Field

from nemo_gym.authoring.compaction import CompactionConfig, ContextWindow, Trigger
from nemo_gym.authoring.episode_agent import (
    EpisodeAgent,
    EpisodeAgentConfig,
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyResponse,
    Watcher,
    episode_response,
    model_limit,
    prompt_items,
    turn_counts,
    verify_request,
)
from nemo_gym.authoring.external_mcp import McpServer, McpTools
from nemo_gym.base_responses_api_agent import Body, episode_signals, open_conversation
from nemo_gym.errors import EnvFailed, InvalidReward, RequestCancelled, ServerUnreachable
from nemo_gym.keys import UNCALLABLE_NAMES
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import raise_for_status
from nemo_gym.transport import deadlines
from nemo_gym.transport.client_response import read_at_most, reply_header
from nemo_gym.transport.large_bodies import ResponseTooLong
from nemo_gym.transport.response_errors import ERROR_HEADER, RAISED_AT_HEADER
from nemo_gym.wire.base import replace_fields
from nemo_gym.wire.call_reply import parse_tool_arguments
from nemo_gym.wire.episode import Content, read_content

logger = logging.getLogger("nemo_gym.simple_agent")

Params = NeMoGymResponseCreateParamsNonStreaming
ROOT = "root"
"""The id of the first invocation of a rollout that records its invocations."""

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
    tools: list[Any] = [tool if isinstance(tool, dict) else vars(tool) for tool in params.tools or ()]
    return [tool["name"] for tool in tools if tool.get("name")]


def unknown_tool(name: str, offered: Sequence[str]) -> str:
    """Return the output of a call of a tool that does not exist, so that the model can choose another one."""
    listed = f" Tools: {', '.join(offered)}." if offered else ""
    return json.dumps({"error": f"There is no tool named {name!r}.{listed}"})


def has_message(response: NeMoGymResponse) -> bool:
    return any(item.type == "message" and getattr(item, "role", None) == "assistant" for item in response.output)


class ToolAgentConfig(EpisodeAgentConfig):
    max_tool_output_bytes: int = Field(default=10_000_000, ge=1)
    """Longest tool output in bytes; the model gets an error instead of a longer one."""
    compaction: CompactionConfig | None = None
    """Continue with a summary when the context is full; by default, a full context is a limit."""
    mcp_servers: dict[str, McpServer] = {}
    """External MCP servers by name. The model sees their tools as `<name>__<tool>`."""


@dataclass
class ToolEpisode:
    """The state of one episode between model turns."""

    params: Params
    model_path: str
    session: EpisodeSession
    window: ContextWindow
    usages: list[Any] = field(default_factory=list)
    """The usage of each model call of this agent; `session.spent` also has those of sub-agents."""
    silent_turns: int = 0
    """Turns in a row without a tool call."""
    is_finished: bool = False

    def add_turn(self, response: NeMoGymResponse) -> None:
        """Add the items and tokens of a model turn."""
        self.window.items += response.output
        self.add_usage(response)
        self.session.turns.append(turn_counts(response))
        self.session.step_rewards.append(0.0)

    def add_usage(self, response: NeMoGymResponse) -> None:
        self.usages.append(response.usage)
        self.session.spent.append(response.usage)


class ToolAgent(EpisodeAgent):
    """An agent that calls the tools of its environment and of external MCP servers."""

    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie

    config: ToolAgentConfig

    async def run(  # type: ignore[override]  # the session comes with the request
        self, request: Request, body: EpisodeRunRequest
    ) -> EpisodeVerifyResponse:
        """Seed the session, run one episode and verify it."""
        session = EpisodeSession(dict(request.cookies))
        try:
            reply = await self._reply(self.config.resources_server.name, "/seed_session", body, session)
            session.opened = True
            body = await self.open_episode(reply, body, session)

            path = self.url_path_for_run("/v1/responses", body)
            async with self.external_tools(body.responses_create_params, session) as params:
                response = await self.episode(params, path, session)
            if session.external is not None:
                body = body.model_copy(update={"responses_create_params": params})

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

    async def responses(  # type: ignore[override]  # the session comes with the request
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """Run one episode without seed and verification, and return the cookies of both servers with the reply."""
        session = EpisodeSession(dict(request.cookies))
        path = self.url_path_for_request("/v1/responses", request)
        async with self.external_tools(body, session) as params:
            final = await self.episode(params, path, session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    @asynccontextmanager
    async def external_tools(self, params: Params, session: EpisodeSession) -> AsyncIterator[Params]:
        """Connect the external MCP servers for one episode; yield the parameters with their tools."""
        if not self.config.mcp_servers:
            yield params
            return
        async with McpTools(self.config.mcp_servers) as tools:
            session.external = tools
            yield params.model_copy(update={"tools": [*(params.tools or ()), *tools.offered]})

    async def episode(
        self, params: NeMoGymResponseCreateParamsNonStreaming, model_path: str, session: EpisodeSession
    ) -> NeMoGymResponse:
        """Alternate model turns and tool calls until the model is done, and update `session`."""
        session.tool_names = offered_tools(params)
        if self.config.compaction is not None and session.invocation_id is None:
            session.invocation_id = ROOT
        episode = ToolEpisode(
            params, model_path, session, ContextWindow(prompt_items(params.input), name=session.invocation_id or "")
        )
        watchers = self.watchers()
        max_steps = session.max_steps or self.config.max_steps

        while True:
            response = await self.next_turn(params, episode.window.visible(), model_path, session)
            session.limit = model_limit(response)
            trigger: Trigger | None = "context_length" if session.limit else None
            if trigger is None:
                episode.add_turn(response)
                for watcher in watchers:
                    watcher.model_turn(response)
                await self._act(episode, response, watchers)
                is_last = max_steps is not None and len(session.turns) >= max_steps  # a compaction adds a turn, too
                if episode.is_finished or session.limit or session.done or is_last:
                    break
                trigger = "threshold" if self._is_full(response.usage) else None
            if trigger and not await self._compact(trigger, episode):
                session.limit = session.limit or "context_length"
                break

        if episode.window.compactions:
            episode.window.record_segment(session)
        final = episode_response(response, episode.window.items, episode.usages)
        for watcher in watchers:
            watcher.episode_finished(final)
        return final

    async def next_turn(
        self, params: Params, items: Sequence[Any], model_path: str, session: EpisodeSession
    ) -> NeMoGymResponse:
        """Send the conversation to the model and return its response; override to change what the model sees."""
        return await self.ask_model(model_path, replace_fields(params, input=list(items)), session)

    async def answer_message(self, items: Sequence[Any], session: EpisodeSession) -> list[Any]:  # noqa: ARG002
        """Return items that continue a conversation whose last item is a message of the model; empty to end it.

        `items` is the whole conversation, without the requests and summaries of compactions.
        """
        return []

    async def _act(self, episode: ToolEpisode, response: NeMoGymResponse, watchers: Sequence[Watcher]) -> None:
        """Run the tool calls of a turn, or answer its message; finish the episode if there is nothing to do."""
        session, window = episode.session, episode.window
        calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
        episode.silent_turns = 0 if calls else episode.silent_turns + 1
        if response.incomplete_details:
            episode.is_finished = True
            return
        if not calls and (has_message(response) or episode.silent_turns == MAX_SILENT_TURNS):
            answer = await self.answer_message(window.conversation(), session) if has_message(response) else []
            window.items += answer
            episode.silent_turns = 0
            episode.is_finished = not answer
            if not answer:
                return
        session.limit = deadlines.reached_limit(steps=len(session.turns), usages=session.spent)
        if session.limit:
            return
        outputs = await self._run_tools(calls, session)
        window.items += outputs
        for watcher in watchers:
            for call, output in zip(calls, outputs, strict=True):
                watcher.tool_turn(call, output)

    def _is_full(self, usage: NeMoGymResponseUsage | None) -> bool:
        """Return whether the next turn needs a compacted context."""
        compaction = self.config.compaction
        return compaction is not None and usage is not None and usage.total_tokens >= compaction.at_tokens

    async def _compact(self, trigger: Trigger, episode: ToolEpisode) -> bool:
        """Compact the context if the configuration allows it; return whether the episode can continue."""
        if self.config.compaction is None:
            return False
        session = episode.session
        quiet = replace_fields(episode.params, tool_choice="none")

        async def ask(items: Sequence[Any]) -> NeMoGymResponse:
            """Ask for a summary, without tool calls."""
            response = await self.next_turn(quiet, items, episode.model_path, session)
            episode.add_usage(response)
            return response

        response = await episode.window.compact(self.config.compaction, trigger, ask, session)
        if response is None:
            return False
        session.limit = None
        session.turns.append(turn_counts(response))
        session.step_rewards.append(0.0)
        return True

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
            output = await self.call_tool(call, arguments, session)
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=output)

    async def call_tool(
        self, call: NeMoGymResponseFunctionToolCall, arguments: dict[str, Any], session: EpisodeSession
    ) -> Content:
        """Call a tool of an external MCP server or of the environment; override to add tools of the agent."""
        if session.external is not None and call.name in session.external:
            return await session.external.call(call.name, arguments)
        reply = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path=f"/{call.name}",
            json=arguments,
            cookies=session.cookies.copy(),
        )
        session.remember(reply)
        session.opened = True
        return await self._tool_output(reply, call.name, session)

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
