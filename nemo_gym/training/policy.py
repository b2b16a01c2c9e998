"""`Policy`: the engine that serves the model being trained, as a session sees it.

A session reads the configuration of the model server from the policy (`overrides`), pauses the engine around a weight
update, and tells it the version of its new weights. How the weights get there is the trainer's business.
"""

import re
from typing import Any, Self

from aiohttp import ClientError

from nemo_gym.errors import GymError, ModelFailed
from nemo_gym.server_utils import get_response_json, raise_for_status, request
from nemo_gym.transport import deadlines

_COUNTER = re.compile(rb"^vllm:generation_tokens_total(?:\{[^\n]*\})? ([0-9.e+]+)\s*$", re.MULTILINE)
"""Matches the line of vLLM's metrics with the tokens that one engine has generated."""
CONTROL_SECONDS = 60.0
"""Time for a control request to the engine; a pause may have to wait for the running step."""


class Policy:
    """An endpoint that speaks an OpenAI API. The engine cannot be paused; the session keeps the version itself."""

    def __init__(self, base_url: str, model_name: str, *, api_key: str = "none") -> None:
        self.base_url = base_url
        self.model_name = model_name
        self._api_key = api_key
        self._version: int | None = None

    @classmethod
    def endpoint(cls, url: str, model_name: str, *, api_key: str = "none") -> Self:
        """Return the policy behind any endpoint, given the URL that ends in `/v1`."""
        return cls(url, model_name, api_key=api_key)

    @staticmethod
    def vllm(url: str, model_name: str, *, api_key: str = "none") -> "VllmPolicy":
        """Return the policy behind a vLLM server that runs with `VLLM_SERVER_DEV_MODE=1`."""
        return VllmPolicy(url, model_name, api_key=api_key)

    def overrides(self) -> dict[str, Any]:
        """Return the configuration keys by which the model server finds the engine."""
        return {
            "policy_base_url": self.base_url,
            "policy_api_key": self._api_key,
            "policy_model_name": self.model_name,
        }

    async def pause(self) -> None:
        """Stop generating until `resume`; requests in flight wait."""

    async def resume(self) -> None:
        """Go on after `pause`."""

    async def set_version(self, version: int) -> None:
        """Set the version that the engine reports with what it generates from now on."""
        self._version = version

    async def version(self) -> int | None:
        """Return the version of the weights; None if the engine does not report a number."""
        return self._version

    async def tokens_generated(self) -> int | None:
        """Return the number of tokens that the engine has generated since its start; None if it does not report it."""
        return None


class VllmPolicy(Policy):
    """vLLM: pause freezes the requests in flight, which go on with the new weights after resume."""

    async def pause(self) -> None:
        await self._control("POST", "/pause", params={"mode": "keep"})

    async def resume(self) -> None:
        await self._control("POST", "/resume")

    async def set_version(self, version: int) -> None:
        await self._control("POST", "/update_weight_version", json={"new_version": str(version)})
        self._version = version

    async def version(self) -> int | None:
        answer = await self._control("GET", "/weight_info")
        version = str(answer.get("weight_version"))
        return int(version) if version.isdecimal() else None

    async def tokens_generated(self) -> int | None:
        try:
            with deadlines.time_limit(CONTROL_SECONDS):
                response = await self._request("GET", "/metrics")
                counts = _COUNTER.findall(await response.read()) if response.status == 200 else []
        except (ClientError, GymError):
            return None  # the metrics of vLLM can be switched off
        return int(sum(map(float, counts))) if counts else None

    async def _request(self, method: str, path: str, **options: Any) -> Any:
        url = self.base_url.rstrip("/").removesuffix("/v1") + path
        headers = {"Authorization": f"Bearer {self._api_key}"}
        return await request(method, url, callee="vLLM", headers=headers, **options)

    async def _control(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Call a control endpoint of the engine.

        Raises:
            ModelFailed: the engine does not answer, or refuses.
        """
        try:
            with deadlines.time_limit(CONTROL_SECONDS):
                response = await self._request(method, path, **options)
                await raise_for_status(response)
                answer = await get_response_json(response)
        except (ClientError, GymError, ValueError) as error:
            raise ModelFailed(
                f"{method} {path} failed: {error}", where=self.base_url, fix="start vLLM with VLLM_SERVER_DEV_MODE=1"
            ) from error
        return answer if isinstance(answer, dict) else {}
