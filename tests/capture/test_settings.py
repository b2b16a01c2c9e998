"""Capturing is on exactly when the configuration says so."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf

from nemo_gym.capture.store import capture_store, captures_model_calls, captures_token_ids
from nemo_gym.errors import ConfigError


@pytest.mark.parametrize("config", [None, {}, {"observability_enabled": False}, MagicMock()])
def test_nothing_is_captured_unless_asked(config: Any) -> None:
    """A mock in place of a configuration must not switch it on."""
    assert not captures_model_calls(config)
    assert capture_store(config) is None
    assert not captures_token_ids(config, for_this_agent=True)


def test_the_folder_comes_from_the_configuration(tmp_path: Path) -> None:
    """Every model server of a run writes to the same place."""
    config = OmegaConf.create({"observability_enabled": True, "model_call_capture_dir": str(tmp_path)})

    store = capture_store(config)

    assert store is not None
    assert store.directory == tmp_path


@pytest.mark.parametrize("folder", [None, "here", 3])
def test_a_folder_that_depends_on_the_working_directory_is_refused(folder: Any) -> None:
    """Each server process has a different working directory."""
    with pytest.raises(ConfigError) as caught:
        capture_store({"observability_enabled": True, "model_call_capture_dir": folder})

    assert repr(folder) in str(caught.value)
    assert "+model_call_capture_dir=" in str(caught.value)


@pytest.mark.parametrize(
    ("block", "asks", "captured"),
    [
        ({"enabled": True}, True, True),
        ({"enabled": True}, False, False),
        ({"enabled": True, "all_agents": True}, False, True),
        ({"enabled": False, "all_agents": True}, True, False),
        ("yes", True, False),
    ],
)
def test_token_ids_are_kept_for_agents_that_ask_or_for_all(block: Any, asks: bool, captured: bool) -> None:
    """The run switches it on; the agent chooses, unless the run chose for all."""
    assert captures_token_ids(OmegaConf.create({"token_id_capture": block}), for_this_agent=asks) is captured
