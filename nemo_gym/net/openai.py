"""A client for OpenAI-compatible endpoints that returns plain dictionaries.

Calls to a model keep no state on the other side, so they may be repeated after a lost connection. Rate limits and
gateway errors are waited out within `MODEL_CALL`'s budget; a plain 500 gets three tries, because it is often final.
"""

import asyncio
from typing import Any

from aiohttp import ClientPayloadError, ClientResponse
from pydantic import BaseModel, Field
from pydantic_core import from_json

from nemo_gym.config.secrets import Secret
from nemo_gym.errors import ModelFailed, ServerUnreachable
from nemo_gym.net.client import send
from nemo_gym.net.health import describe
from nemo_gym.net.retry import MODEL_CALL
from nemo_gym.net.status import is_ok, raise_for_status, read_body

RATE_LIMIT_ERROR_CODES = sorted(MODEL_CALL.statuses)
RETRY_ERROR_CODES = [*RATE_LIMIT_ERROR_CODES, *sorted(MODEL_CALL.few_attempts_statuses)]

BROKEN_BODY_TRIES = 3
"""An answer that breaks off in the middle is asked for again this often in all."""


class NeMoGymAsyncOpenAI(BaseModel):
    """`await client.create_response(model=…, input=…)`: keyword arguments are the JSON body, the result is a dict."""

    base_url: str
    api_key: Secret = Field(repr=False)
    internal: bool = False
    """The endpoint is a server of ours; kept for callers that set it, both kinds are called alike."""
    default_headers: dict[str, str] = Field(default_factory=dict, repr=False)

    async def create_models(self, **kwargs: Any) -> dict[str, Any]:
        """`GET /models`; keyword arguments become query parameters."""
        return await self._call("GET", "models", params=kwargs or None)

    async def create_chat_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "chat/completions", json=kwargs)

    async def create_completion(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "completions", json=kwargs)

    async def create_response(self, **kwargs: Any) -> dict[str, Any]:
        return await self._call("POST", "responses", json=kwargs)

    async def create_tokenize(self, **kwargs: Any) -> dict[str, Any]:
        """vLLM's `/tokenize`, which stands beside `/v1`, not below it."""
        root = self.base_url.rstrip("/").removesuffix("/v1")
        return await self._call("POST", "tokenize", root=root, json=kwargs)

    async def _call(self, method: str, path: str, *, root: str | None = None, **options: Any) -> dict[str, Any]:
        url = f"{(root or self.base_url).rstrip('/')}/{path}"
        for attempt in range(1, BROKEN_BODY_TRIES + 1):
            response = await self._request(method=method, url=url, **options)
            try:
                if not is_ok(response):
                    await raise_for_status(response)
                return _parsed(await read_body(response), url)
            except ClientPayloadError as error:
                if attempt == BROKEN_BODY_TRIES:
                    raise ServerUnreachable(f"the answer broke off ({describe(error)})", where=url) from error
                await asyncio.sleep(0)
        raise AssertionError("unreachable")  # pragma: no cover - the loop returns or raises

    async def _request(self, **options: Any) -> ClientResponse:
        """One call with the retries a model deserves; subclasses that add headers override this."""
        headers = {"Authorization": f"Bearer {self.api_key}", **self.default_headers, **(options.pop("headers", {}))}
        return await send(policy=MODEL_CALL, safe_to_repeat=True, headers=headers, **options)


def _parsed(body: bytes, url: str) -> dict[str, Any]:
    """The dictionary in a model's answer. NaN is let through: it does occur among log probabilities."""
    try:
        answer = from_json(body, allow_inf_nan=True)
    except ValueError as error:
        start = body[:200].decode("utf-8", errors="replace")
        raise ModelFailed(f"the answer is not JSON: {start!r}", where=url) from error
    if not isinstance(answer, dict):
        raise ModelFailed(f"the answer is JSON but not an object: {type(answer).__name__}", where=url)
    return answer
