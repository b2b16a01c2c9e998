"""Where instances are, and how their blocks are validated."""

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from nemo_gym.errors import ConfigError, ServerRefNotFoundError
from nemo_gym.serve.addresses import (
    Address,
    address_of,
    base_url,
    entrypoint_of,
    validate_config,
)

CONFIG = OmegaConf.create(
    {
        "default_host": "127.0.0.1",
        "sums": {"resources_servers": {"sums_impl": {"entrypoint": "app.py", "host": "${default_host}", "port": 5}}},
        "unplaced": {"resources_servers": {"x": {"entrypoint": "app.py"}}},
    }
)


def test_an_instance_is_found_by_its_id_with_interpolations_resolved():
    """A call by name must reach the server even if its host and port are references to other values."""
    assert address_of(CONFIG, "sums") == Address("sums", "resources_servers", "127.0.0.1", 5)
    assert address_of(CONFIG, "sums").base_url == "http://127.0.0.1:5"
    assert entrypoint_of(CONFIG, "sums") == "resources_servers/sums_impl/app.py"


def test_an_ipv6_address_gets_its_brackets():
    """Without brackets the port would be read as part of the address and every call fail."""
    assert base_url("::1", 5) == "http://[::1]:5"


@pytest.mark.parametrize("name", ["sums_impl", "default_host", "", "nope"])
def test_an_unknown_name_is_refused_with_those_that_exist(name):
    """The implementation's name instead of the instance id is the usual mistake."""
    with pytest.raises(ServerRefNotFoundError, match="sums, unplaced"):
        address_of(CONFIG, name)


def test_an_instance_without_address_says_so():
    """A config that was resolved offline has no ports; the user must learn that, not see a KeyError."""
    with pytest.raises(ConfigError, match="unplaced: the instance has no host and port"):
        address_of(CONFIG, "unplaced")


class Config(BaseModel):
    port: int
    api_key: int


def test_a_config_that_does_not_fit_names_the_fields_and_no_value():
    """Values may be secrets; names never are."""
    with pytest.raises(ConfigError) as caught:
        validate_config(Config, {"port": "x", "api_key": "sk-secret-1"}, instance="sums")

    assert "sums: not a valid Config" in str(caught.value)
    assert "port" in str(caught.value) and "api_key" in str(caught.value)
    assert "sk-secret-1" not in str(caught.value)
    assert validate_config(Config, {"port": 1, "api_key": 2}, instance="sums").port == 1


def test_a_misspelt_key_is_told_when_the_server_loads_its_block(caplog: pytest.LogCaptureFixture) -> None:
    """A server in a separate process is not imported by `gym env validate`; this is where its typos show."""

    class Config(BaseModel):
        tolerance: float = 1.0

    with caplog.at_level("WARNING", "nemo_gym.serve"):
        validate_config(Config, {"tolerence": 2.0}, instance="sums")

    assert "sums: 'tolerence' is not a field of Config — did you mean 'tolerance'?" in caplog.text
