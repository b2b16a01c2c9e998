from nemo_gym.base_environment_server import BaseEnvironmentServer, BaseEnvironmentServerConfig, CleanupContext
from nemo_gym.config_types import AgentServerRef, AggregateMetrics, AggregateMetricsRequest, ResourcesServerRef
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.single_agent_turn_types import SingleAgentTurnRequest, SingleAgentTurnResponse


class OneTurnConfig(BaseEnvironmentServerConfig):
    resources_server: ResourcesServerRef
    agent_server: AgentServerRef


class OneTurn(BaseEnvironmentServer[SingleAgentTurnRequest, SingleAgentTurnResponse]):
    ray_enabled = False
    request_model = SingleAgentTurnRequest
    response_model = SingleAgentTurnResponse

    config: OneTurnConfig

    async def run(self, request: SingleAgentTurnRequest, cleanup: CleanupContext) -> SingleAgentTurnResponse:
        async def close() -> None:
            await self.server_client.post(server_name=self.config.resources_server.name, url_path="/close_session")

        cleanup.register_cleanup("resources session", close)
        task = request.task.task_input
        answer = await self.server_client.post(
            server_name=self.config.agent_server.name,
            url_path=f"/ng-rollout/{request.episode_id.capture_key}/v1/responses",
            json=task.responses_create_params,
        )
        await raise_for_status(answer)
        row = {**task.task_data, "responses_create_params": task.responses_create_params.model_dump()}
        verdict = await self.server_client.post(
            server_name=self.config.resources_server.name,
            url_path="/verify",
            json={**row, "response": await get_response_json(answer)},
        )
        await raise_for_status(verdict)
        result = await get_response_json(verdict)
        return SingleAgentTurnResponse(episode_id=request.episode_id, task_id=request.task.task_id, result=result)

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics()


if __name__ == "__main__":
    OneTurn.run_webserver()
