"""Quiz: the reply is right when it chooses the expected one of the options."""

from typing import Any

from pydantic import ConfigDict

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.grading.choices import extract_choice
from nemo_gym.grading.extraction import last_assistant_text
from nemo_gym.grading.result_types import NoAnswer
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, headline_metrics


class QuizConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class QuizRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    options: dict[str, str]
    """The text of each option by its letter, as shown in the question."""
    expected_answer: str
    """The letter of the right option."""


class QuizVerifyRequest(QuizRunRequest, BaseVerifyRequest):
    pass


class QuizVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    options: dict[str, str]
    expected_answer: str
    extracted_answer: str | None
    """The letter of the option that the reply chooses; None if it chooses none or several."""


class QuizServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: QuizConfig

    async def verify(self, body: QuizVerifyRequest) -> QuizVerifyResponse:
        message = last_assistant_text(body.response)
        option = (
            message
            if isinstance(message, NoAnswer)
            else extract_choice(message.value, list(body.options), body.options)
        )
        answer = None if isinstance(option, NoAnswer) else option.value
        verdict = {"extracted_answer": answer, "reward": float(answer == body.expected_answer)}
        return QuizVerifyResponse(**(body.model_dump() | verdict))

    def compute_metrics(self, tasks: list[list[dict[str, Any]]]) -> dict[str, Any]:
        metrics = compute_pass_majority_metrics(tasks, answer_key="extracted_answer")[0]
        return metrics | compute_subset_metrics(tasks, "topic", answer_key="extracted_answer")

    def get_key_metrics(self, agent_metrics: dict[str, Any]) -> dict[str, Any]:
        return headline_metrics(agent_metrics, patterns=("pass@{k}", "majority@{k}"))


if __name__ == "__main__":
    QuizServer.run_webserver()
