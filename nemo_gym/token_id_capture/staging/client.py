"""Client of the control route: reads the ledger of a rollout from its model server."""

from typing import Self

import aiohttp

from nemo_gym.errors import GymError
from nemo_gym.token_id_capture.staging.records import RolloutManifest

MANIFEST_PATH = "/training-token-capture/control/rollouts/{rollout_id}/manifest"


class ControlRequestFailed(GymError, RuntimeError):
    """The control route of a model server refused a request."""


class RolloutControlClient:
    """Reads manifests from a model server. Use it in an `async with` block, or close it."""

    def __init__(self, base_url: str, *, auth_token: str, request_timeout_s: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {auth_token}"}
        self._timeout = aiohttp.ClientTimeout(total=request_timeout_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def manifest(self, rollout_id: str) -> RolloutManifest:
        """Return the ledger rows and failures of a rollout.

        Raises:
            ControlRequestFailed: the server refused the request.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        url = self.base_url + MANIFEST_PATH.format(rollout_id=rollout_id)
        async with self._session.get(url, headers=self._headers) as reply:
            body = await reply.read()
            if reply.status != 200:
                raise ControlRequestFailed(f"status {reply.status}: {body[:200].decode(errors='replace')}", where=url)
        return RolloutManifest.model_validate_json(body)
