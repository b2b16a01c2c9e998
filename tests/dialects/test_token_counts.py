"""Every model server that ships reports all token counts: the SDKs of some clients refuse null."""

import importlib
from pathlib import Path

import pytest

import responses_api_models
from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel

FOLDERS = sorted(path.parent.name for path in Path(next(iter(responses_api_models.__path__))).glob("*/app.py"))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_shipped_model_server_reports_every_count(folder: str) -> None:
    """Codex ends with an error on a count that is null."""
    module = importlib.import_module(f"responses_api_models.{folder}.app")

    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    classes = [value for value in own if isinstance(value, type) and issubclass(value, SimpleResponsesAPIModel)]

    assert classes
    assert all(model_class.REPORTS_EVERY_COUNT for model_class in classes)
