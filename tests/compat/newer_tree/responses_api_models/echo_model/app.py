from fastapi import Request

from nemo_gym.base_responses_api_model import (
    BaseResponsesAPIModelConfig,
    Body,
    SimpleResponsesAPIModel,
    start_model_execution,
)
from nemo_gym.global_config import TOKEN_ID_CAPTURE_BLOCK
from nemo_gym.openai_utils import (
    MAX_NUM_TRIES,
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)


class EchoModelConfig(BaseResponsesAPIModelConfig):
    base_url: str = "http://127.0.0.1:1/v1"
    max_http_attempts: int = MAX_NUM_TRIES


class EchoModel(SimpleResponsesAPIModel):
    ray_enabled = False
    non_generating_model_routes = frozenset({("GET", "/v1/models")})

    config: EchoModelConfig

    def model_post_init(self, context):
        self._client = NeMoGymAsyncOpenAI(
            base_url=self.config.base_url, api_key="x", max_http_attempts=self.config.max_http_attempts
        )
        self._captures = TOKEN_ID_CAPTURE_BLOCK in self.server_client.global_config_dict
        return super().model_post_init(context)

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        outcome = start_model_execution(request, upstream_attempted=False)
        outcome.response_source = "local"
        part = {"type": "output_text", "text": str(body.input), "annotations": []}
        message = {"id": "m", "type": "message", "role": "assistant", "content": [part]}
        return NeMoGymResponse(
            id="r",
            created_at=0,
            model="echo",
            object="response",
            output=[message],
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        raise NotImplementedError


if __name__ == "__main__":
    EchoModel.run_webserver()
