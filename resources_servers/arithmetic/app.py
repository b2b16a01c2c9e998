"""Arithmetic: the reply is right when the last number in it equals the expected one."""

from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from nemo_gym.authoring.verifier_cases import VerifierFixture, offline_server
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.numbers import last_value as last_number
from nemo_gym.reward_profile import compute_pass_majority_metrics, headline_metrics


class ArithmeticConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class ArithmeticRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    expected_answer: float


class ArithmeticVerifyRequest(ArithmeticRunRequest, BaseVerifyRequest):
    pass


class ArithmeticVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    expected_answer: float
    extracted_answer: float | None


class ArithmeticServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: ArithmeticConfig

    async def verify(self, body: ArithmeticVerifyRequest) -> ArithmeticVerifyResponse:
        answer = last_number(body.response.output_text)
        verdict = {"extracted_answer": answer, "reward": float(answer == body.expected_answer)}
        return ArithmeticVerifyResponse(**(dict(body) | verdict))  # a stored rollout has an old verdict

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        return compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=lambda: offline_server(ArithmeticServer),
    request_model=ArithmeticVerifyRequest,
    cases_path=Path(__file__).parent / "tests" / "verifier_cases.jsonl",
)


if __name__ == "__main__":
    ArithmeticServer.run_webserver()
