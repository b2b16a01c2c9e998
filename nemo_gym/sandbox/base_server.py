"""The base class of servers that run model-written code.

Such a server starts only if programs can be isolated (or `allow_unsandboxed` is set) and kills all boxes at shutdown.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from fastapi import FastAPI
from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.sandbox.config import resolve_provider_config
from nemo_gym.sandbox.python import PythonRunner, require_isolation


class SandboxServerConfig(BaseResourcesServerConfig):
    sandbox: str | dict[str, Any] | None = None
    """A sandbox block: its name or the block itself. Default: the provider `local`."""
    allow_unsandboxed: bool = False
    """Run model-written code without isolation on machines that cannot isolate; results then have `isolated: false`."""
    memory_limit_mib: int = Field(default=1024, ge=32)
    """Memory limit of one program."""


class SandboxServer(SimpleResourcesServer):
    """Owns a `PythonRunner` from start-up to shutdown; the first boxes are created at start-up."""

    HOSTING = "cell"
    MAX_OUTPUT_BYTES: ClassVar[int] = 1 << 20

    config: SandboxServerConfig
    _runner: PythonRunner = PrivateAttr()
    _is_isolated: bool = PrivateAttr(default=False)
    """False if programs run without isolation."""

    def model_post_init(self, context: Any, /) -> None:
        """Check the isolation and create the runner.

        Raises:
            SandboxUnsupportedError: this machine cannot isolate programs and `allow_unsandboxed` is not set.
        """
        super().model_post_init(context)
        self._is_isolated = require_isolation(self.config)
        provider = None
        if self.config.sandbox is not None:  # only then: tests of existing folders have clients without a configuration
            provider = resolve_provider_config(self.config.sandbox, self.server_client.global_config_dict)
        self._runner = PythonRunner(
            provider, allow_unsandboxed=self.config.allow_unsandboxed, max_output_bytes=self.MAX_OUTPUT_BYTES
        )

    def setup_webserver(self) -> FastAPI:
        """Build the application; its lifespan starts and closes the runner."""
        app = super().setup_webserver()
        inner_lifespan = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan_with_runner(application: Any) -> AsyncIterator[Any]:
            try:
                await self._runner.start()
                async with inner_lifespan(application) as state:
                    yield state
            finally:
                await self.aclose()

        app.router.lifespan_context = lifespan_with_runner
        return app

    async def aclose(self) -> None:
        """Kill every box. Idempotent."""
        await self._runner.aclose()
