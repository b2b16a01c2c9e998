# A chat-completions endpoint behind the Responses API, with token ids when asked for.
from time import time
from typing import Any, Dict, List, Union
from uuid import uuid4

from aiohttp.client_exceptions import ClientResponseError
from fastapi import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymAsyncOpenAI,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChoice,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import VLLMConverter
from nemo_gym.server_utils import SESSION_ID_KEY


class TinyChatModelConfig(BaseResponsesAPIModelConfig):
    base_url: Union[str, List[str]]
    api_key: str
    model: str
    return_token_id_information: bool
    uses_reasoning_parser: bool = True
    extra_body: Dict[str, Any] = {}

    def model_post_init(self, context):
        if isinstance(self.base_url, str):
            self.base_url = [self.base_url]
        return super().model_post_init(context)


class TinyChatModel(SimpleResponsesAPIModel):
    config: TinyChatModelConfig

    def model_post_init(self, context):
        self._clients = [
            NeMoGymAsyncOpenAI(base_url=base_url, api_key=self.config.api_key) for base_url in self.config.base_url
        ]
        self._session_id_to_client: Dict[str, NeMoGymAsyncOpenAI] = {}
        self._converter = VLLMConverter(
            return_token_id_information=self.config.return_token_id_information,
            uses_reasoning_parser=self.config.uses_reasoning_parser,
        )
        return super().model_post_init(context)

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        chat_params = self._converter.responses_to_chat_completion_create_params(body)
        body.model = self.config.model
        completion = await self.chat_completions(request, chat_params)
        choice = completion.choices[0]
        items = self._converter.postprocess_chat_response(choice)
        usage = completion.usage
        return NeMoGymResponse(
            id=f"resp_{uuid4().hex}",
            created_at=int(time()),
            model=body.model,
            object="response",
            output=[item.model_dump() for item in items],
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
            tools=body.tools,
            metadata=body.metadata,
            incomplete_details={"reason": "max_output_tokens"} if choice.finish_reason == "length" else None,
            usage=None
            if usage is None
            else {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total_tokens,
            },
        )

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        create_params = body.model_dump(exclude_unset=True) | {"model": self.config.model} | self.config.extra_body
        session_id = request.session[SESSION_ID_KEY]
        if session_id not in self._session_id_to_client:
            index = len(self._session_id_to_client) % len(self._clients)
            self._session_id_to_client[session_id] = self._clients[index]
        client = self._session_id_to_client[session_id]
        try:
            answer = await client.create_chat_completion(**create_params)
        except ClientResponseError as e:
            if e.status == 400 and b"context length" in e.response_content:
                return NeMoGymChatCompletion(
                    id="chtcmpl-123",
                    object="chat.completion",
                    created=int(time()),
                    model=self.config.model,
                    choices=[
                        NeMoGymChoice(
                            index=0,
                            finish_reason="length",
                            message=NeMoGymChatCompletionMessage(role="assistant", content=None, tool_calls=None),
                        )
                    ],
                )
            raise e

        choice = answer["choices"][0]
        message = choice["message"]
        if message.get("reasoning_content"):
            message["content"] = (
                self._converter._wrap_reasoning_in_think_tags([message.pop("reasoning_content")])
                + (message["content"] or "")
            )
        if self.config.return_token_id_information:
            logprobs = choice.pop("logprobs")["content"]
            message.update(
                dict(
                    prompt_token_ids=answer["prompt_token_ids"],
                    generation_token_ids=[int(t["token"].removeprefix("token_id:")) for t in logprobs],
                    generation_log_probs=[t["logprob"] for t in logprobs],
                )
            )
        return NeMoGymChatCompletion.model_validate(answer)


if __name__ == "__main__":
    TinyChatModel.run_webserver()
