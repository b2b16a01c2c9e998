"""Gymnasium agent: the environment says what is seen, the model what is done, until the episode ends."""

from itertools import count
from typing import Any

from fastapi import Request, Response

from nemo_gym.base_responses_api_agent import Body
from nemo_gym.keys import NG_FAILURE_CLASS_KEY, NG_FAILURE_DETAIL_KEY
from nemo_gym.net import allowance
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseUsage,
)
from nemo_gym.server_utils import get_response_json, get_response_model
from responses_api_agents.simple_agent.app import (
    Session,
    SimpleAgent,
    SimpleAgentConfig,
    SimpleAgentRunRequest,
    SimpleAgentVerifyResponse,
    verify_request,
)

Params = NeMoGymResponseCreateParamsNonStreaming


def observed(observation: str | None, response: NeMoGymResponse) -> list[Any]:
    """An observation as items of the conversation: output of the turn's tool calls, or a message where it made none.

    Several calls of one turn have one outcome; it stands with the first of them.
    """
    calls = [item for item in response.output if isinstance(item, NeMoGymResponseFunctionToolCall)]
    if not calls:
        return [NeMoGymEasyInputMessage(type="message", role="user", content=observation or "")]
    texts = [observation or "", *("" for _ in calls[1:])]
    return [
        NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=text)
        for call, text in zip(calls, texts, strict=True)
    ]


def prompted(params: Params, observation: str | None) -> Params:
    """The row's prompt with the first observation behind it: what the model is asked first."""
    asked: list[Any] = (
        [NeMoGymEasyInputMessage(type="message", role="user", content=params.input)]
        if isinstance(params.input, str)
        else list(params.input)
    )
    if observation is not None:
        asked.append(NeMoGymEasyInputMessage(type="message", role="user", content=observation))
    return params.model_copy(update={"input": asked})


class GymnasiumAgentConfig(SimpleAgentConfig):
    pass


class GymnasiumAgent(SimpleAgent):
    """Plays environments built on `resources_servers.gymnasium`."""

    config: GymnasiumAgentConfig

    async def run(self, request: Request, body: SimpleAgentRunRequest) -> SimpleAgentVerifyResponse:
        """Reset the environment, play until it says that the episode is over, have it verified."""
        session = Session(dict(request.cookies))
        path = self.url_path_for_run("/v1/responses", body)
        params, response = await self.play(body, path, session)

        asked = verify_request(body.model_copy(update={"responses_create_params": params}), response)
        if session.limit:
            said = {NG_FAILURE_CLASS_KEY: "limit", NG_FAILURE_DETAIL_KEY: {"which": session.limit}}
            return SimpleAgentVerifyResponse.model_validate({**dict(asked), **said, "reward": 0.0})
        if self.config.skip_verification:
            reward = self.config.skip_verification_reward
            return SimpleAgentVerifyResponse.model_validate(
                {**dict(asked), "reward": reward, "verification_skipped": True}
            )
        reply = await self._reply(self.config.resources_server.name, "/verify", asked, session)
        return SimpleAgentVerifyResponse.model_validate(await get_response_json(reply))

    async def responses(self, request: Request, response: Response, body: Params = Body()) -> NeMoGymResponse:
        """One episode of an environment that needs nothing from a row, without verification."""
        session = Session(dict(request.cookies))
        row = SimpleAgentRunRequest(responses_create_params=body)
        _, final = await self.play(row, self.url_path_for_request("/v1/responses", request), session)
        for name, value in session.cookies.items():
            response.set_cookie(name, value)
        return final

    async def play(
        self, row: SimpleAgentRunRequest, model_path: str, session: Session
    ) -> tuple[Params, NeMoGymResponse]:
        """Turns of the model and steps of the environment until it ends; the prompt as it was asked, and all of it."""
        environment = self.config.resources_server.name
        begun = await self._post(environment, "/reset", row, session)
        params = prompted(row.responses_create_params, begun.get("observation"))
        said: list[Any] = []
        usages: list[Any] = []
        watchers = self.watchers()

        for turn in count(1):
            body = params.model_copy(update={"input": [*params.input, *said]})
            reply = await self._reply(self.config.model_server.name, model_path, body, session)
            response = await get_response_model(reply, NeMoGymResponse)
            said += response.output
            usages.append(response.usage)
            for watcher in watchers:
                watcher.model_turn(response)

            stepped = await self._post(environment, "/step", verify_request(row, response), session)
            if stepped["terminated"] or stepped["truncated"] or turn == self.config.max_steps:
                break
            session.limit = allowance.reached(steps=turn, usages=usages)
            if session.limit:
                break
            said += observed(stepped.get("observation"), response)

        usage = NeMoGymResponseUsage.sum_from_list(usages) if any(usages) else None
        final = response.model_copy(update={"output": said, "usage": usage})
        for watcher in watchers:
            watcher.finished(final)
        return params, final


if __name__ == "__main__":
    GymnasiumAgent.run_webserver()
