"""What a vLLM model server can be configured with."""

from typing import Any

from pydantic import Field, field_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: str | list[str]
    """One endpoint or several, up to and including `/v1`. A conversation stays with the endpoint it began with."""
    api_key: str
    model: str
    """The model every request asks for, whatever the caller wrote."""
    return_token_id_information: bool
    """Put prompt ids, generated ids and their log-probabilities on the answer, as trainers need them."""
    uses_reasoning_parser: bool
    """Thoughts are told apart from the answer, here and at the endpoint."""

    uses_interleaved_reasoning: bool = True
    """Show the model its earlier thoughts. Off: they are left out of the conversation."""
    preserve_reasoning_in_assistant_content: bool = False
    """Send earlier thoughts as `<think>` text inside the message instead of in its reasoning field."""
    sequential_reasoning_allowed: bool = True
    """Off: a conversation with two thoughts in a row is refused, for chat templates that print only one."""
    replace_developer_role_with_system: bool = False

    request_prompt_and_generation_token_ids: bool = False
    """Ask with vLLM's `return_token_ids`. Off: ids are read from the log-probabilities and from `/tokenize`."""

    chat_template_kwargs: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    """Fields added to each request; what the caller sets wins."""
    sampling_overrides: dict[str, Any] = {}
    """Fields of each request that are set whatever the caller says."""
    default_headers: dict[str, str] = {}
    max_concurrent_requests: int | None = Field(default=None, ge=1)
    """Requests sent at the same time to each endpoint by this process; unlimited when unset."""

    is_responses_native: bool = False
    """The endpoint answers `/v1/responses` itself."""
    use_completions_api: bool = False
    """Ask `/v1/completions`: for base models, or with `render_chat_template` for prompts made here."""
    render_chat_template: bool = False
    """With `use_completions_api`: the prompt is the conversation through the chat template. Off: its bare text."""
    tokenizer: str | None = None
    """Render with this tokenizer of the `transformers` package instead of the endpoint's `/tokenize`."""
    audio_root: str | None = None
    """Folder of the audio files that requests name; nothing outside it is read."""

    @field_validator("chat_template_kwargs", "extra_body", "sampling_overrides", "default_headers", mode="before")
    @classmethod
    def _nothing_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value

    @field_validator("base_url")
    @classmethod
    def _as_list(cls, value: str | list[str]) -> list[str]:
        urls = [value] if isinstance(value, str) else value
        if not urls:
            raise ValueError("at least one endpoint is needed")
        return urls
