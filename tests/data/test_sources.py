"""Which datasets are meant, and what is missing, is known before any row is read."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym.data.sources import Access, MissingDatasetsError, fetch_missing, sources_of
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig

GITLAB = {"type": "gitlab", "dataset_name": "sums", "version": "0.0.1", "artifact_fpath": "train.jsonl"}
HUB = {"type": "huggingface", "repo_id": "org/sums"}


def instances(*datasets, **more):
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "sums"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": list(datasets),
    }
    tree = {
        "sums": {"resources_servers": {"arithmetic": {"entrypoint": "app.py", "domain": "math"}}},
        "sums_agent": {"responses_api_agents": {"simple_agent": agent}},
        **more,
    }
    stand_in = GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT
    config = OmegaConf.merge(OmegaConf.create(tree), stand_in)
    return GlobalConfigDictParser().filter_for_server_instance_configs(config)


def dataset(kind: str, path: str, **more):
    return {"name": kind, "type": kind, "jsonl_fpath": path, "license": "MIT", **more}


def unwatched(what, done, total):
    pass


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_each_mode_has_its_types():
    """Example rows are for review, the others for training."""
    found = instances(dataset("validation", "v.jsonl"), dataset("train", "t.jsonl"), dataset("example", "e.jsonl"))

    assert [source.config.type for source in sources_of(found, "train_preparation")] == ["train", "validation"]
    assert [source.config.type for source in sources_of(found, "example_validation")] == ["example"]


def test_an_agent_without_such_data_is_told_what_there_is():
    """The usual cause is the other mode."""
    with pytest.raises(ConfigError, match=r"no agent has a dataset of type example \(there are: train\)"):
        sources_of(instances(dataset("train", "t.jsonl")), "example_validation")


def test_files_are_found_through_the_search_roots(tmp_path, monkeypatch):
    """A dataset is named relative to the tree its server lives in."""
    other = tmp_path / "other"
    (other / "data").mkdir(parents=True)
    (other / "data" / "t.jsonl").write_text("{}\n")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(other))

    (source,) = sources_of(instances(dataset("train", "data/t.jsonl")), "train_preparation")

    assert source.path == other / "data" / "t.jsonl"
    assert source.metrics_path == other / "data" / "t_metrics.json"


def test_a_prompt_that_cannot_be_used_is_told_at_once(tmp_path):
    """Not after an hour of rows."""
    (tmp_path / "p.yaml").write_text("system: only\n")
    benchmark = {"type": "benchmark", "prepare_script": "p.py", "name": "b", "jsonl_fpath": "b.jsonl"}

    with pytest.raises(ConfigError, match="user: Field required"):
        sources_of(instances({**benchmark, "prompt_config": "p.yaml"}), "train_preparation")


def test_every_missing_file_is_named_with_what_to_do():
    """All of them at once, before anything is fetched or read."""
    Path("there.jsonl").write_text("{}\n")
    benchmark = {"type": "benchmark", "prepare_script": "p.py", "name": "b", "jsonl_fpath": "b.jsonl"}
    found = instances(
        dataset("train", "there.jsonl"),
        dataset("train", "t.jsonl"),
        dataset("validation", "v.jsonl", source=HUB),
        benchmark,
    )

    with pytest.raises(MissingDatasetsError) as missing:
        fetch_missing(sources_of(found, "train_preparation"), "train_preparation", None, unwatched)

    told = str(missing.value).splitlines()
    assert told[0] == "3 dataset files are missing"
    assert told[1].endswith("t.jsonl (sums_agent, train): write it, or say under 'source' where it can be downloaded")
    assert told[2].endswith("v.jsonl (sums_agent, validation): download it with --download")
    assert told[3].endswith("b.jsonl (sums_agent, benchmark): prepare it first with 'gym eval prepare'")
    assert isinstance(missing.value, AssertionError)


def test_example_rows_are_never_downloaded():
    """They are kept with the code, so that a reviewer sees them."""
    found = sources_of(instances(dataset("example", "e.jsonl", source=HUB)), "example_validation")

    with pytest.raises(MissingDatasetsError, match="kept with the code"):
        fetch_missing(found, "example_validation", Access(), unwatched)


def test_a_registry_without_an_address_is_told_before_any_download():
    """Half of the files would have come, and then nothing."""
    found = sources_of(
        instances(dataset("train", "t.jsonl", source=GITLAB), dataset("train", "h.jsonl", source=HUB)),
        "train_preparation",
    )

    with pytest.raises(MissingDatasetsError, match="mlflow_tracking_uri is not set"):
        fetch_missing(found, "train_preparation", Access(), unwatched)


def test_nothing_missing_asks_nobody():
    """Data that is there is used, whatever it could be fetched from."""
    Path("t.jsonl").write_text("{}\n")
    found = sources_of(instances(dataset("train", "t.jsonl", source=HUB)), "train_preparation")

    assert fetch_missing(found, "train_preparation", Access(), unwatched) == found


def test_many_sources_of_one_file_all_have_names_of_their_own():
    """Two slices, two agents, twice the same: nothing overwrites anything."""
    found = sources_of(
        instances(
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl"),
            dataset("train", "t.jsonl", start_idx=3),
            dataset("validation", "t.jsonl", start_idx=3),
        ),
        "train_preparation",
    )

    assert [source.stem for source in found] == [
        "t",
        "t_sums_agent",
        "t_sums_agent_train",
        "t_sums_agent_train_2",
        "t_3-end",
        "t_3-end_sums_agent",
    ]
