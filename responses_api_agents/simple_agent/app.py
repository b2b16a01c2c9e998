"""Simple agent: the model speaks, the tools it calls are run, until it is done; then the answer is verified."""

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
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY
from nemo_gym.net import allowance
from nemo_gym.net.bounded import AnswerTooLong, read_at_most
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

logger = logging.getLogger("nemo_gym.simple_agent")

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]+")
SILENT_TURNS = 2
"""So many turns in a row without a tool call or a message end the episode: the model has nothing more to say."""


@dataclass
class Session:
    """What an episode carries from call to call: the cookies of both servers, whose names differ."""

    cookies: dict[str, str]
    opened: bool = False
    """The environment has answered once, so its cookie is among them."""
    limit: str | None = None
    """The limit of the rollout that ended the episode before the model was done."""

    def remember(self, reply: Any) -> None:
        values = getattr(reply, "cookie_values", None)  # a server in this process says them plainly
        if not isinstance(values, dict):
            values = {name: getattr(cookie, "value", cookie) for name, cookie in reply.cookies.items()}
        self.cookies.update(values)


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


def verify_request(body: BaseRunRequest, response: NeMoGymResponse) -> "SimpleAgentVerifyRequest":
    """What the run request said, and the response, as it is sent to `/verify`."""
    if not all(isinstance(item, BaseModel) for item in response.output):  # an episode of somebody else's making
        response = NeMoGymResponse.model_validate(response.model_dump(exclude_unset=True))
    given = {name: value for name, value in vars(body).items() if name in body.model_fields_set}
    return SimpleAgentVerifyRequest.model_validate({**given, **(body.model_extra or {}), "response": response})


class SimpleAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    max_steps: int | None = Field(default=None, ge=1)
    """Model turns per episode; unlimited when unset."""
    max_tool_output_bytes: int = Field(default=10_000_000, ge=1)
    """A tool that answers more is told of in one sentence instead, so that it cannot take the rest down."""


class SimpleAgentRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    PARTS_ARE_CHECKED: ClassVar[bool] = True  # by pydantic, when the request came in


class SimpleAgentVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")

    PARTS_ARE_CHECKED: ClassVar[bool] = True  # by `verify_request`


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
        await self._reply(environment, "/seed_session", body, session)
        session.opened = True

        path = self.url_path_for_run("/v1/responses", body)
        response = await self.episode(body.responses_create_params, path, session)

        asked = verify_request(body, response)
        if session.limit:
            said = {NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: {"which": session.limit}}
            return SimpleAgentVerifyResponse.model_validate({**dict(asked), **said, "reward": 0.0})
        if self.config.skip_verification:
            reward = self.config.skip_verification_reward
            skipped = {**dict(asked), "reward": reward, "verification_skipped": True}
            return SimpleAgentVerifyResponse.model_validate(skipped)
        reply = await self._reply(environment, "/verify", asked, session)
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
        usages: list[Any] = []
        silent = 0
        watchers = self.watchers()

        for turn in count(1):
            body = params.model_copy(update={"input": [*asked, *said]})
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            said += response.output
            usages.append(response.usage)
            for watcher in watchers:
                watcher.model_turn(response)

            calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
            silent = 0 if calls else silent + 1
            if response.incomplete_details or (not calls and (has_message(response) or silent == SILENT_TURNS)):
                break
            session.limit = allowance.reached(steps=turn, usages=usages)
            if session.limit:
                break
            outputs = await self._run_tools(calls, session)
            said += outputs
            for watcher in watchers:
                for call, output in zip(calls, outputs, strict=True):
                    watcher.tool_turn(call, output)
            if turn == self.config.max_steps:
                break

        usage = NeMoGymResponseUsage.sum_from_list(usages) if any(usages) else None
        final = response.model_copy(update={"output": said, "usage": usage})
        for watcher in watchers:
            watcher.finished(final)
        return final

    async def _run_tools(
        self, calls: Sequence[NeMoGymResponseFunctionToolCall], session: Session
    ) -> list[NeMoGymFunctionCallOutput]:
        """All calls of one turn at the same time, their outputs in the order of the calls."""
        outputs: list[NeMoGymFunctionCallOutput] = []
        # Calls that race to open the session would open several; a single one needs no company.
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
            text = await self._tool_text(reply, call.name)
        return NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=text)

    async def _tool_text(self, reply: Any, tool: str) -> str:
        """What the tool answered; of an answer that no model could read, only that it was one."""
        most, where = self.config.max_tool_output_bytes, f"{self.config.resources_server.name} /{tool}"
        try:
            return (await read_at_most(reply, most, where=where)).decode(errors="replace")
        except AnswerTooLong as problem:
            logger.warning("%s; the model is told so (max_tool_output_bytes)", problem)
            return json.dumps({"error": f"The tool's answer is longer than {most:,} bytes. Ask for less."})

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
