"""Embedded model: a small real LLM in the server's process, without an API key, a GPU or a network."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

from fastapi import Body, FastAPI, HTTPException
from pydantic import Field, PrivateAttr

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.serve.chat_engines import settings_in_metadata
from nemo_gym.wire.responses import CONTEXT_LENGTH
from responses_api_models.embedded_model.engine import Engine, Generation, Sampling, check_runtime
from responses_api_models.embedded_model.tools import (
    as_text,
    call_or_text_grammar,
    chosen_tools,
    parse_call,
    tool_schema,
    with_tool_instructions,
)
from responses_api_models.embedded_model.weights import bundled_weights

MAX_WORKERS = 4


class EmbeddedModelConfig(BaseResponsesAPIModelConfig):
    weights: str | None = None
    """A GGUF file; default: the bundled SmolLM2-135M-Instruct."""
    model: str = "SmolLM2-135M-Instruct"
    """Model name in every reply."""
    workers: int | None = Field(default=None, ge=1)
    """llama.cpp engines in this process; default: one per core, at most four."""
    threads: int = Field(default=1, ge=1)
    """Threads per worker. More than one helps only on idle cores."""
    slots: int = Field(default=1, ge=1)
    """Concurrent generations per worker; more requests wait."""
    context_length: int = Field(default=2048, ge=128)
    """Tokens of prompt and reply together, per slot."""
    temperature: float = Field(default=0.0, ge=0.0)
    """Default for requests without one."""
    max_output_tokens: int = Field(default=256, ge=1)
    """Default for requests without one."""
    return_token_id_information: bool = False
    """Add prompt ids, generated ids and log-probabilities to the reply, as trainers need them."""


def response_schema(chat: dict[str, Any]) -> dict[str, Any] | None:
    """Return the JSON schema that the request demands for the reply, if any."""
    output_format = chat.get("response_format") or {}
    if output_format.get("type") == "json_schema":
        return dict(output_format["json_schema"].get("schema") or {"type": "object"})
    return {"type": "object"} if output_format.get("type") == "json_object" else None


def with_extra_body(chat: dict[str, Any]) -> dict[str, Any]:
    """Merge `metadata.extra_body` into the request; repeats put their seed there."""
    extra, _, _ = settings_in_metadata(chat.get("metadata") or {})
    return {**chat, **extra}


def usable_cores() -> int:
    """Count the cores this process may use; macOS does not restrict them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_set(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


class EmbeddedModel(SimpleResponsesAPIModel):
    REPORTS_EVERY_COUNT = True

    config: EmbeddedModelConfig
    _engine: Engine = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        check_runtime(self.config.name)  # before 98 MB of weights are downloaded
        weights = Path(self.config.weights) if self.config.weights else bundled_weights()
        self._engine = Engine(
            weights,
            workers=self.config.workers or min(MAX_WORKERS, usable_cores()),
            threads=self.config.threads,
            slots=self.config.slots,
            context_length=self.config.context_length,
            where=self.config.name,
        )
        super().model_post_init(context)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.router.lifespan_context = self._lifespan
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Load the model while the other servers start; stop llama.cpp before the process ends."""
        self._engine.start()
        try:
            yield
        finally:
            await self._engine.close()

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        with_ids = self.config.return_token_id_information
        converter = ResponsesConverter(return_token_id_information=with_ids, server_name=self.config.name)
        completion = await self.chat_completions(converter.responses_to_chat_completion_create_params(body))
        named = body.model_copy(update={"model": self.config.model})
        return converter.chat_completion_to_response(named, completion)

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        chat = with_extra_body(body.model_dump(exclude_unset=True))
        if (chat.get("n") or 1) != 1:
            raise HTTPException(400, "this model returns one completion per request; send another request for more")
        tools, must_call = chosen_tools(chat)
        messages = [as_text(message) for message in chat["messages"]]
        generation = await self._engine.generate(
            with_tool_instructions(messages, tools) if tools else messages, self.sampling(chat, tools, must_call)
        )
        return NeMoGymChatCompletion.model_validate(self.completion(chat, generation, tools))

    def sampling(self, chat: dict[str, Any], tools: list[dict[str, Any]], must_call: bool) -> Sampling:
        """Return the sampling parameters of a request, with the grammar that its tools or schema imply."""
        stop = chat.get("stop") or ()
        schema, grammar = response_schema(chat), None
        if must_call:
            schema = tool_schema(tools)
        elif tools:
            schema, grammar = None, call_or_text_grammar(tool_schema(tools))
        return Sampling(
            temperature=first_set(chat.get("temperature"), self.config.temperature),
            top_p=first_set(chat.get("top_p"), 1.0),
            max_tokens=first_set(
                chat.get("max_completion_tokens"), chat.get("max_tokens"), self.config.max_output_tokens
            ),
            seed=chat.get("seed"),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            top_logprobs=first_set(chat.get("top_logprobs"), 0),
            json_schema=schema,
            grammar=grammar,
        )

    def completion(self, chat: dict[str, Any], generation: Generation, tools: list[dict[str, Any]]) -> dict[str, Any]:
        """Build the chat completion of a generation."""
        call = parse_call(generation.text) if tools else None
        message: dict[str, Any] = {"role": "assistant", "content": None if call else generation.text}
        if call:
            name, arguments = call
            function = {"name": name, "arguments": arguments}
            message["tool_calls"] = [{"id": f"call_{uuid4().hex}", "type": "function", "function": function}]
        if self.config.return_token_id_information:
            message["prompt_token_ids"] = generation.prompt_token_ids
            message["generation_token_ids"] = generation.token_ids
            message["generation_log_probs"] = generation.log_probs
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": "tool_calls" if call else generation.finish_reason,
            "message": message,
        }
        if generation.is_too_long:
            choice["stop_reason"] = CONTEXT_LENGTH
        if chat.get("logprobs"):
            count = chat.get("top_logprobs") or 0
            choice["logprobs"] = {"content": [chat_logprob(token, count) for token in generation.tokens]}
        read, written = len(generation.prompt_token_ids), len(generation.token_ids)
        return {
            "id": f"chatcmpl_{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time()),
            "model": self.config.model,
            "choices": [choice],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }


def chat_logprob(token: dict[str, Any], count: int) -> dict[str, Any]:
    """Return a token's log-probability with `count` alternatives, without the ids of the engine."""
    keys = ("token", "logprob", "bytes")
    alternatives = [{key: other[key] for key in keys} for other in token.get("top_logprobs", [])[:count]]
    return {**{key: token[key] for key in keys}, "top_logprobs": alternatives}


if __name__ == "__main__":
    EmbeddedModel.run_webserver()
