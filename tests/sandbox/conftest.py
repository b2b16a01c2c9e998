"""Fake engines for the sandbox tests, which need no container daemon."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _engines() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sandbox_engines", Path(__file__).with_name("engines.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def docker(tmp_path):
    return _engines().fake_docker(tmp_path)


@pytest.fixture
def apptainer(tmp_path):
    return _engines().fake_apptainer(tmp_path)
