"""The global configuration: argv, environment, files and sockets of this process."""

import json
import logging
import socket
import subprocess
import sys

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym import PARENT_DIR, global_config
from nemo_gym.errors import (
    AlmostServerError,
    ConfigError,
    ConfigMissingValuesError,
    NoServerInstancesError,
    ServerRefNotFoundError,
)
from nemo_gym.global_config import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    find_open_port,
    get_first_server_config_dict,
    get_global_config_dict,
    get_hf_token,
    maybe_get_global_config_dict,
    set_global_config_dict,
)

SERVER = {"sums": {"resources_servers": {"sums": {"entrypoint": "app.py", "domain": "math"}}}}


@pytest.fixture(autouse=True)
def _fresh_process(tmp_path, monkeypatch):
    """A fresh process: empty folder, no arguments, nothing cached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gym"])
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", None)
    for name in ("NEMO_GYM_CONFIG_DICT", "NEMO_GYM_EXTRA_ROOTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_command_line_is_read_once_and_cached(monkeypatch):
    """Parsing again would choose other ports than those the servers were started with."""
    monkeypatch.setattr(sys, "argv", ["gym", "+a=1"])

    first = get_global_config_dict()
    monkeypatch.setattr(sys, "argv", ["gym", "+a=2"])

    assert get_global_config_dict() is first
    assert first.a == 1
    assert set_global_config_dict().a == 2
    assert get_global_config_dict().a == 2


def test_there_is_no_configuration_before_the_first_parse():
    """Libraries check for a configuration without starting to parse the arguments of another program."""
    assert maybe_get_global_config_dict() is None


def test_a_child_process_takes_the_configuration_of_its_parent_unchecked(monkeypatch):
    """Checking again in every server would slow each start and read arguments that are not ours."""
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "a: 1\nbroken: {resources_servers: {x: {entrypoint: y}}}")
    monkeypatch.setattr(sys, "argv", ["app.py", "--not-an-override"])

    assert get_global_config_dict().a == 1
    assert maybe_get_global_config_dict().broken.resources_servers.x.entrypoint == "y"


def test_a_parent_may_pass_the_configuration_as_json(monkeypatch):
    """YAML folds some characters of JSON; any character must survive."""
    odd = {"api_key": "sk\u2028x\x85", "text": "\U0001f600", "n": 1e-9}
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", json.dumps(odd))

    assert OmegaConf.to_container(get_global_config_dict()) == odd


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "just text"])
def test_a_malformed_configuration_from_a_parent_is_a_clear_error(monkeypatch, text):
    """Someone who sets the variable by hand must learn which variable is wrong."""
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", text)

    with pytest.raises(ConfigError, match="NEMO_GYM_CONFIG_DICT"):
        get_global_config_dict()


def test_a_trainer_passes_initial_values_and_skips_the_command_line(monkeypatch):
    """The arguments belong to the trainer; reading them would fail or change settings."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])

    config = get_global_config_dict(
        GlobalConfigDictParserConfig(initial_global_config_dict=DictConfig(SERVER), skip_load_from_cli=True)
    )

    assert 10001 <= config.sums.resources_servers.sums.port <= 20000


def test_configs_and_env_yaml_are_found_in_extra_roots_first(monkeypatch, tmp_path):
    """An installed plugin or a test overrides shipped configs this way."""
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "a.yaml").write_text("where: extra")
    (extra / "env.yaml").write_text("secret_of: extra")
    (tmp_path / "a.yaml").write_text("where: here")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(extra))
    monkeypatch.setattr(sys, "argv", ["gym", "+config_paths=[a.yaml]"])

    config = get_global_config_dict()

    assert (config.where, config.secret_of) == ("extra", "extra")


def test_a_stand_in_model_makes_a_config_checkable_without_an_endpoint(monkeypatch, tmp_path):
    """`gym env validate` runs where no model is available."""
    (tmp_path / "a.yaml").write_text(
        "agent: {responses_api_agents: {simple_agent: {entrypoint: app.py, "
        "model_server: {type: responses_api_models, name: policy_model}}}}"
    )
    monkeypatch.setattr(sys, "argv", ["gym", "+config_paths=[a.yaml]"])

    config = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT, offline=True
        )
    )

    assert config.policy_model.responses_api_models.dummy_model.port == -1
    assert (
        "port"
        not in GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT.policy_model.responses_api_models.dummy_model
    )


def test_warnings_go_to_the_log(monkeypatch, caplog):
    """A misspelt setting has no other symptom, so the warning must be visible."""
    monkeypatch.setattr(sys, "argv", ["gym", "+dafault_host=x"])

    with caplog.at_level(logging.WARNING):
        GlobalConfigDictParser().parse()

    assert "did you mean 'default_host'?" in caplog.text


def test_parsing_without_environment_uses_only_the_given_values(monkeypatch, tmp_path):
    """A library call must not depend on the folder or the arguments of the calling program."""
    (tmp_path / "env.yaml").write_text("x: 1")
    monkeypatch.setattr(sys, "argv", ["gym", "+y=1"])

    config = GlobalConfigDictParser().parse_no_environment(DictConfig({"z": 1}))

    assert (config.get("x"), config.get("y"), config.z) == (None, None, 1)
    assert GlobalConfigDictParser().parse_global_config_dict_from_cli() == {"y": 1}


def test_included_paths_are_listed_and_returned_in_merge_order(tmp_path):
    """Callers merge them themselves; another order would let the base win over the variant."""
    (tmp_path / "a.yaml").write_text("{config_paths: [b.yaml], n: a}")
    (tmp_path / "b.yaml").write_text("n: b")

    paths, configs = GlobalConfigDictParser().load_extra_config_paths(["a.yaml"])

    assert paths == ["a.yaml", "b.yaml"]
    assert [config.n for config in configs] == ["b", "a"]


def test_only_server_blocks_are_instances():
    """Any other block would be started as a server."""
    config = OmegaConf.create({**SERVER, "note": {"x": 1}, "head_server": {"host": "h", "port": 1}})

    assert [instance.name for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config)] == [
        "sums"
    ]


def test_a_configuration_without_servers_is_refused():
    """A run that waits for no server would look like one that hangs."""
    parser = GlobalConfigDictParser()

    with pytest.raises(NoServerInstancesError, match="no server instance to start"):
        parser.raise_on_no_server_instances(OmegaConf.create({"config_paths": ["a.yaml"]}))
    misspelt = {"sums": {"resource_servers": {"sums": {"entrypoint": "app.py"}}}}
    with pytest.raises(NoServerInstancesError, match=r"'sums\.resource_servers' is no server type"):
        parser.raise_on_no_server_instances(OmegaConf.create(misspelt))
    parser.raise_on_no_server_instances(OmegaConf.create(SERVER))


def test_missing_values_are_collected_by_path():
    """The user gets the overrides to type for all missing values at once."""
    parser = GlobalConfigDictParser()
    config = OmegaConf.create({"a": {"b": "???"}, "l": [{"c": "???"}], "x": "${nobody}"})

    assert parser.collect_missing_value_paths(config) == ["a.b", "l[0].c"]
    with pytest.raises(ConfigMissingValuesError, match=r"\+\+a\.b=<value>"):
        parser.raise_on_missing_values(config)


def test_addresses_are_filled_in_and_references_checked():
    """A server without an address or with an unknown partner fails only at its first call."""
    parser = GlobalConfigDictParser()
    config = OmegaConf.create(SERVER)
    instances = parser.filter_for_server_instance_configs(config)

    taken = parser.validate_and_populate_defaults(instances, "0.0.0.0", [11000])

    assert config.sums.resources_servers.sums.host == "0.0.0.0"
    assert taken == [11000, config.sums.resources_servers.sums.port]
    lost = OmegaConf.create(
        {"a": {"responses_api_agents": {"a": {"entrypoint": "x", "m": {"type": "resources_servers", "name": "gone"}}}}}
    )
    with pytest.raises(ServerRefNotFoundError):
        parser.validate_and_populate_defaults(parser.filter_for_server_instance_configs(lost), "h")


def test_broken_server_blocks_stop_the_run_unless_configured_otherwise():
    """A run without one of its servers would fail every rollout that needs it."""
    parser = GlobalConfigDictParser()
    broken = {"sums": {"resources_servers": {"sums": {"entrypoint": "app.py", "domain": "maths"}}}}

    with pytest.raises(AlmostServerError, match="did you mean 'math'"):
        parser.detect_and_report_almost_servers(OmegaConf.create(broken))
    lenient = OmegaConf.create({**broken, "error_on_almost_servers": False})
    assert parser.detect_and_report_almost_servers(lenient) == ["sums"]


def test_the_server_block_of_an_instance_is_returned_by_name():
    """Server folders read addresses this way; a wrong name must be reported with that name."""
    config = OmegaConf.create(SERVER)

    assert get_first_server_config_dict(config, "sums") is config.sums.resources_servers.sums
    for name in ("nobody", "flat"):
        with pytest.raises(ConfigError, match=name):
            get_first_server_config_dict(OmegaConf.create({"flat": {"x": 1}}), name)


def test_the_hub_token_comes_from_the_configuration(monkeypatch):
    """A token in env.yaml must be used for downloads without setting a variable too."""
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"hf_token": "t"}))

    assert get_hf_token() == "t"


def test_a_port_in_use_is_not_chosen(monkeypatch):
    """The server would fail to start, or a stranger's server would receive its calls."""
    with socket.socket() as holder:
        holder.bind(("", 0))
        used = holder.getsockname()[1]
        monkeypatch.setattr(
            global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"port_range_low": used, "port_range_high": used})
        )

        with pytest.raises(RuntimeError, match="found no open port") as caught:
            find_open_port()

    assert isinstance(caught.value, ConfigError)
    assert find_open_port() == used
    with pytest.raises(RuntimeError):
        find_open_port([used])


def test_importing_the_configuration_modules_loads_nothing_heavy():
    """Every command and every server imports them; a heavy import delays each start."""
    code = (
        "import sys, nemo_gym.global_config, nemo_gym.config_types;"
        "heavy = {'hydra', 'ray', 'openai', 'anthropic', 'pandas', 'wandb', 'mlflow', 'mcp', 'fastapi'};"
        "print(sorted(heavy & set(sys.modules)))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=PARENT_DIR) == "[]\n"


def test_the_public_constants_keep_their_values():
    """Trainers import these names and stored rollouts contain these keys."""
    assert global_config.TASK_INDEX_KEY_NAME == "_ng_task_index"
    assert global_config.DISALLOWED_PORTS_KEY_NAME == "disallowed_ports"
    assert global_config.HF_TOKEN_KEY_NAME in global_config.NEMO_GYM_RESERVED_TOP_LEVEL_KEYS
    assert global_config.DEFAULT_HEAD_SERVER_PORT == 11000


def test_an_unknown_own_address_is_a_clear_error(monkeypatch):
    """A container without DNS is common; the message names the setting that needs the address."""

    def unknown(name):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(sys, "argv", ["gym", "+use_absolute_ip=true"])

    with pytest.raises(ConfigError, match=r"use_absolute_ip: this machine's own address is unknown"):
        get_global_config_dict()


def test_flow_style_yaml_from_a_parent_is_not_mistaken_for_json(monkeypatch):
    """A launcher may write the variable in flow style, which starts with a brace as JSON does."""
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "{a: 1, b: [x]}")

    assert get_global_config_dict() == {"a": 1, "b": ["x"]}
