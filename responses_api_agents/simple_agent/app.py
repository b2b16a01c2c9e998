"""Simple agent: the model speaks, the tools it calls are run, until it is done; then the answer is verified."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from fastapi import Request, Response
from pydantic import ConfigDict, Field

from nemo_gym.base_resources_server import (
    RESERVED_MCP_TOOL_NAMES,
    AggregateMetrics,
    AggregateMetricsRequest,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
)
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    accumulate_response_usage,
)
from nemo_gym.server_utils import (
    ModelServerRef,
    ResourcesServerRef,
    get_response_json,
    get_response_model,
    raise_for_status,
)

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+")
SILENT_TURNS = 2
"""So many turns in a row without a tool call or a message end the episode: the model has nothing more to say."""


@dataclass
class Session:
    """What an episode carries from call to call: the cookies of both servers, whose names differ."""

    cookies: dict[str, str]
    opened: bool = False
    """The environment has answered once, so its cookie is among them."""

    def remember(self, reply: Any) -> None:
        self.cookies.update({name: getattr(cookie, "value", cookie) for name, cookie in reply.cookies.items()})


class Watcher(Protocol):
    """Somebody who follows an episode and cannot change it."""

    def model_turn(self, response: NeMoGymResponse) -> None: ...

    def tool_turn(self, call: NeMoGymResponseFunctionToolCall, output: NeMoGymFunctionCallOutput) -> None: ...

    def finished(self, response: NeMoGymResponse) -> None: ...


def tool_arguments(call: NeMoGymResponseFunctionToolCall) -> dict[str, Any]:
    """The arguments as an object.

    Raises:
        ValueError: with a text the model can act on.
    """
    if call.name in RESERVED_MCP_TOOL_NAMES or not TOOL_NAME.fullmatch(call.name):
        raise ValueError(f"There is no tool named {call.name!r}.")
    arguments = json.loads(call.arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("Tool arguments must be a JSON object.")
    return arguments


def has_message(response: NeMoGymResponse) -> bool:
    return any(item.type == "message" and getattr(item, "role", None) == "assistant" for item in response.output)


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Model turns per episode; unlimited when unset."""


class SimpleAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class SimpleAgentVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class SimpleAgent(SimpleResponsesAPIAgent):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # nothing is kept between requests, so nobody need be recognised

    config: SimpleAgentConfig

    def watchers(self) -> Sequence[Watcher]:
        """Who follows the next episode; a subclass that records or draws returns its own."""
        return ()

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        """Seed the environment, play one episode, have it verified."""
        session = Session(dict(request.cookies))
        environment = self.config.resources_server.name
        row = body.model_dump(exclude_unset=True)
        await self._post(environment, "/seed_session", row, session)
        session.opened = True

        path = self.url_path_for_run("/v1/responses", body)
        response = await self.episode(body.responses_create_params, path, session)

        row["response"] = response.model_dump(exclude_unset=True)
        if self.config.skip_verification:
            reward = self.config.skip_verification_reward
            return SimpleAgentVerifyResponse.model_validate({**row, "reward": reward, "verification_skipped": True})
        reply = await self._reply(environment, "/verify", row, session)
        verdict = getattr(reply, "model", None)  # in one process the verdict comes as it was made
        if not isinstance(verdict, BaseVerifyResponse):
            verdict = await get_response_json(reply)
        return SimpleAgentVerifyResponse.model_validate(dict(verdict))

    async def responses(
        self, request: Request, response: Response, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        """One episode without seed or verification; the cookies of both servers come back with the reply."""
        session = Session(dict(request.cookies))
        path = self.url_path_for_request("/v1/responses", request)
        final = await self.episode(body, path, session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def episode(
        self, params: NeMoGymResponseCreateParamsNonStreaming, model_path: str, session: Session
    ) -> NeMoGymResponse:
        """Model turns and tool turns until the model is done. `session` is brought up to date on the way."""
        asked = params.input
        if isinstance(asked, str):
            asked = [NeMoGymEasyInputMessage(role="user", content=asked)]
        said: list[Any] = []
        usage, silent = None, 0
        watchers = self.watchers()

        for turn in count(1):
            body = params.model_copy(update={"input": [*asked, *said]})
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            said += response.output
            usage = accumulate_response_usage(usage, response.usage)
            for watcher in watchers:
                watcher.model_turn(response)

            calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            silent = 0 if calls else silent + 1
            if response.incomplete_details or (not calls and (has_message(response) or silent == SILENT_TURNS)):
                break
            outputs = await self._run_tools(calls, session)
            said += outputs
            for watcher in watchers:
                for call, output in zip(calls, outputs, strict=True):
                    watcher.tool_turn(call, output)
            if turn == self.config.max_steps:
                break

        final = response.model_copy(update={"output": said, "usage": usage})
        for watcher in watchers:
            watcher.finished(final)
        return final

    async def _run_tools(
        self, calls: Sequence[NeMoGymResponseFunctionToolCall], session: Session
    ) -> list[NeMoGymFunctionCallOutput]:
        """All calls of one turn at the same time, their outputs in the order of the calls."""
        outputs: list[NeMoGymFunctionCallOutput] = []
        while len(outputs) < len(calls) and not session.opened:  # calls that race to open it would open several
            outputs.append(await self._tool(calls[len(outputs)], session))
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self._tool(call, session)) for call in calls[len(outputs) :]]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [*outputs, *(task.result() for task in running)]

    async def _tool(self, call: NeMoGymResponseFunctionToolCall, session: Session) -> NeMoGymFunctionCallOutput:
        """What the tool answered, or what is wrong with the call, as text for the model."""
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
            text = (await reply.read()).decode(errors="replace")
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=text)

    async def _reply(self, server: str, path: str, body: Any, session: Session) -> Any:
        reply = await self.server_client.post(
            server_name=server, url_path=path, json=body, cookies=session.cookies.copy()
        )
        await raise_for_status(reply)
        session.remember(reply)
        return reply

    async def _post(self, server: str, path: str, body: Any, session: Session) -> Mapping[str, Any]:
        payload: Mapping[str, Any] = await get_response_json(await self._reply(server, path, body, session))
        return payload

    async def aggregate_metrics(self, body: AggregateMetricsRequest = Body()) -> AggregateMetrics:
        """The resources server knows what its fields mean; without verification there is nothing to ask it."""
        if self.config.skip_verification:
            return await super().aggregate_metrics(body)
        scores = await self._post(self.config.resources_server.name, "/aggregate_metrics", body, Session({}))
        return AggregateMetrics.model_validate(scores)


if __name__ == "__main__":
    SimpleAgent.run_webserver()
