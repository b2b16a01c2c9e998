"""The configuration of a vLLM model server."""

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: str | list[str]
    """One endpoint or several, up to and including `/v1`. A conversation stays with its first endpoint."""
    api_key: str
    model: str
    """Model name in every request; replaces the name that the caller sent."""
    return_token_id_information: bool
    """Add prompt ids, generated ids and log-probabilities to the reply, as trainers need them."""
    uses_reasoning_parser: bool
    """Separate reasoning from the answer, here and at the endpoint."""

    uses_interleaved_reasoning: bool = True
    """Send earlier reasoning to the model. False: remove it from the conversation."""
    preserve_reasoning_in_assistant_content: bool = False
    """Send earlier reasoning as `<think>` text in the message instead of in its reasoning field."""
    sequential_reasoning_allowed: bool = True
    """False: refuse a conversation with two reasoning blocks in a row, for chat templates that keep only one."""
    replace_developer_role_with_system: bool = False

    request_prompt_and_generation_token_ids: bool = False
    """Request ids with vLLM's `return_token_ids`. False: read them from the log-probabilities and `/tokenize`."""
    transport: Literal["chat", "tokens", "auto"] = "chat"
    """How a conversation continues: `chat` sends its text (the engine may continue from the ids of the last answer),
    `tokens` sends token ids that contain every earlier answer as sampled (vLLM with --enable-scale-out), `auto` uses
    `tokens` where the endpoint has it, otherwise `chat`. The last two need `return_token_id_information`."""
    supply_prefix_token_ids: bool = False
    """Send the captured tokens that a call continues as `required_prefix_token_ids`, for engines that begin the prompt
    with them (NeMo RL). Needs `return_token_id_information` and token id capture."""
    keep_reply_fields: list[str] = []
    """Further fields of the engine's choices and messages to keep beside the token ids, in `engine_fields`."""

    chat_template_kwargs: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    """Fields added to each request; fields that the caller sends take precedence."""
    sampling_overrides: dict[str, Any] = {}
    """Fields set in each request; they take precedence over the caller's."""
    default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Concurrent requests to each endpoint in the whole run; unlimited if unset."""

    is_responses_native: bool = False
    """The endpoint implements `/v1/responses`."""
    use_completions_api: bool = False
    """Use `/v1/completions`: for base models, or with `render_chat_template` for prompts rendered here."""
    render_chat_template: bool = False
    """With `use_completions_api`: render the prompt with the chat template. False: send the bare text."""
    tokenizer: str | None = None
    """Render with this tokenizer of the `transformers` package instead of the endpoint's `/tokenize`."""
    audio_root: str | None = None
    """Folder of the audio files that requests name; files outside it are refused."""

    @field_validator("chat_template_kwargs", "extra_body", "sampling_overrides", "default_headers", mode="before")
    @classmethod
    def _none_as_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _check_token_settings(self) -> Self:
        chosen = {f"transport: {self.transport}": self.transport != "chat"}
        chosen["supply_prefix_token_ids"] = self.supply_prefix_token_ids
        for name in (name for name, is_set in chosen.items() if is_set):
            if not self.return_token_id_information:
                raise ValueError(f"{name} needs return_token_id_information: true")
            for setting in ("is_responses_native", "use_completions_api"):
                if getattr(self, setting):
                    raise ValueError(f"{name} cannot be used with {setting}; leave one of them out")
        return self

    @field_validator("base_url")
    @classmethod
    def _as_list(cls, value: str | list[str]) -> list[str]:
        urls = [value] if isinstance(value, str) else value
        if not urls:
            raise ValueError("at least one endpoint is needed")
        return urls
