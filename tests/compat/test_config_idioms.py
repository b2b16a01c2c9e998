"""Configuration as trainers, benchmarks and tests read it: our own YAML files through the public parser."""

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym import PARENT_DIR
from nemo_gym.config_types import ConfigMissingValuesError, ResourcesServerInstanceConfig, ServerRefNotFoundError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig, get_first_server_config_dict

WEATHER = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"
OPENAI = "responses_api_models/openai_model/configs/openai_model.yaml"
SCRIPTED = "responses_api_models/scripted_model/configs/scripted_model.yaml"
AGENT = "responses_api_agents/simple_agent/configs/simple_agent.yaml"
POLICY = {"policy_base_url": "http://h/v1", "policy_api_key": "k", "policy_model_name": "m"}


def parse(*paths: str, **values: object) -> DictConfig:
    initial = OmegaConf.create({"config_paths": list(paths), **values})
    return GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=initial, skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )


@pytest.mark.parametrize(("environment", "model"), [(WEATHER, OPENAI), (COUNTER, OPENAI), (WEATHER, SCRIPTED)])
def test_a_reference_environment_and_a_model_make_a_whole_configuration(environment, model):
    """Two files, every instance with its host and port, nothing left open."""
    config = parse(environment, model, **POLICY)

    names = [name for name, value in config.items() if isinstance(value, DictConfig) and name != "head_server"]
    ports = [get_first_server_config_dict(config, name)["port"] for name in names]
    assert max(names) == "policy_model" and len(names) == 3
    assert len(set(ports)) == 3 and all(10001 <= port <= 20000 for port in ports)


def test_the_policy_placeholders_reach_the_model():
    """The three values of env.yaml are all a user has to know."""
    config = parse(OPENAI, WEATHER, **POLICY)

    block = get_first_server_config_dict(config, "policy_model")
    assert (block["openai_base_url"], block["openai_api_key"], block["openai_model"]) == ("http://h/v1", "k", "m")


def test_the_plain_agent_asks_for_its_environment():
    """The seed's `name: ???`: required, and said so."""
    with pytest.raises(ConfigMissingValuesError, match=r"simple_agent.*resources_server\.name"):
        parse(AGENT, SCRIPTED)


def test_an_agent_without_its_model_is_reported_which_reference_is_wrong():
    """The most common mistake: one config path forgotten."""
    with pytest.raises(ServerRefNotFoundError, match="policy_model"):
        parse(WEATHER)


def test_without_a_model_the_dummy_stands_in():
    """Validation and data preparation need no model; the parser's own constant provides one."""
    no_model = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    merged = OmegaConf.merge(no_model, {"config_paths": [WEATHER]})

    config = GlobalConfigDictParser().parse_no_environment(initial_global_config_dict=merged)

    assert "dummy_model" in config["policy_model"]["responses_api_models"]
    instances = GlobalConfigDictParser().filter_for_server_instance_configs(config)
    assert {type(instance) for instance in instances} >= {ResourcesServerInstanceConfig}


def test_datasets_of_the_reference_agents_exist():
    """`jsonl_fpath` is relative to the tree, and the file is there."""
    config = parse(WEATHER, COUNTER, SCRIPTED)

    for agent in ("example_single_tool_call_simple_agent", "example_session_state_mgmt_simple_agent"):
        (dataset,) = get_first_server_config_dict(config, agent)["datasets"]
        assert (PARENT_DIR / dataset["jsonl_fpath"]).is_file()
