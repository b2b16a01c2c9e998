"""Local vLLM model: starts vLLM on this machine, answers like `vllm_model`, and stops vLLM with the run."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import Field, PrivateAttr, field_validator

from nemo_gym.transport.model_client import PacedOpenAI
from responses_api_models.local_vllm_model.engine import LocalEngine
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

logger = logging.getLogger("nemo_gym.local_vllm_model")


class LocalVLLMModelConfig(VLLMModelConfig):
    """The settings of `vllm_model`; the address and the key are those of the engine that the server starts."""

    base_url: str | list[str] = Field(default_factory=list, max_length=0)
    """Unused: the engine gets a free port."""
    api_key: str = Field(default="", max_length=0)
    """Unused: the engine gets a random key."""
    vllm_serve_kwargs: dict[str, Any] = {}
    """Flags of `vllm serve`, for example `{tensor_parallel_size: 2, max_model_len: 32768}`."""
    vllm_serve_env_vars: dict[str, str] = {}
    """Environment variables of vLLM."""
    vllm_command: list[str] = Field(default=["vllm", "serve"], min_length=1)
    """Program that serves a model, with the words before the name of the model."""
    hf_home: str | None = None
    """Folder of downloaded models (`HF_HOME`)."""
    start_timeout_seconds: float = Field(default=3600.0, gt=0)
    """Longest time to load the model; the run waits `server_start_timeout_seconds` for its servers."""

    @field_validator("base_url")
    @classmethod
    def _as_list(cls, value: str | list[str]) -> list[str]:
        return list(value)

    @field_validator("vllm_serve_env_vars", mode="before")
    @classmethod
    def _as_texts(cls, value: Any) -> Any:
        return {name: str(one) for name, one in value.items()} if isinstance(value, dict) else value


class LocalVLLMModel(VLLMModel):
    """Starts vLLM with the server and stops it with the server."""

    HOSTING = "process"  # type: ignore[assignment]  # unlike its base, it has a child process

    config: LocalVLLMModelConfig
    _engine: LocalEngine = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Prepare the engine."""
        env = dict(self.config.vllm_serve_env_vars)
        if self.config.hf_home is not None:
            env["HF_HOME"] = self.config.hf_home
        self._engine = LocalEngine(
            self.config.vllm_command, self.config.model, self.config.vllm_serve_kwargs, env, where=self.config.name
        )
        super().model_post_init(context)

    def make_clients(self) -> list[PacedOpenAI]:
        """Create the client of the engine. The configuration stays that of the run: it is part of cache keys."""
        return [
            PacedOpenAI(
                name=self.config.name,
                base_url=self._engine.url,
                api_key=self._engine.api_key,
                default_headers=self.config.default_headers,
                max_concurrent_requests=self.config.max_concurrent_requests,
            )
        ]

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.router.lifespan_context = self._lifespan
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """Start the engine before the server is ready; stop it before the server ends."""
        watch: asyncio.Task[None] | None = None
        try:
            await self._engine.start()
            await self._engine.wait_until_ready(self.config.start_timeout_seconds)
            watch = asyncio.create_task(self._end_with_engine())
            yield
        finally:
            if watch is not None:
                watch.cancel()
            await self._engine.close()

    async def _end_with_engine(self) -> None:
        """End this process when the engine ends: the run starts both again, and the rollouts count no attempt."""
        await self._engine.wait_for_end()
        logger.error("%s", self._engine.failure())
        await self._engine.close()  # its workers may still hold the memory of the GPU
        os._exit(1)


if __name__ == "__main__":
    LocalVLLMModel.run_webserver()
