"""The classes of `nemo_gym.config_types`, both generations."""

import sys
import warnings

import pytest
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from nemo_gym.config_types import (
    BaseNeMoGymCLIConfig,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    BenchmarkDatasetConfig,
    DatasetConfig,
    Domain,
    DownloadJsonlDatasetHuggingFaceConfig,
    GitlabDatasetSource,
    HuggingFaceDatasetSource,
    MLFlowConfig,
    ModelServerRef,
    ResourcesServerRef,
    ServerInstanceConfigTypeAdapter,
    ServerRefTypeAdapter,
    UploadJsonlDatasetHuggingFaceConfig,
    UploadJsonlDatasetHuggingFaceMaybeDeleteConfig,
    UploadRolloutsConfigMixin,
    WANDBConfig,
    is_almost_server,
    is_server_ref,
    maybe_get_server_instance_config,
)

ROWS = {"name": "d", "type": "example", "jsonl_fpath": "x.jsonl"}
TRAIN = {**ROWS, "type": "train", "license": "Apache 2.0"}
GITLAB = {"dataset_name": "d", "version": "0.0.1", "artifact_fpath": "train.jsonl"}
HUB = {
    "hf_token": "t",
    "hf_organization": "o",
    "hf_collection_name": "c",
    "hf_collection_slug": "s",
    "input_jsonl_fpath": "i",
    "resource_config_path": "r",
}


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_train_and_validation_data_need_a_license(kind):
    """Data without a license must not end up in a trained model unnoticed."""
    with pytest.raises(ValidationError, match="license is required"):
        DatasetConfig(**{**ROWS, "type": kind})

    assert DatasetConfig(**{**ROWS, "type": kind, "license": "TBD"}).license == "TBD"


@pytest.mark.parametrize("license_name", ["CC BY-SA 4.0", "CC BY-NC 3.0", "MIT", "GNU General Public License v3.0"])
def test_licenses_of_both_generations_are_known(license_name):
    """Existing configs use either list; none may stop loading."""
    assert DatasetConfig(**{**TRAIN, "license": license_name}).license == license_name


def test_an_older_identifier_warns_and_fills_the_source():
    """Existing configs keep working, and code has to read one field only."""
    with pytest.warns(DeprecationWarning, match="gitlab_identifier"):
        dataset = DatasetConfig(**TRAIN, gitlab_identifier=GITLAB)

    assert dataset.source == GitlabDatasetSource(type="gitlab", **GITLAB)


def test_a_source_fills_the_matching_identifier_for_readers_of_the_older_field():
    """Scripts that read the older field keep working with new configs, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = DatasetConfig(**TRAIN, source={"type": "huggingface", "repo_id": "o/r"})

    assert isinstance(dataset.source, HuggingFaceDatasetSource)
    assert dataset.huggingface_identifier.repo_id == "o/r"
    assert dataset.gitlab_identifier is None


def test_both_identifiers_together_leave_the_source_unset():
    """Existing configs list two mirrors of one dataset; neither may be preferred by accident."""
    with pytest.warns(DeprecationWarning):
        dataset = DatasetConfig(**TRAIN, gitlab_identifier=GITLAB, huggingface_identifier={"repo_id": "o/r"})

    assert dataset.source is None


def test_a_source_excludes_identifiers():
    """Two origins that differ would make it unclear which data a run used."""
    with pytest.raises(ValidationError, match="not both"):
        DatasetConfig(**TRAIN, source={"type": "gitlab", **GITLAB}, gitlab_identifier=GITLAB)


@pytest.mark.parametrize(
    "bad", [{"num_repeats": 0}, {"start_idx": -1}, {"start_idx": 5, "end_idx": 2}, {"type": "trian"}]
)
def test_impossible_datasets_are_refused(bad):
    """A slice that selects nothing would appear later as an evaluation of zero rows."""
    with pytest.raises(ValidationError):
        DatasetConfig(**{**ROWS, **bad})


def test_dataset_slices_are_accepted():
    """Configs of the first release limit datasets this way."""
    dataset = DatasetConfig(**ROWS, start_idx=0, end_idx=5)

    assert (dataset.start_idx, dataset.end_idx, dataset.num_repeats) == (0, 5, 1)


def test_a_domain_compares_equal_to_text_and_has_a_description():
    """Existing code compares domains with strings, and new domains must stay known."""
    assert Domain("math") is Domain.MATH
    assert Domain.MATH == "math"
    assert {domain.value for domain in Domain} >= {"translation", "rlhf", "e2e", "other"}
    assert "capability" in Domain.__doc__


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of output_dirpath and output_fpath"),
        ({"output_dirpath": "d", "output_fpath": "f"}, "exactly one"),
        ({"output_dirpath": "d", "artifact_fpath": "a", "split": "train"}, "not both"),
        ({"output_fpath": "f"}, "needs split or artifact_fpath"),
    ],
)
def test_contradictory_downloads_are_refused(monkeypatch, fields, message):
    """Guessing would write the file where the user does not look for it."""
    monkeypatch.setattr(sys, "argv", ["gym"])
    with pytest.raises(ValidationError, match=message):
        DownloadJsonlDatasetHuggingFaceConfig(repo_id="o/r", **fields)

    assert DownloadJsonlDatasetHuggingFaceConfig(repo_id="o/r", output_fpath="f", split="train").split == "train"


def test_migration_always_deletes_so_the_choice_is_forbidden(monkeypatch):
    """A flag that is accepted but ignored would let a user believe that the original is kept."""
    monkeypatch.setattr(sys, "argv", ["gym"])
    with pytest.raises(ValidationError, match="delete_from_gitlab"):
        UploadJsonlDatasetHuggingFaceConfig(**HUB, delete_from_gitlab=True)

    assert UploadJsonlDatasetHuggingFaceMaybeDeleteConfig(**HUB, delete_from_gitlab=True).delete_from_gitlab is True
    assert "hf_token='****'" in repr(UploadJsonlDatasetHuggingFaceConfig(**HUB))


def test_a_command_config_ignores_the_rest_of_the_tree(monkeypatch):
    """A broken value of another command must not stop this one."""
    monkeypatch.setattr(sys, "argv", ["gym"])

    class Mine(BaseNeMoGymCLIConfig):
        limit: int

    config = OmegaConf.create({"limit": "${n}", "n": 3, "dangling": "${nobody}"})

    assert Mine.model_validate(config).limit == 3


@pytest.mark.parametrize(("argv", "data"), [(["gym", "--help"], {}), (["gym"], {"help": True}), (["gym"], {"h": True})])
def test_help_lists_the_parameters_and_exits_with_0(monkeypatch, capsys, argv, data):
    """A user who asks for help must not get an error about missing values."""
    monkeypatch.setattr(sys, "argv", argv)

    with pytest.raises(SystemExit) as caught:
        UploadJsonlDatasetHuggingFaceConfig.model_validate(data)

    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "Upload a JSONL dataset" in out
    assert "- hf_token (str): The access token of the Hub. [required]" in out
    assert "[default: 'Nemotron-RL']" in out


def test_server_references_are_recognised_by_type_and_name():
    """A missed reference is not checked and fails at the first call; a false one blocks a valid config."""
    assert is_server_ref(OmegaConf.create({"type": "resources_servers", "name": "x"})) == ResourcesServerRef(
        type="resources_servers", name="x"
    )
    assert ServerRefTypeAdapter.validate_python({"type": "responses_api_models", "name": "m"}) == ModelServerRef(
        type="responses_api_models", name="m"
    )
    for other in ({}, {"type": "x", "name": "y"}, {"type": "resources_servers"}, "text", None, [1]):
        assert is_server_ref(other) is None


def instance(kind: str, **fields):
    block = OmegaConf.create({kind: {"impl": {"entrypoint": "app.py", **fields}}})
    return block, maybe_get_server_instance_config("mine", block)


def test_a_server_instance_gives_access_to_its_live_block():
    """Ports are filled in through it; a copy would leave the configuration without them."""
    block, (config, error) = instance("resources_servers", domain="math", custom=1)

    assert error is None
    config.get_inner_run_server_config_dict()["port"] = 5
    assert block.resources_servers.impl.port == 5
    assert config.get_server_ref() == ResourcesServerRef(type="resources_servers", name="mine")
    assert config.get_inner_run_server_config().custom == 1
    assert config.SERVER_TYPE == "resources_servers"
    assert "server_type_config_dict" not in config.model_dump()


def test_resources_servers_need_a_domain_and_others_lose_it():
    """Results are grouped by domain, which has a meaning for resources servers only."""
    _, (config, error) = instance("resources_servers")
    assert config is None
    assert "domain is required" in str(error)

    block, (config, error) = instance("responses_api_models", domain="math")
    assert error is None
    assert "domain" not in block.responses_api_models.impl


def test_datasets_of_an_instance_are_typed():
    """A benchmark read as an ordinary dataset would lose its prepare script."""
    _, (config, _) = instance(
        "responses_api_agents",
        datasets=[ROWS, {"name": "b", "type": "benchmark", "jsonl_fpath": "x", "prepare_script": "p.py"}],
    )

    assert [type(dataset) for dataset in config.datasets] == [DatasetConfig, BenchmarkDatasetConfig]


@pytest.mark.parametrize("other", [None, 5, "text", {"a": 1}])
def test_values_other_than_omegaconf_mappings_are_ignored(other):
    """Plain settings stand beside server blocks and must not be reported as broken servers."""
    assert maybe_get_server_instance_config("x", other) == (None, None)


def test_an_ordinary_mapping_is_not_an_instance_and_the_error_says_why():
    """The caller decides from the error whether the block was meant to be a server."""
    config, error = maybe_get_server_instance_config("x", OmegaConf.create({"a": 1}))

    assert config is None
    assert isinstance(error, ValidationError)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"resources_servers": {"a": {"entrypoint": "x"}}}, True),
        ({"resources_servers": {"a": {"entrypoint": "x"}, "b": {}}}, True),
        ({"resources_servers": {"a": {"domain": "math"}}}, False),
        ({"resources_servers": "text"}, False),
        ({"resources_servers": {}}, False),
        ({"other": {"a": {"entrypoint": "x"}}}, False),
        (None, False),
        ([1], False),
    ],
)
def test_almost_servers_are_recognised_by_their_shape(block, expected):
    """A broken server block must be reported, not skipped like an ordinary setting."""
    assert is_almost_server(block) is expected
    assert is_almost_server(OmegaConf.create(block) if isinstance(block, dict) else block) is expected


def test_the_instance_adapter_knows_all_three_types():
    """Code of server folders validates any block through it."""
    block = OmegaConf.create({"responses_api_agents": {"a": {"entrypoint": "app.py"}}})

    config = ServerInstanceConfigTypeAdapter.validate_python(
        {"name": "x", "server_type_config_dict": block, **OmegaConf.to_container(block)}
    )

    assert config.SERVER_TYPE == "responses_api_agents"


def test_a_server_config_can_be_read_from_omegaconf_and_built_by_keyword():
    """Server folders do both, in their code and in their tests."""
    assert BaseServerConfig.model_validate(DictConfig({"host": "h", "port": 1})).port == 1
    config = BaseRunServerInstanceConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
    assert (config.domain, config.num_workers) == (None, None)


def test_exporters_are_available_only_with_everything_they_need():
    """An upload with a masked or missing key would fail at the end of a long run."""
    assert WANDBConfig(wandb_project="p", wandb_name="n", wandb_api_key="k").is_available
    assert not WANDBConfig(wandb_project="p", wandb_name="n", wandb_api_key="****").is_available
    assert not WANDBConfig(wandb_project="p", wandb_name="n").is_available
    named = {"mlflow_tracking_uri": "u", "mlflow_experiment_name": "e", "mlflow_run_name": "r"}
    assert MLFlowConfig(**named).is_available
    assert not MLFlowConfig(**named, mlflow_tracking_token="****").is_available
    assert "k1" not in repr(WANDBConfig(wandb_api_key="k1"))


def test_the_older_upload_key_warns_and_the_newer_one_wins():
    """A user who disabled uploads with the older key must not start to upload data."""
    with pytest.warns(DeprecationWarning, match="upload_rollouts"):
        assert UploadRolloutsConfigMixin.model_validate({"upload_rollouts_to_wandb": False}).upload_rollouts is False
    with pytest.warns(DeprecationWarning):
        both = {"upload_rollouts_to_wandb": False, "upload_rollouts": True}
        assert UploadRolloutsConfigMixin.model_validate(both).upload_rollouts is True
    assert UploadRolloutsConfigMixin().upload_rollouts is True
