"""Options that endpoints accept and our request types do not declare: known names, and request types that keep them.

Most are options of inference engines (vLLM, SGLang), which SDKs send as `extra_body`; some are hints of the OpenAI API.
They are not fields of the request types, because those are validated and stored with every rollout.
"""

from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

Params = TypeVar("Params", bound=BaseModel)

ENGINE_OPTIONS = frozenset(
    {
        # sampling
        "allowed_token_ids", "bad_words", "frequency_penalty", "ignore_eos", "length_penalty", "logit_bias", "min_p",
        "min_tokens", "presence_penalty", "prompt_logprobs", "repetition_penalty", "seed", "stop", "stop_token_ids",
        "top_a", "top_k", "use_beam_search",
        # text of prompt and answer
        "add_generation_prompt", "add_special_tokens", "chat_template", "chat_template_kwargs",
        "continue_final_message", "documents", "enable_thinking", "include_stop_str_in_output", "include_reasoning",
        "mm_processor_kwargs", "separate_reasoning", "skip_special_tokens", "spaces_between_special_tokens",
        "reasoning", "thinking", "thinking_token_budget", "truncate_prompt_tokens",
        # grammar
        "ebnf", "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex",
        "json_schema", "regex", "structural_tag", "structured_outputs",
        # what the engine returns, and how it schedules
        "cache_salt", "kv_transfer_params", "logprobs", "priority", "request_id", "return_token_ids",
        "return_tokens_as_token_ids", "vllm_xargs",
        # the OpenAI API
        "context_management", "conversation", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    }
)  # fmt: skip


@cache
def with_engine_options(params: type[Params]) -> type[Params]:
    """Return the request type `params`, with unknown fields kept; callers pass it engine options only."""
    namespace: dict[str, Any] = {
        "model_config": ConfigDict(extra="allow"),
        "__module__": params.__module__,
        "__doc__": params.__doc__,
    }
    return type(params.__name__, (params,), namespace)
