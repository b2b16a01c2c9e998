"""Azure OpenAI model: the OpenAI model with Azure's addresses, key header and API version."""

from typing import Any

from pydantic import Field

from nemo_gym.net.limits import PacedOpenAI
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig


class AzureOpenAIModelConfig(SimpleModelServerConfig):
    """`openai_base_url` is `https://<resource>.openai.azure.com/openai/v1`, or without `/v1` for dated API versions."""

    openai_model: str
    """The name of the deployment."""
    api_version: str | None = None
    """For example `2025-04-01-preview`. Required for addresses without `/v1`."""
    default_query: dict[str, str] = Field(default_factory=dict)
    """Sent in the address of each request; `api-version` here is the same as `api_version`."""

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
    """Chat has the deployment in its address where the API is chosen by date."""

    deployment: str | None = None

    async def create_chat_completion(self, **kwargs: Any) -> dict[str, Any]:
        place = f"deployments/{self.deployment}/" if self.deployment else ""
        return await self._call("POST", f"{place}chat/completions", json=kwargs)


class AzureOpenAIModel(SimpleModelServer):
    HOSTING = "cell"
    SESSION_POLICY = "stateless"  # nothing is kept between requests, so nobody need be recognised

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
