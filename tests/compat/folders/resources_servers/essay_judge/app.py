import re
from typing import Any, Literal, Optional

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)


class EssayJudgeConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS

    judge_model_server: ModelServerRef
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    judge_endpoint: Literal["/v1/responses"] = "/v1/responses"
    judge_prompt: str = "Question: {question}\nEssay: {essay}\nAnswer [[A]] if it is good, [[B]] if it is not."


class EssayRunRequest(BaseRunRequest):
    question: str


class EssayVerifyRequest(EssayRunRequest, BaseVerifyRequest):
    pass


class EssayVerifyResponse(EssayVerifyRequest, BaseVerifyResponse):
    judge_verdict: Optional[str] = None
    judge_response: Optional[NeMoGymResponse] = None


class EssayJudgeServer(SimpleResourcesServer):
    config: EssayJudgeConfig

    async def verify(self, body: EssayVerifyRequest) -> EssayVerifyResponse:
        params = self.config.judge_responses_create_params.model_copy(deep=True)
        params.input = [
            NeMoGymEasyInputMessage(
                role="user",
                content=self.config.judge_prompt.format(question=body.question, essay=body.response.output_text),
            )
        ]
        judge_response = await call_judge(
            self.server_client,
            server_name=self.config.judge_model_server.name,
            url_path=self.config.judge_endpoint,
            json=params,
            response_model=NeMoGymResponse,
        )
        verdict = re.search(r"\[\[([AB])\]\]", judge_response.output_text)
        label: Any = verdict.group(1) if verdict else None
        return EssayVerifyResponse(
            **body.model_dump(), reward=float(label == "A"), judge_verdict=label, judge_response=judge_response
        )


if __name__ == "__main__":
    EssayJudgeServer.run_webserver()
