"""Module-level names that outside tests replace: replacing one must change what happens.

The one of `nemo_gym.rollout_collection` is in `test_reference_servers.py`, where rollouts are collected.
"""

from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf

import nemo_gym.global_config
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.server_utils import ServerClient, get_server_url

CONFIG = {
    "head_server": {"host": "127.0.0.1", "port": 11007},
    "sums": {"resources_servers": {"sums": {"entrypoint": "app.py", "host": "127.0.0.1", "port": 12345, "level": 3}}},
}


def config() -> Any:
    return OmegaConf.create(CONFIG)


def test_ids_come_from_the_converters_own_uuid4(monkeypatch):
    """Converter tests compare whole dumps, which works only with ids they choose."""
    monkeypatch.setattr("nemo_gym.responses_converter.uuid4", lambda: SimpleNamespace(hex="123"))
    completion = NeMoGymChatCompletion.model_validate(
        {
            "id": "c",
            "created": 1,
            "model": "m",
            "object": "chat.completion",
            "choices": [
                {
                    "finish_reason": "stop",
                    "index": 0,
                    "message": {"role": "assistant", "content": "<think>hm</think>four"},
                }
            ],
        }
    )

    response = ResponsesConverter(return_token_id_information=False).chat_completion_to_response(
        NeMoGymResponseCreateParamsNonStreaming(input="2+2", model="m"), completion
    )

    assert response.id == "resp_123"
    assert [item.id for item in response.output] == ["rs_123", "msg_123"]


def test_server_utils_reads_the_configuration_through_its_own_name(monkeypatch):
    """`monkeypatch.setattr("nemo_gym.server_utils.get_global_config_dict", …)` is in a dozen test suites."""
    monkeypatch.setattr("nemo_gym.server_utils.get_global_config_dict", config)

    head = ServerClient.load_head_server_config()

    assert (head.host, head.port) == ("127.0.0.1", 11007)
    assert get_server_url("sums") == "http://127.0.0.1:12345"


class SumsConfig(BaseResourcesServerConfig):
    level: int


class Sums(SimpleResourcesServer):
    config: SumsConfig

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.0)


def test_a_servers_config_is_loaded_through_the_patched_name(monkeypatch):
    """The class annotation of `config` decides how the instance's block is read."""
    monkeypatch.setattr("nemo_gym.server_utils.get_global_config_dict", config)
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "sums")

    loaded = Sums.load_config_from_global_config()

    assert type(loaded) is SumsConfig
    assert (loaded.name, loaded.level, loaded.port) == ("sums", 3, 12345)


def test_the_cached_configuration_can_be_replaced(monkeypatch):
    """Tests put their own configuration where the process keeps it."""
    mine = config()
    monkeypatch.setattr("nemo_gym.global_config._GLOBAL_CONFIG_DICT", mine)

    assert nemo_gym.global_config.get_global_config_dict() is mine
    assert nemo_gym.global_config.maybe_get_global_config_dict() is mine


def test_an_emptied_cache_is_filled_from_the_environment(monkeypatch):
    """A server process gets its configuration from its parent through one variable."""
    monkeypatch.setattr("nemo_gym.global_config._GLOBAL_CONFIG_DICT", None)
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", OmegaConf.to_yaml(config()))

    assert nemo_gym.global_config.get_global_config_dict() == config()


def test_without_configuration_nothing_is_parsed_by_accident(monkeypatch):
    """`maybe_get…` never reads a command line that was meant for pytest."""
    monkeypatch.setattr("nemo_gym.global_config._GLOBAL_CONFIG_DICT", None)

    assert nemo_gym.global_config.maybe_get_global_config_dict() is None
