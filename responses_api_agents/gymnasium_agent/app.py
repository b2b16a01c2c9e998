"""Gymnasium agent: alternate model turns and environment steps until the environment ends the episode."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel, ValidationError

from nemo_gym.authoring.episode_agent import (
    EpisodeAgent,
    EpisodeAgentConfig,
    EpisodeRunRequest,
    EpisodeSession,
    EpisodeVerifyResponse,
    episode_response,
    model_limit,
    turn_counts,
    verify_request,
)
from nemo_gym.base_responses_api_agent import Body, episode_signals
from nemo_gym.errors import EnvFailed
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
)
from nemo_gym.server_utils import get_response_model
from nemo_gym.transport import deadlines
from nemo_gym.wire.episode import Content, Opening, apply_opening

Params = NeMoGymResponseCreateParamsNonStreaming


def observation_items(
    observation: Content | None, response: NeMoGymResponse, outputs: Mapping[str, Content] | None = None
) -> list[Any]:
    """Turn an observation into items of the conversation: the output of the turn's tool calls, or a message.

    Without `outputs`, the output of each call by its id, several calls of one turn have one observation; it is the
    output of the first. With `outputs`, an observation is a message after them.
    """
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if outputs is None and calls:
        outputs, observation = {calls[0].call_id: observation or ""}, None
    items: list[Any] = [
        NeMoGymFunctionCallOutput(
            type="function_call_output", call_id=call.call_id, output=(outputs or {}).get(call.call_id, "")
        )
        for call in calls
    ]
    if observation or not calls:
        items.append(NeMoGymEasyInputMessage(type="message", role="user", content=observation or ""))
    return items


def with_observation(params: Params, observation: Content | None) -> Params:
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

    observation: Content | None = None
    messages: list[Any] = []
    tools: list[Any] = []


class StepReply(BaseModel):
    """The part of an answer to `/step` that the agent needs."""

    observation: Content | None = None
    outputs: dict[str, Content] | None = None
    reward: float | None = None
    terminated: bool
    truncated: bool


class GymnasiumAgentConfig(EpisodeAgentConfig):
    pass


class GymnasiumAgent(EpisodeAgent):
    """Runs environments built on `resources_servers.gymnasium`."""

    config: GymnasiumAgentConfig

    async def run(self, request: Request, body: EpisodeRunRequest) -> EpisodeVerifyResponse:
        """Reset the environment, run one episode and verify it."""
        session = EpisodeSession(dict(request.cookies))
        path = self.url_path_for_run("/v1/responses", body)
        try:
            params, response = await self.play(body, path, session)

            request_as_sent = body.model_copy(update={"responses_create_params": params})
            return await self.verify_with_turns(verify_request(request_as_sent, response), session)
        finally:
            self.close_unverified(session)

    async def responses(self, request: Request, response: Response, body: Params = Body()) -> NeMoGymResponse:
        """Run one episode of an environment that needs no row, without verification."""
        session = EpisodeSession(dict(request.cookies))
        row = EpisodeRunRequest(responses_create_params=body)
        try:
            _, final = await self.play(row, self.url_path_for_request("/v1/responses", request), session)
        finally:
            self.close_unverified(session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def play(
        self, row: EpisodeRunRequest, model_path: str, session: EpisodeSession
    ) -> tuple[Params, NeMoGymResponse]:
        """Run one episode; return the parameters with the first observation, and the response of the episode."""
        environment = self.config.resources_server.name
        reply = await self._reply(environment, "/reset", row, session)
        session.needs_close = episode_signals(reply).close
        start = await get_response_model(reply, ResetReply)
        params = with_observation(self._apply_start(row.responses_create_params, start), start.observation)
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
            session.turns.append(turn_counts(response))
            session.step_rewards.append(0.0)
            for watcher in watchers:
                watcher.model_turn(response)

            reply = await self._reply(environment, "/step", verify_request(row, response), session)
            step = await get_response_model(reply, StepReply)
            if step.reward is not None:
                session.add_reward(step.reward)
            session.done = step.terminated or step.truncated
            if step.outputs is not None:  # also after the last turn: each call has an output
                items += observation_items(step.observation, response, step.outputs)
            if session.done or turn == self.config.max_steps:
                break
            session.limit = deadlines.reached_limit(steps=turn, usages=usages)
            if session.limit:
                break
            if step.outputs is None:
                items += observation_items(step.observation, response)

        final = episode_response(response, items, usages)
        for watcher in watchers:
            watcher.episode_finished(final)
        return params, final

    def _apply_start(self, params: Params, start: ResetReply) -> Params:
        """Return the request with the messages and tools of the environment's opening."""
        if not start.messages and not start.tools:
            return params
        try:
            opening = Opening(messages=start.messages, tools=start.tools)
        except ValidationError as error:
            problem = f"/reset answered with an invalid opening: {error}"
            raise EnvFailed(problem, where=self.config.resources_server.name) from None
        return apply_opening(params, opening)


if __name__ == "__main__":
    GymnasiumAgent.run_webserver()
