"""Azure OpenAI model: the OpenAI model with Azure's addresses, key header and API version."""

from typing import Any

from pydantic import Field

from nemo_gym.authoring.endpoint_model import EndpointModel, EndpointModelConfig
from nemo_gym.transport.model_client import PacedOpenAI


class AzureOpenAIModelConfig(EndpointModelConfig):
    """`openai_base_url` is `https://<resource>.openai.azure.com/openai/v1`, or without `/v1` for dated API versions."""

    openai_model: str
    """Name of the deployment."""
    api_version: str | None = None
    """For example `2025-04-01-preview`. Required for addresses without `/v1`."""
    default_query: dict[str, str] = Field(default_factory=dict)
    """Query parameters of every request; `api-version` here is the same as `api_version`."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.api_version is not None:
            self.default_query = {**self.default_query, "api-version": self.api_version}
        if not self.has_versioned_address and "api-version" not in self.default_query:
            raise ValueError("set api_version: only addresses that end in /v1 work without one")

    @property
    def has_versioned_address(self) -> bool:
        return self.openai_base_url.rstrip("/").endswith("/v1")


class AzureClient(PacedOpenAI):
    """A client that puts the deployment into chat addresses, as dated API versions expect."""

    deployment: str | None = None

    async def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        if self.deployment and path == "chat/completions":
            path = f"deployments/{self.deployment}/{path}"
        return await super()._call(method, path, **options)


class AzureOpenAIModel(EndpointModel):
    HOSTING = "cell"

    config: AzureOpenAIModelConfig

    def make_client(self) -> PacedOpenAI:
        return AzureClient(
            name=self.config.name,
            base_url=self.config.openai_base_url,
            api_key=self.config.openai_api_key,
            key_header="api-key",
            default_headers=self.config.openai_default_headers,
            default_query=self.config.default_query,
            max_concurrent_requests=self.config.max_concurrent_requests,
            deployment=None if self.config.has_versioned_address else self.config.openai_model,
        )


if __name__ == "__main__":
    AzureOpenAIModel.run_webserver()
