from typing import Any

from fastapi import Body, Request

from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.rollout_observability import AgentInvocation, AgentObservationBundle, ModelCallRef, SandboxObservation
from nemo_gym.sandbox import AsyncSandbox, SandboxResources, SandboxSpec
from nemo_gym.sandbox.utils import cpu_cap_env
from nemo_gym.server_utils import get_response_json, raise_for_status


class SandboxedAgentConfig(BaseResponsesAPIAgentConfig):
    model_server: ModelServerRef
    resources: dict[str, Any] | None = None


class SandboxedAgent(SimpleResponsesAPIAgent):
    ray_enabled = False

    config: SandboxedAgentConfig

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        response = await self.server_client.post(
            server_name=self.config.model_server.name,
            url_path=self.url_path_for_request("/v1/responses", request),
            json=body,
        )
        await raise_for_status(response)
        return NeMoGymResponse.model_validate(await get_response_json(response))

    async def run(self, body: BaseRunRequest = Body()) -> BaseVerifyResponse:
        raise NotImplementedError

    async def run_in_sandbox(self, provider: Any, command: str) -> tuple[str, AgentObservationBundle]:
        resources = SandboxResources.from_mapping(self.config.resources)
        async with AsyncSandbox(provider) as sandbox:
            await sandbox.start(SandboxSpec(image="i", resources=resources, env=cpu_cap_env(resources.cpu)))
            result = await sandbox.exec(command)
        call = ModelCallRef(model_call_id="mc_1", model_ref=self.config.model_server, response_id="r")
        records = [
            AgentInvocation(invocation_id="root", status="completed", model_calls=[call]),
            SandboxObservation(role="agent", provider="fake", exit_code=result.return_code),
        ]
        return result.stdout, AgentObservationBundle(source="sandboxed_agent", records=records)


if __name__ == "__main__":
    SandboxedAgent.run_webserver()
