# Exact match against expected_answer, with pass@k metrics and abstentions counted apart.
import re
from typing import Any, Dict, List, Optional

from fastapi import FastAPI

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.reward_profile import compute_pass_majority_metrics, compute_subset_metrics, highest_k_metrics


class CapitalCitiesResourcesServerConfig(BaseResourcesServerConfig):
    answer_pattern: str = r"\\boxed\{([^}]*)\}"


class CapitalCitiesRunRequest(BaseRunRequest):
    expected_answer: str
    continent: Optional[str] = None


class CapitalCitiesVerifyRequest(CapitalCitiesRunRequest, BaseVerifyRequest):
    pass


class CapitalCitiesVerifyResponse(BaseVerifyResponse):
    expected_answer: str
    continent: Optional[str] = None
    extracted_answer: Optional[str] = None


class CapitalCitiesResourcesServer(SimpleResourcesServer):
    config: CapitalCitiesResourcesServerConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._pattern = re.compile(self.config.answer_pattern)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        return app

    def _extract(self, body: BaseVerifyRequest) -> Optional[str]:
        texts = []
        for item in body.response.output:
            if item.type != "message" or item.role != "assistant":
                continue
            for part in item.content:
                if part.type == "output_text":
                    texts.append(part.text)
        matches = self._pattern.findall("".join(texts))
        return matches[-1].strip() if matches else None

    async def verify(self, body: CapitalCitiesVerifyRequest) -> CapitalCitiesVerifyResponse:
        extracted = self._extract(body)
        reward = 1.0 if extracted is not None and extracted.lower() == body.expected_answer.lower() else 0.0
        return CapitalCitiesVerifyResponse(**body.model_dump(), reward=reward, extracted_answer=extracted)

    @staticmethod
    def _score(rollout: Dict[str, Any]) -> Dict[str, float]:
        return {"accuracy": rollout["reward"]}

    def compute_metrics(self, tasks: List[List[Dict[str, Any]]]) -> Dict[str, Any]:
        metrics, _, _, _ = compute_pass_majority_metrics(tasks, score_fn=self._score, answer_key="extracted_answer")
        metrics.update(compute_subset_metrics(tasks, "continent", score_fn=self._score))
        return metrics

    def get_key_metrics(self, agent_metrics: Dict[str, Any]) -> Dict[str, Any]:
        key = {name: agent_metrics[name] for name in ("mean/input_tokens", "mean/output_tokens") if name in agent_metrics}
        key.update(highest_k_metrics(agent_metrics, "pass@1[avg-of-{k}]", exclude_names=["no_answer"]))
        key.update(highest_k_metrics(agent_metrics, "pass@{k}", score_names=["accuracy"]))
        return key


if __name__ == "__main__":
    CapitalCitiesResourcesServer.run_webserver()
