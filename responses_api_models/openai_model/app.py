"""OpenAI model: forward Responses and chat requests to an OpenAI-compatible endpoint."""

from nemo_gym.authoring.endpoint_model import EndpointModel, EndpointModelConfig


class SimpleModelServerConfig(EndpointModelConfig):
    pass


class SimpleModelServer(EndpointModel):
    HOSTING = "cell"

    config: SimpleModelServerConfig


if __name__ == "__main__":
    SimpleModelServer.run_webserver()
