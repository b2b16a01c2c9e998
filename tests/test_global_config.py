"""The seam: argv, environment, files and sockets of this process."""

import json
import logging
import socket
import subprocess
import sys

import pytest
from omegaconf import DictConfig, OmegaConf

import nemo_gym.global_config as seam
from nemo_gym import PARENT_DIR
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
def process(tmp_path, monkeypatch):
    """A fresh process: empty folder, no arguments, nothing cached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gym"])
    monkeypatch.setattr(seam, "_GLOBAL_CONFIG_DICT", None)
    for name in ("NEMO_GYM_CONFIG_DICT", "NEMO_GYM_CONFIG_FILE", "NEMO_GYM_EXTRA_ROOTS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_command_line_is_read_once_and_remembered(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gym", "+a=1"])

    first = get_global_config_dict()
    monkeypatch.setattr(sys, "argv", ["gym", "+a=2"])

    assert get_global_config_dict() is first
    assert first.a == 1
    assert set_global_config_dict().a == 2
    assert get_global_config_dict().a == 2


def test_without_a_parse_there_is_nothing_to_get():
    assert maybe_get_global_config_dict() is None


def test_a_child_takes_what_its_parent_gives_without_checking_it(monkeypatch):
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "a: 1\nbroken: {resources_servers: {x: {entrypoint: y}}}")
    monkeypatch.setattr(sys, "argv", ["app.py", "--not-an-override"])

    assert get_global_config_dict().a == 1
    assert maybe_get_global_config_dict().broken.resources_servers.x.entrypoint == "y"


def test_a_parent_may_give_a_file_so_that_secrets_stay_out_of_the_environment(monkeypatch, tmp_path):
    odd = {"api_key": "sk\u2028x\x85", "text": "\U0001f600", "n": 1e-9}
    (tmp_path / "given.json").write_text(json.dumps(odd), encoding="utf-8")
    monkeypatch.setenv("NEMO_GYM_CONFIG_FILE", str(tmp_path / "given.json"))

    assert OmegaConf.to_container(get_global_config_dict()) == odd


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "just text"])
def test_nonsense_from_a_parent_is_a_clear_error(monkeypatch, text):
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", text)

    with pytest.raises(ConfigError, match="NEMO_GYM_CONFIG_DICT"):
        get_global_config_dict()


def test_a_missing_parent_file_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setenv("NEMO_GYM_CONFIG_FILE", str(tmp_path / "gone"))

    with pytest.raises(ConfigError, match="NEMO_GYM_CONFIG_FILE cannot be read"):
        get_global_config_dict()


def test_a_trainer_gives_initial_values_and_skips_the_command_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "3"])

    config = get_global_config_dict(
        GlobalConfigDictParserConfig(initial_global_config_dict=DictConfig(SERVER), skip_load_from_cli=True)
    )

    assert 10001 <= config.sums.resources_servers.sums.port <= 20000


def test_configs_and_env_yaml_are_found_in_extra_roots_first(monkeypatch, tmp_path):
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
    """`gym env validate`."""
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
    monkeypatch.setattr(sys, "argv", ["gym", "+dafault_host=x"])

    with caplog.at_level(logging.WARNING):
        GlobalConfigDictParser().parse()

    assert "did you mean 'default_host'?" in caplog.text


def test_only_what_is_given_is_parsed_without_environment(monkeypatch, tmp_path):
    (tmp_path / "env.yaml").write_text("x: 1")
    monkeypatch.setattr(sys, "argv", ["gym", "+y=1"])

    config = GlobalConfigDictParser().parse_no_environment(DictConfig({"z": 1}))

    assert (config.get("x"), config.get("y"), config.z) == (None, None, 1)
    assert GlobalConfigDictParser().parse_global_config_dict_from_cli() == {"y": 1}


def test_included_paths_are_listed_and_returned_in_merge_order(tmp_path):
    (tmp_path / "a.yaml").write_text("{config_paths: [b.yaml], n: a}")
    (tmp_path / "b.yaml").write_text("n: b")

    paths, configs = GlobalConfigDictParser().load_extra_config_paths(["a.yaml"])

    assert paths == ["a.yaml", "b.yaml"]
    assert [config.n for config in configs] == ["b", "a"]


def test_only_server_blocks_are_instances():
    config = OmegaConf.create({**SERVER, "note": {"x": 1}, "head_server": {"host": "h", "port": 1}})

    assert [instance.name for instance in GlobalConfigDictParser().filter_for_server_instance_configs(config)] == [
        "sums"
    ]


def test_starting_nothing_is_refused():
    parser = GlobalConfigDictParser()

    with pytest.raises(NoServerInstancesError, match="no server instance to start"):
        parser.raise_on_no_server_instances(OmegaConf.create({"config_paths": ["a.yaml"]}))
    parser.raise_on_no_server_instances(OmegaConf.create(SERVER))


def test_missing_values_are_collected_by_path():
    parser = GlobalConfigDictParser()
    config = OmegaConf.create({"a": {"b": "???"}, "l": [{"c": "???"}], "x": "${nobody}"})

    assert parser.collect_missing_value_paths(config) == ["a.b", "l[0].c"]
    with pytest.raises(ConfigMissingValuesError, match=r"\+\+a\.b=<value>"):
        parser.raise_on_missing_values(config)


def test_addresses_are_filled_in_and_references_checked():
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


def test_almost_servers_stop_us_unless_configured_otherwise():
    parser = GlobalConfigDictParser()
    broken = {"sums": {"resources_servers": {"sums": {"entrypoint": "app.py", "domain": "maths"}}}}

    with pytest.raises(AlmostServerError, match="did you mean 'math'"):
        parser.detect_and_report_almost_servers(OmegaConf.create(broken))
    lenient = OmegaConf.create({**broken, "error_on_almost_servers": False})
    assert parser.detect_and_report_almost_servers(lenient) == ["sums"]


def test_the_first_server_block_of_an_instance():
    config = OmegaConf.create(SERVER)

    assert get_first_server_config_dict(config, "sums") is config.sums.resources_servers.sums
    for name in ("nobody", "flat"):
        with pytest.raises(ConfigError, match=name):
            get_first_server_config_dict(OmegaConf.create({"flat": {"x": 1}}), name)


def test_the_hub_token_comes_from_the_configuration(monkeypatch):
    monkeypatch.setattr(seam, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"hf_token": "t"}))

    assert get_hf_token() == "t"


def test_a_port_in_use_is_not_chosen(monkeypatch):
    with socket.socket() as holder:
        holder.bind(("", 0))
        used = holder.getsockname()[1]
        monkeypatch.setattr(
            seam, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"port_range_low": used, "port_range_high": used})
        )

        with pytest.raises(RuntimeError, match="found no open port") as caught:
            find_open_port()

    assert isinstance(caught.value, ConfigError)
    assert find_open_port() == used
    with pytest.raises(RuntimeError):
        find_open_port([used])


def test_importing_the_seam_loads_nothing_heavy():
    code = (
        "import sys, nemo_gym.global_config, nemo_gym.config_types;"
        "heavy = {'hydra', 'ray', 'openai', 'anthropic', 'pandas', 'wandb', 'mlflow', 'mcp', 'fastapi'};"
        "print(sorted(heavy & set(sys.modules)))"
    )

    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=PARENT_DIR) == "[]\n"


def test_the_names_other_code_imports_are_constants():
    assert seam.TASK_INDEX_KEY_NAME == "_ng_task_index"
    assert seam.DISALLOWED_PORTS_KEY_NAME == "disallowed_ports"
    assert seam.HF_TOKEN_KEY_NAME in seam.NEMO_GYM_RESERVED_TOP_LEVEL_KEYS
    assert seam.DEFAULT_HEAD_SERVER_PORT == 11000
    assert all(hasattr(seam, name) for name in seam.__all__)


def test_an_unknown_own_address_is_a_clear_error(monkeypatch):
    def unknown(name):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    monkeypatch.setattr(sys, "argv", ["gym", "+use_absolute_ip=true"])

    with pytest.raises(ConfigError, match=r"use_absolute_ip: this machine's own address is unknown"):
        get_global_config_dict()


def test_flow_style_yaml_from_a_parent_is_not_mistaken_for_json(monkeypatch):
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", "{a: 1, b: [x]}")

    assert get_global_config_dict() == {"a": 1, "b": ["x"]}
