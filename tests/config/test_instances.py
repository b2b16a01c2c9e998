"""`server_instances`: the one walk over the server blocks of a configuration."""

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.instances import ServerInstance, instances_of, is_server_block, server_instances

CONFIG = {
    "head_server": {"host": "h", "port": 1},
    "note": "text",
    "policy_model": {"responses_api_models": {"openai_model": {"entrypoint": "app.py", "key": "${policy_api_key}"}}},
    "sums": {"resources_servers": {"sums": {"entrypoint": "app.py"}}, "extra": 1},
    "agent": {
        "responses_api_agents": {"simple_agent": {"resources_server": {"type": "resources_servers", "name": "sums"}}}
    },
    "empty": {"resources_servers": {}},
    "policy_api_key": "k",
}


@pytest.mark.parametrize("config", [CONFIG, OmegaConf.create(CONFIG)], ids=["plain", "omegaconf"])
def test_instances_are_found_in_plain_and_in_omegaconf_data(config):
    """Launch has OmegaConf data, rollouts have plain data."""
    instances = server_instances(config)

    assert list(instances) == ["policy_model", "sums", "agent"]
    assert instances["sums"] == ServerInstance("sums", "resources_servers", "sums", {"entrypoint": "app.py"})
    assert instances["agent"].path == ("agent", "responses_api_agents", "simple_agent")
    assert instances["agent"].reference("resources_server") == "sums"
    assert instances["agent"].reference("model_server") is None


def test_an_interpolation_that_cannot_be_resolved_keeps_its_text_and_hides_no_other_value():
    """Attributing a failure must not fail because an unrelated value is broken."""
    fields = {"x": "${gone}", "key": "${policy_api_key}", "list": [1, "${gone}"], "empty": None}
    config = OmegaConf.create({**CONFIG, "broken": {"resources_servers": {"b": fields}}, "alias": "${broken}"})

    instances = server_instances(config)

    assert instances["policy_model"].fields["key"] == "k"
    assert instances["broken"].fields == {**fields, "key": "k"}


def test_instances_of_one_type_are_selected():
    """Rows name agents; a resources server of the same name must not count as one."""
    assert [instance.name for instance in instances_of(CONFIG, "responses_api_agents")] == ["agent"]


def test_a_block_with_a_server_type_is_a_server_block_even_without_implementation():
    """Such a block is a mistake to report, not an unknown key."""
    assert is_server_block(CONFIG["empty"])
    assert not is_server_block(CONFIG["head_server"])
    assert not is_server_block("text")
