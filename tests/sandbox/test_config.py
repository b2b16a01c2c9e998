"""Resolution of a sandbox reference in a config."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

import nemo_gym.sandbox
from nemo_gym.errors import ConfigError
from nemo_gym.sandbox.config import attribution_metadata, resolve_provider_config, resolve_provider_metadata
from nemo_gym.sandbox.providers.registry import create_provider
from nemo_gym.sandbox.utils import rewrite_image

BLOCKS = {"sandbox": {"docker": {"image": "a"}, "default_metadata": {"team": "red", "cost": 1}}, "number": 3}


def test_a_reference_is_a_blocks_name_or_the_block_itself():
    """Both forms occur in configs."""
    assert resolve_provider_config("sandbox", BLOCKS) == {"docker": {"image": "a"}}
    assert resolve_provider_config({"apptainer": None}) == {"apptainer": {}}
    assert resolve_provider_metadata("sandbox", BLOCKS) == {"team": "red", "cost": "1"}
    assert resolve_provider_metadata({"docker": {}}) == {}


def test_an_omegaconf_configuration_is_accepted():
    """Servers pass `server_client.global_config_dict`, an OmegaConf container with interpolations."""
    config = OmegaConf.create({"img": "b", "sandbox": {"docker": {"image": "${img}"}, "default_metadata": {"x": "y"}}})

    resolved = resolve_provider_config("sandbox", config)

    assert resolved == {"docker": {"image": "b"}}
    assert type(resolved["docker"]) is dict
    assert resolve_provider_metadata("sandbox", config) == {"x": "y"}


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("sandbx", "unknown sandbox block 'sandbx'"),
        ("number", "must be a mapping, not int"),
        ({}, "must have exactly one provider, not 0"),
        ({"docker": {}, "apptainer": {}}, r"not 2 \(apptainer, docker\)"),
        ({"docker": 3}, "arguments of sandbox provider 'docker' must be a mapping"),
    ],
)
def test_a_broken_reference_reports_why(ref, message):
    """The user has to find the mistake in a config; code of server folders catches a ValueError."""
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_provider_config(ref, BLOCKS)

    assert isinstance(caught.value, ValueError)


def test_our_variables_take_precedence_over_the_schedulers():
    """A user's explicit setting wins."""
    environ = {"NEMO_GYM_TEAM": "red", "SLURM_JOB_ACCOUNT": "blue", "SLURM_JOB_ID": "77", "NEMO_GYM_USER": ""}

    assert attribution_metadata(environ) == {"team": "red", "run": "77"}


def test_the_first_matching_rewrite_is_used():
    """The order in the config decides."""
    rewrites = [{"from": "python:", "to": "mirror.test/py:"}, {"from": "", "to": "other.test/"}]

    assert rewrite_image("python:3", rewrites) == "mirror.test/py:3"
    assert rewrite_image("ruby:3", rewrites) == "other.test/ruby:3"
    assert rewrite_image("ruby:3", None) == "ruby:3"


@pytest.mark.parametrize("name", ["docker", "apptainer"])
def test_the_shipped_configs_make_their_provider(name):
    """The file people include must fit the class it names."""
    path = Path(nemo_gym.sandbox.__file__).parent / "providers" / name / "configs" / f"{name}.yaml"

    config = OmegaConf.load(path)

    assert create_provider(resolve_provider_config("sandbox", config)).name == name
    assert resolve_provider_metadata("sandbox", config) == {}
