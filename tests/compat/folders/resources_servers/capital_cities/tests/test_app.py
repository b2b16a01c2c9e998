from unittest.mock import MagicMock

from fastapi.testclient import TestClient
from pytest import approx, fixture, mark

from nemo_gym.base_resources_server import AggregateMetricsRequest, NeMoGymResponse
from nemo_gym.global_config import ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import ServerClient
from resources_servers.capital_cities.app import (
    CapitalCitiesResourcesServer,
    CapitalCitiesResourcesServerConfig,
    CapitalCitiesVerifyRequest,
)


class TestApp:
    @fixture
    def config(self) -> CapitalCitiesResourcesServerConfig:
        return CapitalCitiesResourcesServerConfig(host="0.0.0.0", port=8080, entrypoint="", name="")

    @fixture
    def server(self, config) -> CapitalCitiesResourcesServer:
        return CapitalCitiesResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))

    def _request(self, text: str, **fields) -> CapitalCitiesVerifyRequest:
        return CapitalCitiesVerifyRequest(
            responses_create_params=NeMoGymResponseCreateParamsNonStreaming(
                input=[{"role": "user", "content": "What is the capital of Norway?"}]
            ),
            response=NeMoGymResponse(
                id="resp",
                created_at=0.0,
                model="dummy",
                object="response",
                output=[
                    {
                        "id": "msg",
                        "content": [{"annotations": [], "text": text, "type": "output_text"}],
                        "role": "assistant",
                        "status": "completed",
                        "type": "message",
                    }
                ],
                parallel_tool_calls=True,
                tool_choice="auto",
                tools=[],
            ),
            **{"expected_answer": "Oslo", **fields},
        )

    def test_sanity(self, server) -> None:
        assert server.setup_webserver() is not None

    @mark.parametrize(
        "text, reward, extracted",
        [
            (r"It is \boxed{Oslo}.", 1.0, "Oslo"),
            (r"\boxed{Bergen}, no: \boxed{ oslo }", 1.0, "oslo"),
            (r"\boxed{Bergen}", 0.0, "Bergen"),
            ("Oslo", 0.0, None),
        ],
    )
    async def test_verify(self, server, text, reward, extracted) -> None:
        result = await server.verify(self._request(text))
        assert result.reward == approx(reward)
        assert result.extracted_answer == extracted
        assert result.response.output[0].content[0].text == text

    def test_verify_over_http(self, server) -> None:
        client = TestClient(server.setup_webserver())
        payload = self._request(r"\boxed{Oslo}", continent="Europe").model_dump()
        res = client.post("/verify", json=payload)
        assert res.status_code == 200, res.text
        assert res.json()["reward"] == 1.0
        assert res.json()["continent"] == "Europe"

    def _rollouts(self):
        answers = {0: ["Oslo", "Oslo", "Bergen", None], 1: ["Lima", "Quito", "Quito", "Quito"]}
        expected = {0: "Oslo", 1: "Lima"}
        for task, given in answers.items():
            for rollout, answer in enumerate(given):
                yield {
                    TASK_INDEX_KEY_NAME: task,
                    ROLLOUT_INDEX_KEY_NAME: rollout,
                    "reward": float(answer == expected[task]),
                    "extracted_answer": answer,
                    "continent": ["Europe", "America"][task],
                    "response": {"usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}},
                }

    async def test_aggregate_metrics(self, server) -> None:
        result = await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=list(self._rollouts())))
        assert result.agent_metrics["mean/reward"] == approx(3 / 8)
        assert result.agent_metrics["pass@4/accuracy"] == approx(100.0)
        assert result.agent_metrics["pass@1[avg-of-4]/accuracy"] == approx(37.5)
        assert result.agent_metrics["majority@4/accuracy"] == approx(50.0)
        assert result.agent_metrics["pass@1[avg-of-4]/no_answer"] == approx(12.5)
        assert result.agent_metrics["Europe/pass@1[avg-of-4]/accuracy"] == approx(50.0)
        assert result.key_metrics == {
            "mean/input_tokens": 10.0,
            "mean/output_tokens": 2.0,
            "pass@1[avg-of-4]/accuracy": approx(37.5),
            "pass@4/accuracy": approx(100.0),
        }
        assert len(result.group_level_metrics) == 2
