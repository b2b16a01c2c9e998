"""vLLM model: chat completions of one or several vLLM endpoints behind the Responses API, with token ids."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import orjson
from aiohttp import ClientResponseError
from fastapi import HTTPException, Request
from pydantic import PrivateAttr

from nemo_gym.base_responses_api_model import Body, SimpleResponsesAPIModel
from nemo_gym.convert.chat_custom_tools import has_custom_tools, with_custom_calls, with_functions
from nemo_gym.convert.chat_stream import ChunkDecoder
from nemo_gym.convert.flattened_tools import custom_tool_names
from nemo_gym.convert.json_access import new_id
from nemo_gym.errors import ConfigError, GymError, ModelFailed
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, adopt_ids, with_streamed_items
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.serve.answer_room import complete_in_context
from nemo_gym.serve.chat_engines import empty_completion, first_choice
from nemo_gym.serve.event_stream import Emit
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.token_id_capture.external_capture import ExternalCaptureHandler, make_external_capture_handler
from nemo_gym.token_id_capture.memory import remembered_turns
from nemo_gym.transport.model_client import PacedOpenAI, validate_answer
from nemo_gym.transport.model_streams import stream_completion, stream_response
from nemo_gym.wire.base import has_token_fields
from responses_api_models.vllm_model import audio, reply_body, request_body, token_transport
from responses_api_models.vllm_model.settings import VLLMModelConfig
from responses_api_models.vllm_model.token_splice import (
    CannotSplice,
    SplicedPrompt,
    TemplateEnds,
    Turn,
    continues,
    splice,
    splice_tokens,
)
from responses_api_models.vllm_model.transport_log import TransportLog

__all__ = ["VLLMModel", "VLLMModelConfig"]

Json = dict[str, Any]
Complete = Callable[[Json], Awaitable[tuple[Json, list[int] | None]]]
"""Sends a chat request; returns the reply, and the token ids of the prompt if it was sent as ids."""
Call = Literal["chat_completion", "completion", "response", "tokenize", "render", "generation", "derender"]
"""A call stands for a method of the client, such as `create_render`, `create_generation` or `create_derender`."""

MOST_TEMPLATES = 1000
"""Arguments of chat templates that a server remembers; each row of a dataset could have others."""

logger = logging.getLogger("nemo_gym.vllm_model")


class VLLMModel(SimpleResponsesAPIModel):
    """Forwards requests to vLLM. Subclasses override `chat_completions`, `responses` or one of their steps."""

    HOSTING = "cell"
    PASSES_ENGINE_OPTIONS = True
    REPORTS_EVERY_COUNT = True

    config: VLLMModelConfig
    _clients: list[PacedOpenAI] = PrivateAttr()
    _converter: ResponsesConverter = PrivateAttr()
    _render: request_body.Render | None = PrivateAttr(default=None)
    _log: TransportLog | None = PrivateAttr(default=None)
    _takes_tokens: dict[str, bool] = PrivateAttr(default_factory=dict)
    """Whether an endpoint has the token transport, by its address; missing if not known yet."""
    _template_ends: dict[tuple[str, bytes], TemplateEnds | None] = PrivateAttr(default_factory=dict)
    """What the chat template writes around an answer, by endpoint, template and its arguments."""
    _plain_templates: set[str] = PrivateAttr(default_factory=set)
    """Arguments of chat templates whose last answer did not end a thought that the template had begun."""
    _reported_breaks: set[str] = PrivateAttr(default_factory=set)
    _external_capture: ExternalCaptureHandler | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._clients = self.make_clients()
        self._converter = self.make_converter()
        self._log = TransportLog.from_environment()
        self._external_capture = make_external_capture_handler(getattr(self.server_client, "global_config_dict", None))
        if self._external_capture is not None and self.config.return_token_id_information:
            raise ConfigError(  # no ValueError, which pydantic would wrap
                "with external_staging the worker keeps the tokens, and answers carry no token ids",
                where=self.config.name,
                fix="set return_token_id_information: false and transport: chat, or external_staging: false",
            )
        if self.config.tokenizer is not None:
            self._render = request_body.local_render(self.config.tokenizer, self.config.name)

    def make_clients(self) -> list[PacedOpenAI]:
        """Create one client per endpoint, each with its limit."""
        return [
            PacedOpenAI(
                name=self.config.name,
                base_url=url,
                api_key=self.config.api_key,
                default_headers=self.config.default_headers,
                max_concurrent_requests=self.config.max_concurrent_requests,
            )
            for url in self.config.base_url
        ]

    def make_converter(self) -> ResponsesConverter:
        """Create the converter between Responses and chat; override for another notation of reasoning."""
        return ResponsesConverter(
            return_token_id_information=self.config.return_token_id_information,
            uses_reasoning_parser=self.config.uses_reasoning_parser,
            server_name=self.config.name,
        )

    @property
    def served_model_name(self) -> str:
        return self.config.model

    async def count_prompt_tokens(self, request: Request, params: NeMoGymResponseCreateParamsNonStreaming) -> int:
        """Count with the tokenizer and the chat template of the endpoint."""
        chat = self._converter.responses_to_chat_completion_create_params(params)
        return len(await self.prompt_token_ids(self.client_for(request), await self.chat_request(chat)))

    async def tokenize(self, request: Request, body: Json) -> Json:
        return await self.ask(self.client_for(request), "tokenize", {**body, "model": self.config.model})

    async def responses(  # type: ignore[override]  # the base class allows a leading request, and the endpoint depends on it
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
    ) -> NeMoGymResponse:
        if self.config.is_responses_native:
            return await self.native_response(request, body)
        chat = self._converter.responses_to_chat_completion_create_params(body)
        completion = await self.chat_completions(request, chat)
        if self._separates_think_tags:
            completion = reply_body.with_closed_thought(completion)
        named = body.model_copy(update={"model": self.config.model})
        return self._converter.chat_completion_to_response(named, completion)

    async def chat_completions(  # type: ignore[override]
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        client = self.client_for(request)

        async def complete(payload: Json) -> tuple[Json, list[int] | None]:
            if self.config.transport != "chat" and self._takes_tokens.get(client.base_url, True):
                return await self.complete_from_tokens(client, payload, decode=bool(body.logprobs))
            return await self.complete(client, payload)

        return await self._answer_chat_request(client, body, complete)

    async def stream_chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming, emit: Emit
    ) -> NeMoGymChatCompletion:
        """Answer a chat request and report its chunks as the endpoint streams them; not with the token transport."""
        if not self._can_stream or has_custom_tools(body.tools):  # a custom call is known when it is complete
            return await self.chat_completions(request, body)
        client = self.client_for(request)

        async def report(chunk: Json) -> None:
            if not body.logprobs:
                choices = chunk.get("choices") or []
                chunk = {**chunk, "choices": [{**choice, "logprobs": None} for choice in choices]}
            await emit(chunk)

        async def complete(payload: Json) -> tuple[Json, None]:
            messages = request_body.without_token_fields(payload["messages"], keep_last=True)
            chat = {**payload, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
            return await stream_completion(client, chat, report, self.config.name), None

        return await self._answer_chat_request(client, body, complete)

    async def stream_responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming, emit: Emit
    ) -> NeMoGymResponse:
        """Answer a Responses request and report its events while the endpoint streams chunks of a completion."""
        if not self._reads_think_tags or type(self).responses is not VLLMModel.responses:
            return await self.responses(request, body)
        if self.config.is_responses_native:
            return await self.native_response(request, body, emit)
        chat = self._converter.responses_to_chat_completion_create_params(body)
        template = request_body.template_key(body)
        decoder = ChunkDecoder(
            new_id=new_id,
            split_tags=self.config.uses_reasoning_parser,
            holds_back=template not in self._plain_templates,
            custom_tools=custom_tool_names({"tools": body.tools}),
            model=self.config.model,
        )

        async def report(chunk: Json) -> None:
            for event in decoder.feed(chunk):
                await emit(event)

        completion = await self.stream_chat_completions(request, chat, report)
        if self._separates_think_tags:
            completion = reply_body.with_closed_thought(completion)
        named = body.model_copy(update={"model": self.config.model})
        response = self._converter.chat_completion_to_response(named, completion)
        if decoder.response:
            events = decoder.finish()
            self._note_template(template, decoder, is_cut=completion.choices[0].finish_reason == "length")
            response = with_streamed_items(response, decoder.items)
            adopt_ids(response, decoder)
            for event in reply_body.with_last_item(events, response):
                await emit(event)
        return response

    @property
    def _reads_think_tags(self) -> bool:
        """Return whether thoughts are written as `<think>` tags: a converter may know another notation."""
        splits_thoughts = type(self._converter)._extract_reasoning_from_content
        return splits_thoughts.__func__ is ResponsesConverter._extract_reasoning_from_content.__func__  # type: ignore[attr-defined]

    @property
    def _separates_think_tags(self) -> bool:
        return self.config.uses_reasoning_parser and self._reads_think_tags

    def _note_template(self, template: str, decoder: ChunkDecoder, *, is_cut: bool) -> None:
        """Note whether the text of answers under a chat template can be sent before it is complete.

        It cannot if the template ends with `<think>`: then only `</think>` shows that the text before was a thought.
        """
        if decoder.began_inside_thought:
            self._plain_templates.discard(template)
        elif not is_cut and len(self._plain_templates) < MOST_TEMPLATES:
            self._plain_templates.add(template)

    @property
    def _can_stream(self) -> bool:
        """Return whether the endpoint streams a request: its answer is neither parsed nor kept elsewhere."""
        uses_chat = self.config.transport == "chat" and not self.config.use_completions_api
        is_plain = (
            type(self).chat_completions is VLLMModel.chat_completions and type(self).complete is VLLMModel.complete
        )
        return uses_chat and is_plain and self._external_capture is None

    async def _answer_chat_request(
        self, client: PacedOpenAI, body: NeMoGymChatCompletionCreateParamsNonStreaming, complete: Complete
    ) -> NeMoGymChatCompletion:
        """Complete a chat request and return the endpoint's answer with token fields and separate reasoning.

        If the requested length does not fit into the context, the request is sent again with the length that does.
        """
        requested, custom_names = await self.chat_request(body), frozenset[str]()
        if has_custom_tools(requested.get("tools")):
            requested, custom_names = with_functions(requested)

        async def count_prompt() -> int:
            return len(await self.prompt_token_ids(client, requested))

        accepted = await complete_in_context(requested, complete, count_prompt)
        if accepted is None:
            return NeMoGymChatCompletion.model_validate(empty_completion(self.config.model))
        payload, (reply, prompt) = accepted
        choice = first_choice(reply, self.config.name)
        if not isinstance(choice.get("message"), dict):
            raise ModelFailed("the endpoint's answer has no message", where=self.config.name)
        if self.config.return_token_id_information:
            own_fields = reply_body.engine_token_fields(reply, choice)
            await self.add_token_fields(client, payload, reply, prompt)
            if not body.logprobs:
                choice.pop("logprobs", None)
            if payload.get("return_token_ids") and (body.model_extra or {}).get("return_token_ids"):
                reply_body.restore_engine_fields(reply, choice, own_fields)
        if custom_names:
            with_custom_calls(choice["message"], custom_names)
        if self.config.uses_reasoning_parser:
            reply_body.separate_reasoning(choice["message"])
        return validate_answer(NeMoGymChatCompletion, reply, callee=self.config.name)

    async def native_response(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming, emit: Emit | None = None
    ) -> NeMoGymResponse:
        """Forward a request to the endpoint's `/v1/responses`; with token ids, check that the reply has them."""
        payload = request_body.with_settings(self.config, body.model_dump(exclude_unset=True))
        client = self.client_for(request)
        if emit is None:
            reply = await self.ask(client, "response", payload)
        else:
            reply = await stream_response(client, {**payload, "stream": True}, emit, self.config.name)
        if self.config.return_token_id_information:
            items = reply_body.check_native_items(reply.get("output") or [], self.config.name)
            if request_body.is_constrained(payload):
                items[-1]["constrained"] = True
        return validate_answer(NeMoGymResponse, reply, callee=self.config.name)

    def client_for(self, request: Request) -> PacedOpenAI:
        """Return the endpoint of the rollout or session: the same for every turn, so that its prefix is cached.

        Programs outside of the agent server keep no session cookie, but their base URL contains the rollout id.
        """
        if len(self._clients) == 1:
            return self._clients[0]
        conversation = current_rollout_id() or str(request.session.get(SESSION_ID_KEY, ""))
        number = int.from_bytes(hashlib.sha256(conversation.encode()).digest(), "big")
        return self._clients[number % len(self._clients)]

    async def chat_request(self, body: NeMoGymChatCompletionCreateParamsNonStreaming) -> Json:
        """Build the request for the endpoint."""
        payload = request_body.with_settings(self.config, body.model_dump(exclude_unset=True))
        if self.config.return_token_id_information:
            if payload.get("n") not in (None, 1):
                raise HTTPException(400, f"n is {payload['n']}: answers with token ids are requested one by one")
            payload = request_body.with_token_ids(self.config, payload)
        messages = request_body.with_messages(
            self.config, payload["messages"], self._converter._extract_reasoning_from_content
        )
        if self.config.audio_root is not None and audio.names_files(messages):
            messages = await asyncio.to_thread(audio.with_audio_inline, messages, Path(self.config.audio_root))
        return {**payload, "messages": messages}

    async def complete(self, client: PacedOpenAI, payload: Json) -> tuple[Json, list[int] | None]:
        """Return the endpoint's reply as a chat completion, and the token ids of the prompt if it was sent as ids."""
        if not self.config.use_completions_api:
            if self.config.return_token_id_information:
                payload = self.with_earlier_tokens(payload)
            return await self.ask(client, "chat_completion", payload), None
        prompt: str | list[int]
        if not self.config.render_chat_template:
            prompt = request_body.bare_prompt(payload["messages"])
        elif self._render is not None:
            prompt = await asyncio.to_thread(self._render, payload)
        else:
            prompt = await self.prompt_token_ids(client, payload)
        reply = await self.ask(client, "completion", request_body.completion_request(payload, prompt))
        return reply_body.chat_from_completion(reply, self.config.name), prompt if isinstance(prompt, list) else None

    def with_earlier_tokens(self, payload: Json) -> Json:
        """Return a chat request with the tokens that it continues: on the last answer, or as a required prefix."""
        remembered = remembered_turns() if self.config.supply_prefix_token_ids else None
        messages = request_body.without_token_fields(payload["messages"], keep_last=remembered is None)
        prefix = {} if remembered is None else {"required_prefix_token_ids": remembered.token_ids}
        return {**payload, "messages": messages, **prefix}

    async def complete_from_tokens(
        self, client: PacedOpenAI, payload: Json, *, decode: bool
    ) -> tuple[Json, list[int] | None]:
        """Complete from token ids that contain the earlier answers as they were sampled.

        With `transport: auto`, an endpoint without the token transport gets this and later requests by `complete`.
        `decode` adds the text of each token to the log-probabilities.
        """
        try:
            answer = await self._generate_from_tokens(client, payload, decode=decode)
            self._takes_tokens[client.base_url] = True
            return answer
        except ClientResponseError as refusal:
            if not token_transport.is_missing_endpoint(refusal) or self._takes_tokens.get(client.base_url):
                raise
            if self.config.transport == "tokens":
                raise ModelFailed(
                    f"the endpoint cannot generate from token ids: it answers {refusal.status}",
                    where=self.config.name,
                    fix="start vLLM 0.32 or later with --enable-scale-out, or set transport: auto",
                ) from refusal
        self._takes_tokens[client.base_url] = False
        logger.info("%s: %s has no token transport; the chat transport is used", self.config.name, client.base_url)
        return await self.complete(client, payload)

    async def _generate_from_tokens(
        self, client: PacedOpenAI, payload: Json, *, decode: bool
    ) -> tuple[Json, list[int] | None]:
        """Render the prompt, put in the tokens of earlier turns, generate, and parse the generated tokens."""
        where = self.config.name
        turns = [Turn.of(message) for message in payload["messages"] if has_token_fields(message)]
        request = {**payload, "messages": request_body.without_token_fields(payload["messages"])}
        rendered = await self.ask(client, "render", request)
        spliced, break_reason = await self._spliced_prompt(client, request, rendered, turns)
        generate = token_transport.generate_request(rendered, request, spliced)
        generation = await self.ask(client, "generation", generate)
        choice = first_choice(generation, where)
        if not choice.get("token_ids"):
            raise ModelFailed("the endpoint generated no tokens", where=where)
        if token_transport.text_ids(generate, choice):
            parse = token_transport.derender_request(request, generate, generation, choice, decode=decode)
            parsed = await self.ask(client, "derender", parse)
        else:
            parsed = token_transport.empty_answer(request, generation)
        prompt = generation.get("prompt_token_ids") or generate["token_ids"]
        reply = token_transport.chat_completion(parsed, generation, choice, prompt, where)
        if generate["sampling_params"].get("structured_outputs") is not None:
            reply["choices"][0]["constrained"] = True
        if break_reason is not None:
            reply["choices"][0]["break_reason"] = break_reason
        return reply, prompt

    async def _spliced_prompt(
        self, client: PacedOpenAI, request: Json, rendered: Json, turns: list[Turn]
    ) -> tuple[SplicedPrompt | None, str | None]:
        """Return the prompt that continues the earlier turns, or the reason why it cannot."""
        ids = token_transport.rendered_ids(rendered, self.config.name)
        if not turns:
            return None, None
        template = [request.get("chat_template"), request.get("chat_template_kwargs")]
        key = (client.base_url, orjson.dumps(template, option=orjson.OPT_SORT_KEYS))
        if key not in self._template_ends:
            probes = token_transport.probe_requests(request)
            replies = await asyncio.gather(*(self.ask(client, "render", probe) for probe in probes))
            prompt, start, first, second = (token_transport.rendered_ids(each, self.config.name) for each in replies)
            self._template_ends[key] = TemplateEnds.of(prompt, start, (first, second))
        ends = self._template_ends[key]
        if ends is None:
            return None, "the chat template writes no token after an answer"
        remembered = remembered_turns()
        try:
            if remembered is not None and len(remembered.turns) >= len(turns):
                return splice_tokens(ids, *remembered, ends), None
            return splice(ids, turns, ends), None
        except CannotSplice as reason:
            return None, str(reason)

    async def add_token_fields(self, client: PacedOpenAI, payload: Json, reply: Json, prompt: list[int] | None) -> None:
        """Put token ids, log-probabilities and what else the engine reports on the message of the reply."""
        choice = first_choice(reply, self.config.name)
        fields = reply_body.take_generation_fields(reply, choice, self.config.keep_reply_fields)
        fields |= reply_body.take_token_fields(reply, choice, self.config.name)
        if "prompt_token_ids" not in fields:
            fields["prompt_token_ids"] = prompt if prompt is not None else await self.prompt_token_ids(client, payload)
        if request_body.is_constrained(payload):
            fields["constrained"] = True
        earlier = [message for message in payload["messages"] if has_token_fields(message)]
        if earlier and not continues(fields["prompt_token_ids"], Turn.of(earlier[-1])):
            fields.setdefault("break_reason", "the engine wrote the earlier answers from their text")
            self.report_break(fields["break_reason"])
        choice["message"].update(fields)

    def report_break(self, reason: str) -> None:
        """Log once for each reason that a prompt does not start with the tokens of the turns before it."""
        if reason not in self._reported_breaks:
            self._reported_breaks.add(reason)
            logger.warning(
                "%s: a prompt does not start with the tokens of the turns before it: %s. Such turns are marked with "
                "break_reason and begin a new sample. With vLLM 0.32 or later, --enable-scale-out and transport: "
                "tokens keep the tokens.",
                self.config.name,
                reason,
            )

    async def prompt_token_ids(self, client: PacedOpenAI, payload: Json) -> list[int]:
        """Return the token ids of a request's prompt, from the endpoint's tokenizer and chat template."""
        if self.config.use_completions_api and not self.config.render_chat_template:
            body: Json = {"model": self.config.model, "prompt": request_body.bare_prompt(payload["messages"])}
        else:
            body = request_body.tokenize_request(self.with_earlier_tokens(payload))
        tokens = (await self.ask(client, "tokenize", body)).get("tokens")
        if not isinstance(tokens, list):
            raise ModelFailed("the endpoint's /tokenize gave no tokens", where=self.config.name)
        return tokens

    async def ask(self, client: PacedOpenAI, call: Call, body: Json) -> Json:
        """Send one request to an endpoint and return its reply; a worker that keeps the tokens gets an admission."""
        handler = self._external_capture
        if handler is None or call != "chat_completion":
            return await self.send(client, call, body)
        return handler.take_coordinates(await self.send(client, call, handler.prepare_request(body)))

    async def send(self, client: PacedOpenAI, call: Call, body: Json) -> Json:
        """Send one request to an endpoint and return its reply unchanged, with an entry in the transport log."""
        send = getattr(client, f"create_{call}")
        if self._log is None:
            reply: Json = await send(**body)
            return reply
        started = time.monotonic()
        outcome: Json = {}
        try:
            reply = await send(**body)
            outcome = {"response": reply}
            return reply
        except (GymError, ClientResponseError) as error:
            content = getattr(error, "response_content", b"")
            outcome = {"error": str(error), "said": content.decode("utf-8", "replace")}
            raise
        finally:
            self._log.write(
                server=self.config.name,
                endpoint=client.base_url,
                call=call,
                request=body,
                seconds=time.monotonic() - started,
                **outcome,
            )


if __name__ == "__main__":
    VLLMModel.run_webserver()
