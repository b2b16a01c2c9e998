"""Base class of model servers whose model speaks Chat Completions: `complete` is all that a subclass needs."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from fastapi import HTTPException, Request
from pydantic import PrivateAttr

from nemo_gym.authoring.provider_state import ReasoningDetails, StatefulConverter, is_state_item
from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, Body, SimpleResponsesAPIModel
from nemo_gym.convert.chat_conversation import wrap_in_think_tags
from nemo_gym.convert.chat_stream import ChunkDecoder, reasoning_text
from nemo_gym.convert.flattened_tools import custom_tool_names
from nemo_gym.convert.json_access import new_id
from nemo_gym.convert.response_events import item_events
from nemo_gym.errors import ModelFailed
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import adopt_ids, with_streamed_items
from nemo_gym.serve.answer_room import complete_in_context
from nemo_gym.serve.chat_engines import empty_completion, first_choice, settings_in_metadata
from nemo_gym.serve.event_stream import Emit
from nemo_gym.transport.model_client import validate_answer
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS

Json = dict[str, Any]
Complete = Callable[[Json], Awaitable[Json]]
"""Sends a chat request and returns the completion."""

REASONING_FIELDS = ("reasoning_content", "reasoning")
LIMIT_FIELDS = ("max_completion_tokens", "max_tokens")


class ChatModelConfig(BaseResponsesAPIModelConfig):
    model: str
    """Model name in every request; replaces the name that the caller sent."""
    uses_reasoning_parser: bool = True
    """Separate `<think>` text of answers from the answer."""
    send_reasoning: Literal["no", "reasoning_content", "reasoning", "think_tags"] = "no"
    """Where earlier reasoning is sent: nowhere, in a field of the message (`reasoning_content` for DeepSeek,
    `reasoning` for OpenRouter), or in the text."""
    token_limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of the limit of the answer. Reasoning models of OpenAI accept only `max_completion_tokens`."""
    replace_developer_role_with_system: bool = True
    """Many chat templates have no role `developer`."""
    extra_body: dict[str, Any] = {}
    """Fields added to each request; fields that the caller sends take precedence."""


class ChatModel(SimpleResponsesAPIModel):
    """Answers Responses and Chat requests with chat completions; keeps the state of the provider in conversations."""

    PASSES_ENGINE_OPTIONS = True

    config: ChatModelConfig
    _converter: StatefulConverter = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._converter = StatefulConverter(
            return_token_id_information=False, uses_reasoning_parser=self.config.uses_reasoning_parser
        )

    @abstractmethod
    async def complete(self, payload: Json) -> Json:
        """Send a chat request and return the completion."""

    async def stream(self, payload: Json, emit: Emit) -> Json:  # noqa: ARG002 - for subclasses whose endpoint streams
        """Send a chat request, report the chunks as they arrive, and return the completion."""
        return await self.complete(payload)

    @property
    def served_model_name(self) -> str:
        return self.config.model

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        chat = self._converter.responses_to_chat_completion_create_params(body)
        named = body.model_copy(update={"model": self.config.model})
        return self._converter.chat_completion_to_response(named, await self.chat_completions(chat))

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self._answer(body, self.complete)

    async def stream_chat_completions(
        self,
        request: Request,  # noqa: ARG002 - every live method takes it
        body: NeMoGymChatCompletionCreateParamsNonStreaming,
        emit: Emit,
    ) -> NeMoGymChatCompletion:
        """Answer a chat request live; pieces of `reasoning_details` are joined in the completion."""
        details = ReasoningDetails()

        async def report(chunk: Json) -> None:
            details.add(chunk)
            await emit(chunk)

        async def complete(payload: Json) -> Json:
            return await self.stream(payload, report)

        return details.with_details(await self._answer(body, complete))

    async def stream_responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming, emit: Emit
    ) -> NeMoGymResponse:
        """Answer a Responses request live. An item with the provider's state comes last."""
        chat = self._converter.responses_to_chat_completion_create_params(body)
        decoder = ChunkDecoder(
            new_id=new_id,
            split_tags=self.config.uses_reasoning_parser,
            custom_tools=custom_tool_names({"tools": body.tools}),
            model=self.config.model,
        )

        async def report(chunk: Json) -> None:
            for event in decoder.feed(chunk):
                await emit(event)

        completion = await self.stream_chat_completions(request, chat, report)
        named = body.model_copy(update={"model": self.config.model})
        response = self._converter.chat_completion_to_response(named, completion)
        if not decoder.response:
            return response
        for event in decoder.finish():
            await emit(event)
        last = response.output[-1].model_dump(exclude_unset=True)
        states = [response.output.pop()] if is_state_item(last) else []
        response = with_streamed_items(response, decoder.items)
        adopt_ids(response, decoder)
        response.output += states
        for event in item_events(last, len(response.output) - 1) if states else ():
            await emit(event)
        return response

    async def _answer(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming, complete: Complete
    ) -> NeMoGymChatCompletion:
        """Complete a chat request; a prompt that fills the context gets an empty answer.

        If the requested length does not fit into the context, the request is sent again with the length that does.
        """
        accepted = await complete_in_context(self.chat_request(body), complete)
        if accepted is None:
            return NeMoGymChatCompletion.model_validate(empty_completion(self.config.model))
        reply = accepted[1]
        message = first_choice(reply, self.config.name).get("message")
        if not isinstance(message, dict):
            raise ModelFailed("the endpoint's answer has no message", where=self.config.name)
        reasoning = reasoning_text(message)
        message.pop("reasoning", None)
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        return validate_answer(NeMoGymChatCompletion, reply, callee=self.config.name)

    def chat_request(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Json:
        """Build the request for the endpoint, with one name for each field."""
        extra, template, metadata = settings_in_metadata(body.metadata or {})
        request = {**self.config.extra_body, **body.model_dump(exclude_unset=True), **extra}
        request.pop("metadata", None)
        if metadata:
            request["metadata"] = metadata
        if template:
            own_arguments = request.get("chat_template_kwargs") or {}
            if not isinstance(own_arguments, dict):
                raise HTTPException(400, "chat_template_kwargs is not an object")
            request["chat_template_kwargs"] = {**own_arguments, **template}
        limits = [request.pop(name, None) for name in LIMIT_FIELDS]
        limit = next((limit for limit in limits if limit is not None), None)
        if limit is not None:
            request[self.config.token_limit_field] = limit
        return {**request, "model": self.config.model, "messages": list(map(self._message, request["messages"]))}

    def _message(self, message: Json) -> Json:
        """Return a message with the role and the reasoning that the endpoint reads."""
        role = message.get("role")
        if role == "developer" and self.config.replace_developer_role_with_system:
            return {**message, "role": "system"}
        if role != "assistant":
            return message
        unused = {*REASONING_FIELDS, *TOKEN_FIELDS, *GENERATION_FIELDS}
        kept = {name: value for name, value in message.items() if name not in unused}
        content = message.get("content") or ""
        if not isinstance(content, str):
            return kept
        separate = reasoning_text(message)
        thoughts, text = ([separate], content) if separate else self._converter._split_thoughts(content)
        if not thoughts:
            return kept
        kept["content"] = text or (None if message.get("tool_calls") else "")
        if self.config.send_reasoning == "think_tags":
            kept["content"] = wrap_in_think_tags(thoughts) + text
        elif self.config.send_reasoning != "no":
            kept[self.config.send_reasoning] = "\n".join(thoughts)
        return kept
