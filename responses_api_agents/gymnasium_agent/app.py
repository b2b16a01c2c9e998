"""Gymnasium agent: alternate model turns and environment steps until the environment ends the episode."""

from itertools import count
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from nemo_gym.base_responses_api_agent import Body
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.server_utils import get_response_model
from nemo_gym.transport import deadlines
from responses_api_agents.simple_agent.app import (
    Session,
    SimpleAgent,
    SimpleAgentConfig,
    SimpleAgentRunRequest,
    SimpleAgentVerifyResponse,
    episode_response,
    model_limit,
    verify_request,
)

Params = NeMoGymResponseCreateParamsNonStreaming


def observation_items(observation: str | None, response: NeMoGymResponse) -> list[Any]:
    """Turn an observation into items of the conversation: the output of the turn's tool calls, or a message.

    Several calls of one turn have one observation; it is the output of the first.
    """
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if not calls:
        return [NeMoGymEasyInputMessage(type="message", role="user", content=observation or "")]
    texts = [observation or "", *("" for _ in calls[1:])]
    return [
        NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=text)
        for call, text in zip(calls, texts, strict=True)
    ]


def with_observation(params: Params, observation: str | None) -> Params:
    """Append the first observation to the prompt of the row."""
    prompt: list[Any] = (
        [NeMoGymEasyInputMessage(type="message", role="user", content=params.input)]
        if isinstance(params.input, str)
        else list(params.input)
    )
    if observation is not None:
        prompt.append(NeMoGymEasyInputMessage(type="message", role="user", content=observation))
    return params.model_copy(update={"input": prompt})


class ResetReply(BaseModel):
    """The part of an answer to `/reset` that the agent needs."""

    observation: str | None = None


class StepReply(ResetReply):
    terminated: bool
    truncated: bool


class GymnasiumAgentConfig(SimpleAgentConfig):
    pass


class GymnasiumAgent(SimpleAgent):
    """Runs environments built on `resources_servers.gymnasium`."""

    config: GymnasiumAgentConfig

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        """Reset the environment, run one episode and verify it."""
        session = Session(dict(request.cookies))
        path = self.url_path_for_run("/v1/responses", body)
        params, response = await self.play(body, path, session)

        request_as_sent = body.model_copy(update={"responses_create_params": params})
        return await self.verify_episode(verify_request(request_as_sent, response), session)

    async def responses(self, request: Request, response: Response, body: Params = Body()) -> NeMoGymResponse:
        """Run one episode of an environment that needs no row, without verification."""
        session = Session(dict(request.cookies))
        row = SimpleAgentRunRequest(responses_create_params=body)
        _, final = await self.play(row, self.url_path_for_request("/v1/responses", request), session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def play(
        self, row: SimpleAgentRunRequest, model_path: str, session: Session
    ) -> tuple[Params, NeMoGymResponse]:
        """Run one episode; return the parameters with the first observation, and the response of the episode."""
        environment = self.config.resources_server.name
        start = await get_response_model(await self._reply(environment, "/reset", row, session), ResetReply)
        params = with_observation(row.responses_create_params, start.observation)
        items: list[Any] = []
        usages: list[Any] = []
        watchers = self.watchers()

        for turn in count(1):
            body = params.model_copy(update={"input": [*params.input, *items]})
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            session.limit = model_limit(response)
            if session.limit:
                break
            items += response.output
            usages.append(response.usage)
            for watcher in watchers:
                watcher.model_turn(response)

            reply = await self._reply(environment, "/step", verify_request(row, response), session)
            step = await get_response_model(reply, StepReply)
            if step.terminated or step.truncated or turn == self.config.max_steps:
                break
            session.limit = deadlines.reached_limit(steps=turn, usages=usages)
            if session.limit:
                break
            items += observation_items(step.observation, response)

        final = episode_response(response, items, usages)
        for watcher in watchers:
            watcher.episode_finished(final)
        return params, final


if __name__ == "__main__":
    GymnasiumAgent.run_webserver()
