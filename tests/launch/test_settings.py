"""Configuration keys of `nemo_gym.launch` are checked when they are read."""

from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.settings import LaunchSettings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_cells", "abc"),
        ("num_cells", -1),
        ("num_cells", True),
        ("port_range_low", [1]),
        ("model_endpoint_readiness_timeout_seconds", "soon"),
    ],
)
def test_a_value_that_is_not_a_number_is_refused_with_its_key(key: str, value: object) -> None:
    """`+num_cells=abc` was a traceback with a bare ValueError."""
    with pytest.raises(ConfigError, match="must be") as raised:
        LaunchSettings.from_config({key: value})

    assert raised.value.where == key


def test_unset_keys_have_defaults() -> None:
    """A run starts without any of these keys."""
    default = LaunchSettings.from_config({"num_cells": None})
    changed = LaunchSettings.from_config({"num_cells": 3, "port_range_low": 7, "nemo_gym_log_dir": "logs"})

    assert (default.cells, default.log_dir, default.endpoint_timeout, default.dry_run) == (None, None, 600.0, False)
    assert (changed.cells, changed.port_range[0], changed.log_dir) == (3, 7, Path("logs"))
