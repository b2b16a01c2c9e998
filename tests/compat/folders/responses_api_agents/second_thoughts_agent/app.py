# Asks the model, lets the environment run its tools, then asks once more for a second opinion.
import json
from typing import Any, List

from fastapi import Request, Response
from pydantic import ConfigDict, ValidationError

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef, ResourcesServerRef
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
)
from nemo_gym.server_utils import get_response_json, raise_for_status


class SecondThoughtsAgentConfig(BaseResponsesAPIAgentConfig):
    resources_server: ResourcesServerRef
    model_server: ModelServerRef
    question: str = "Are you sure?"
    max_steps: int = None


class SecondThoughtsRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class SecondThoughtsVerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")


class SecondThoughtsVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class SecondThoughtsAgent(SimpleResponsesAPIAgent):
    config: SecondThoughtsAgentConfig

    async def responses(
        self,
        request: Request,
        response: Response,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),
    ) -> NeMoGymResponse:
        body = body.model_copy(deep=True)
        if isinstance(body.input, str):
            body.input = [NeMoGymEasyInputMessage(role="user", content=body.input)]

        outputs: List[Any] = []
        usage = None
        asked = False
        step = 0
        model_cookies = None
        env_cookies = request.cookies
        while True:
            step += 1
            params = body.model_copy(update={"input": body.input + outputs})
            reply = await self.server_client.post(
                server_name=self.config.model_server.name,
                url_path=self.url_path_for_request("/v1/responses", request),
                json=params,
                cookies=model_cookies,
            )
            await raise_for_status(reply)
            payload = await get_response_json(reply)
            model_cookies = reply.cookies
            try:
                model_response = NeMoGymResponse.model_validate(payload)
            except ValidationError as e:
                raise RuntimeError(f"Received an invalid response: {json.dumps(payload)}") from e

            outputs.extend(model_response.output)
            if not usage:
                usage = model_response.usage
                model_response.usage = None
            if usage and model_response.usage:
                usage.input_tokens += model_response.usage.input_tokens
                usage.output_tokens += model_response.usage.output_tokens
                usage.total_tokens += model_response.usage.total_tokens
                usage.input_tokens_details.cached_tokens = 0
                usage.output_tokens_details.reasoning_tokens = 0

            if model_response.incomplete_details and model_response.incomplete_details.reason == "max_output_tokens":
                break
            calls: List[NeMoGymResponseFunctionToolCall] = [o for o in model_response.output if o.type == "function_call"]
            messages: List[NeMoGymResponseOutputMessage] = [
                o for o in model_response.output if o.type == "message" and o.role == "assistant"
            ]
            if not calls and messages:
                if asked:
                    break
                asked = True
                outputs.append(NeMoGymEasyInputMessage(role="user", content=self.config.question))
                continue
            for call in calls:
                tool = await self.server_client.post(
                    server_name=self.config.resources_server.name,
                    url_path=f"/{call.name}",
                    json=json.loads(call.arguments),
                    cookies=env_cookies,
                )
                env_cookies = tool.cookies
                outputs.append(
                    NeMoGymFunctionCallOutput(
                        type="function_call_output",
                        call_id=call.call_id,
                        output=(await tool.content.read()).decode(),
                    )
                )
            if self.config.max_steps and step >= self.config.max_steps:
                break

        for k, v in (*env_cookies.items(), *(model_cookies or {}).items()):
            response.set_cookie(k, v)
        model_response.output = [o for o in outputs if not isinstance(o, NeMoGymEasyInputMessage)]
        model_response.usage = usage
        return model_response

    async def run(self, request: Request, body: SecondThoughtsRunRequest) -> SecondThoughtsVerifyResponse:
        cookies = request.cookies
        seed = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/seed_session",
            json=body.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(seed)
        cookies = seed.cookies

        reply = await self.server_client.post(
            server_name=self.config.name,
            url_path=self.url_path_for_run("/v1/responses", body),
            json=body.responses_create_params,
            cookies=cookies,
        )
        await raise_for_status(reply)
        cookies = reply.cookies

        verify_request = SecondThoughtsVerifyRequest.model_validate(
            body.model_dump() | {"response": await get_response_json(reply)}
        )
        verdict = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json=verify_request.model_dump(),
            cookies=cookies,
        )
        await raise_for_status(verdict)
        return SecondThoughtsVerifyResponse.model_validate(await get_response_json(verdict))


if __name__ == "__main__":
    SecondThoughtsAgent.run_webserver()
