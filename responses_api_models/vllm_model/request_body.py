"""Build the requests that vLLM expects, as dictionaries, and their prompts."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException

from nemo_gym.convert.chat_conversation import SplitThoughts, wrap_in_think_tags
from nemo_gym.convert.chat_stream import reasoning_text
from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.serve.chat_engines import settings_in_metadata
from nemo_gym.wire.base import GENERATION_FIELDS, TOKEN_FIELDS, has_token_fields
from responses_api_models.vllm_model.settings import VLLMModelConfig

Json = dict[str, Any]
Render = Callable[[Json], list[int]]
"""Function from a chat request to the token ids of its prompt."""

_CHAT_ONLY = frozenset(
    {
        "chat_template_kwargs",
        "function_call",
        "functions",
        "logprobs",
        "max_completion_tokens",
        "messages",
        "metadata",
        "modalities",
        "parallel_tool_calls",
        "prompt_cache_key",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "tool_choice",
        "tools",
        "top_logprobs",
        "verbosity",
        "web_search_options",
    }
)


_GRAMMAR_FIELDS = (
    "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "structural_tag",
    "json_schema", "regex", "ebnf",
)  # fmt: skip
"""Fields of a request that restrict the tokens of the answer, as vLLM and SGLang name them."""
_ITEM_FIELDS = frozenset({*TOKEN_FIELDS, *GENERATION_FIELDS})


def with_settings(config: VLLMModelConfig, body: Json) -> Json:
    """Apply the settings of configuration and metadata to `body`, a chat or a native Responses request.

    In increasing precedence: the configured extra body, the caller's fields, the metadata, the configured overrides.
    """
    extra, template, metadata = settings_in_metadata(body.get("metadata") or {})
    request = {**config.extra_body, **body, **extra}
    request.pop("metadata", None)
    if metadata:
        request["metadata"] = metadata
    own_arguments = request.get("chat_template_kwargs") or {}
    if not isinstance(own_arguments, dict):
        raise HTTPException(400, "chat_template_kwargs is not an object")
    arguments = {**config.chat_template_kwargs, **own_arguments, **template}
    if arguments:
        request["chat_template_kwargs"] = arguments
    return {**request, **config.sampling_overrides, "model": config.model}


def template_key(body: NeMoGymResponseCreateParamsNonStreaming) -> str:
    """Return a text that is the same for requests with the same arguments of the chat template."""
    metadata = body.metadata or {}
    return repr((getattr(body, "chat_template_kwargs", None), metadata.get("chat_template_kwargs"), body.reasoning))


def with_token_ids(config: VLLMModelConfig, request: Json) -> Json:
    """Add the fields that request token ids and log-probabilities."""
    field = "return_token_ids" if config.request_prompt_and_generation_token_ids else "return_tokens_as_token_ids"
    return {**request, "logprobs": True, field: True}


def without_token_fields(messages: list[Json], *, keep_last: bool = False) -> list[Json]:
    """Remove token and generation fields from messages, except the token fields of the last answer that has any.

    An engine that continues from token ids reads those of the last answer only; ids of every answer would make the
    requests of a long rollout many times larger.
    """
    last = max((index for index, message in enumerate(messages) if has_token_fields(message)), default=-1)
    return [
        {
            name: value
            for name, value in message.items()
            if name not in _ITEM_FIELDS or (keep_last and index == last and name in TOKEN_FIELDS)
        }
        if message.get("role") == "assistant"
        else message
        for index, message in enumerate(messages)
    ]


def is_constrained(request: Json) -> bool:
    """Return whether the engine restricts the tokens of the answer by a grammar.

    The log-probabilities are then those after the restriction, which a trainer cannot compute.
    """
    choice = request.get("tool_choice")
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools", choice)  # nested in the Chat API
        choice = allowed.get("mode") if choice.get("type") == "allowed_tools" else "required"
    texts = (request.get("response_format"), (request.get("text") or {}).get("format"))
    formats = {text.get("type", "text") for text in texts if isinstance(text, dict)}
    tools = [tool.get("function", tool) for tool in request.get("tools") or []] if choice != "none" else []
    return (
        choice == "required"
        or not formats <= {"text"}
        or any(tool.get("strict") for tool in tools)
        or any(request.get(name) is not None for name in _GRAMMAR_FIELDS)
    )


def with_messages(config: VLLMModelConfig, messages: list[Json], split_thoughts: SplitThoughts) -> list[Json]:
    """Write roles and reasoning in the form that the endpoint's chat template reads."""
    return [_message(config, message, split_thoughts) for message in messages]


def _message(config: VLLMModelConfig, message: Json, split_thoughts: SplitThoughts) -> Json:
    role = message.get("role")
    if role == "developer" and config.replace_developer_role_with_system:
        return {**message, "role": "system"}
    content = message.get("content") or ""
    if role != "assistant" or not config.uses_reasoning_parser or not isinstance(content, str):
        return message
    separate = reasoning_text(message)
    thoughts, text = ([separate], content) if separate else split_thoughts(content)
    if not thoughts:
        return message
    if len(thoughts) > 1 and not config.sequential_reasoning_allowed:
        raise HTTPException(400, f"the conversation has {len(thoughts)} thoughts in a row; this model takes one")
    rewritten = {**message, "content": text or (None if message.get("tool_calls") else "")}
    rewritten = {name: value for name, value in rewritten.items() if name not in ("reasoning", "reasoning_content")}
    if config.uses_interleaved_reasoning and config.preserve_reasoning_in_assistant_content:
        return {**rewritten, "content": wrap_in_think_tags(thoughts) + text} if separate else message
    if config.uses_interleaved_reasoning:
        # vLLM renamed the field; each version reads one of the two.
        rewritten["reasoning_content"] = rewritten["reasoning"] = "\n".join(thoughts)
    return rewritten


def tokenize_request(request: Json) -> Json:
    """Build the `/tokenize` request for the prompt of a chat request."""
    keys = (
        "model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs",
        "required_prefix_token_ids",
    )  # fmt: skip
    return {key: request[key] for key in keys if request.get(key) is not None}


def bare_prompt(messages: list[Json]) -> str:
    """Return the bare text of a conversation, for models without a chat template.

    Raises:
        HTTPException: 400, a message has other content than text.
    """
    texts = []
    for message in messages:
        content = message.get("content") or ""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message.get("tool_calls") or any(part.get("type") != "text" for part in parts):
            raise HTTPException(400, "without a chat template a prompt can hold text only; set render_chat_template")
        texts.append("".join(part["text"] for part in parts))
    return "\n\n".join(texts)


def completion_request(request: Json, prompt: str | list[int]) -> Json:
    """Convert a chat request to a text completion request with this prompt.

    Raises:
        HTTPException: 400, it has tools, whose calls could not be parsed.
    """
    if request.get("tools") and isinstance(prompt, str):
        raise HTTPException(400, "without a chat template there are no tools; set render_chat_template")
    completion = {key: value for key, value in request.items() if key not in _CHAT_ONLY}
    limit = request.get("max_completion_tokens")
    if limit is not None:
        completion["max_tokens"] = limit
    if request.get("logprobs"):
        completion["logprobs"] = request.get("top_logprobs") or 1
    return {**completion, "prompt": prompt}


def local_render(tokenizer: str, where: str) -> Render:
    """Return a function that renders with a tokenizer of the `transformers` package, loaded on first use.

    Raises:
        ConfigError: the package is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"tokenizer {tokenizer!r} needs the package transformers, which is not installed",
            where=where,
            fix="pip install transformers, or leave `tokenizer` out to render with the endpoint's /tokenize",
        )
    loaded: list[Any] = []

    def render(request: Json) -> list[int]:
        if not loaded:
            transformers = importlib.import_module("transformers")  # takes seconds, so only on first use
            loaded.append(transformers.AutoTokenizer.from_pretrained(tokenizer))
        ids = loaded[0].apply_chat_template(
            request["messages"],
            tools=request.get("tools"),
            tokenize=True,
            return_dict=False,
            **{"add_generation_prompt": True, **(request.get("chat_template_kwargs") or {})},
        )
        return [int(token) for token in ids]

    return render
