"""Training data is prepared from Python with the names that trainers import."""

import json

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from nemo_gym.global_config import GlobalConfigDictParserConfig
from nemo_gym.train_data_utils import (
    MissingDatasetsError,
    RowsRefused,
    TrainDataProcessor,
    TrainDataProcessorConfig,
    prepare_data,
)


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "sums"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": [{"name": "train", "type": "train", "jsonl_fpath": "train.jsonl", "license": "MIT"}],
    }
    tree = {
        "sums": {"resources_servers": {"arithmetic": {"entrypoint": "app.py", "domain": "math"}}},
        "sums_agent": {"responses_api_agents": {"simple_agent": agent}},
        "output_dirpath": "out",
        "mode": "train_preparation",
    }
    return OmegaConf.merge(OmegaConf.create(tree), GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_keys_are_those_of_the_contract():
    """Scripts set the keys by name."""
    config = TrainDataProcessorConfig(output_dirpath="out", mode="example_validation")

    assert (config.should_download, config.data_source, config.overwrite_metrics_conflicts) == (
        False,
        "huggingface",
        False,
    )
    with pytest.raises(ValidationError):
        TrainDataProcessorConfig(output_dirpath="out", mode="other")


def test_a_whole_configuration_can_be_given(tmp_path, config):
    """A trainer passes its configuration, with keys of other components."""
    write(tmp_path / "train.jsonl", {"responses_create_params": {"input": "hi"}})

    done = TrainDataProcessor().run(config)

    assert json.loads((tmp_path / "out" / "train.jsonl").read_text())["agent_ref"]["name"] == "sums_agent"
    assert done.types[0].report["Number of examples"] == 1


def test_errors_are_of_the_kinds_callers_catch(tmp_path, config):
    """Existing callers catch AssertionError for missing files and ValueError for invalid rows."""
    with pytest.raises(AssertionError) as missing:
        TrainDataProcessor().run(config)
    write(tmp_path / "train.jsonl", {})
    with pytest.raises(ValueError, match="1 row cannot be used") as refused:
        TrainDataProcessor().run(config)

    assert isinstance(missing.value, MissingDatasetsError)
    assert isinstance(refused.value, RowsRefused)


def test_prepare_data_reads_the_command_line(tmp_path, config, monkeypatch):
    """Existing scripts call it without arguments."""
    write(tmp_path / "train.jsonl", {"responses_create_params": {"input": "hi"}})
    (tmp_path / "c.yaml").write_text(OmegaConf.to_yaml(OmegaConf.masked_copy(config, ["sums", "sums_agent"])))
    words = ["x", "+config_paths=[c.yaml]", "+mode=train_preparation", "+output_dirpath=out"]
    monkeypatch.setattr("sys.argv", words)

    prepare_data()

    assert (tmp_path / "out" / "train.jsonl").exists()
