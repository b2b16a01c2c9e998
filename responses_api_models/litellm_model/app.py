"""litellm model: providers without an OpenAI-compatible endpoint, through the package litellm (extra `litellm`)."""

import asyncio
import importlib
import importlib.util
import os
from functools import cached_property
from types import ModuleType
from typing import Any

import orjson
from aiohttp import ClientResponseError, RequestInfo
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import Field
from yarl import URL

from nemo_gym.authoring.chat_model import ChatModel, ChatModelConfig
from nemo_gym.convert.chat_stream import CompletionBuilder
from nemo_gym.convert.chunk_repair import ChunkRepair
from nemo_gym.convert.json_access import new_id
from nemo_gym.errors import ConfigError, ConversionError, DeadlineExceeded, ModelFailed, ServerUnreachable
from nemo_gym.serve.event_stream import Emit
from nemo_gym.transport import deadlines

Json = dict[str, Any]

TOO_LONG = "the prompt exceeds the context length: "


class LiteLLMModelConfig(ChatModelConfig):
    api_key: str | None = None
    """Unset: litellm reads the variables of the provider."""
    api_base: str | None = None
    """Address of the provider; unset: the one that litellm knows."""
    litellm_kwargs: dict[str, Any] = {}
    """Further arguments of `litellm.acompletion`, such as `aws_region_name`."""
    num_retries: int = Field(default=3, ge=0)
    """Attempts of litellm after a failed one."""
    max_concurrent_requests: int = Field(default=64, ge=1)


class LiteLLMModel(ChatModel):
    """Answers with `litellm.acompletion`."""

    HOSTING = "process"  # the package takes seconds and 200 MB to import
    SESSION_POLICY = "stateless"  # no state between requests, so no session cookie
    REPORTS_EVERY_COUNT = True

    config: LiteLLMModelConfig

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if importlib.util.find_spec("litellm") is None:
            raise ConfigError(
                "the package litellm is not installed",
                where=self.config.name,
                fix="pip install 'nemo-gym[litellm]'",
            )
        _ = self._litellm

    @cached_property
    def _litellm(self) -> ModuleType:
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise it downloads a table of prices
        litellm = importlib.import_module("litellm")
        litellm.suppress_debug_info = True
        litellm.drop_params = True  # options that a provider does not have
        return litellm

    @cached_property
    def _api_error(self) -> type[Exception]:
        """The base class of litellm's errors about a provider, which is that of its client package."""
        error: type[Exception] = importlib.import_module("openai").APIError
        return error

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.config.max_concurrent_requests)

    async def complete(self, payload: Json) -> Json:
        return as_plain(await self._call(payload))

    async def stream(self, payload: Json, emit: Emit) -> Json:
        builder, repair = CompletionBuilder(), ChunkRepair(new_id)
        chunks = await self._call({**payload, "stream": True, "stream_options": {"include_usage": True}})
        try:
            async for piece in chunks:
                chunk = repair.repair(as_plain(piece))
                builder.add(chunk)
                await emit(chunk)
            return builder.completion()
        except ConversionError as error:
            raise ModelFailed(error.problem, where=self.config.name) from error
        except self._api_error as error:
            raise self._failure(error) from error

    async def _call(self, payload: Json) -> Any:
        """Call litellm with the settings of the configuration, within the deadline of the rollout."""
        options = {**self.config.litellm_kwargs, **payload, "num_retries": self.config.num_retries}
        options |= {"api_key": self.config.api_key, "api_base": self.config.api_base}
        options |= {"timeout": deadlines.seconds_left()}
        arguments = {name: value for name, value in options.items() if value is not None}
        async with self._slots:
            try:
                return await self._litellm.acompletion(**arguments)
            except self._api_error as error:
                raise self._failure(error) from error

    def _failure(self, error: Any) -> Exception:
        """Return an exception of litellm as the failure that other model servers raise for the same reason."""
        errors = self._litellm.exceptions
        message = str(getattr(error, "message", error))
        if isinstance(error, errors.Timeout):
            return DeadlineExceeded(f"the provider did not answer in time: {message}", where=self.config.name)
        if isinstance(error, errors.APIConnectionError):
            return ServerUnreachable(message, where=self.config.name)
        if isinstance(error, errors.ContextWindowExceededError):
            message = TOO_LONG + message
        url = URL(self.config.api_base or "http://litellm")
        info = RequestInfo(url, "POST", CIMultiDictProxy(CIMultiDict()), url)
        refusal = ClientResponseError(info, (), status=int(getattr(error, "status_code", 500) or 500), message=message)
        body = {"error": {"message": message, "type": type(error).__name__}}
        refusal.response_content = orjson.dumps(body)  # type: ignore[attr-defined]  # as in `raise_for_status`
        return refusal


def as_plain(answer: Any) -> Json:
    """Return an answer of litellm as JSON data without unset fields."""
    plain: Json = answer.model_dump(mode="json", exclude_none=True)
    return plain


if __name__ == "__main__":
    LiteLLMModel.run_webserver()
