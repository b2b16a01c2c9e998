"""The base of servers that run code a model wrote: isolated or not started, and nothing left running at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.sandbox.config import resolve_provider_config
from nemo_gym.sandbox.python import PythonRunner, require_isolation


class BoxedConfig(BaseResourcesServerConfig):
    sandbox: str | dict[str, Any] | None = None
    """A sandbox block, by name or written in place (default: the provider `local`)."""
    allow_unsandboxed: bool = False
    """Run model-written code without isolation where there is none; every result then says `isolated: false`."""
    memory_limit_mib: int = Field(default=1024, ge=32)
    """Of one program."""


class BoxedServer(SimpleResourcesServer):
    """Has a `PythonRunner` for as long as it is served; the first boxes are made when it starts."""

    HOSTING = "cell"
    MAX_OUTPUT_BYTES: ClassVar[int] = 1 << 20

    config: BoxedConfig
    _runner: PythonRunner = PrivateAttr()
    _is_isolated: bool = PrivateAttr(default=False)
    """Whether programs are shut in here."""

    def model_post_init(self, context: Any, /) -> None:
        """
        Raises:
            SandboxUnsupportedError: there is no isolation here and `allow_unsandboxed` is not set.
        """
        super().model_post_init(context)
        self._is_isolated = require_isolation(self.config)
        self._runner = PythonRunner(
            self.provider(),
            allow_unsandboxed=self.config.allow_unsandboxed,
            max_output_bytes=self.MAX_OUTPUT_BYTES,
        )

    def provider(self) -> dict[str, dict[str, Any]] | None:
        if self.config.sandbox is None:
            return None
        return resolve_provider_config(self.config.sandbox, self.server_client.global_config_dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def until_closed(running: Any) -> AsyncIterator[Any]:
            try:
                await self._runner.start()
                async with inner(running) as state:
                    yield state
            finally:
                await self.aclose()

        app.router.lifespan_context = until_closed
        return app

    async def aclose(self) -> None:
        """End every box; a second call does nothing."""
        await self._runner.aclose()
