from unittest.mock import MagicMock

from fastapi.testclient import TestClient

from nemo_gym.server_utils import ServerClient
from responses_api_models.echo_model.app import EchoModel, EchoModelConfig


def test_responses() -> None:
    config = EchoModelConfig(host="0.0.0.0", port=8080, entrypoint="", name="echo")
    server = EchoModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))
    client = TestClient(server.setup_webserver())

    answer = client.post("/v1/responses", json={"input": "hi", "prompt_cache_key": "k"}).json()

    assert answer["output"][0]["content"][0]["text"] == "hi"
