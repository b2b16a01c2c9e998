"""Environments that run programs, on a machine whose user may not create control groups."""

import asyncio
from pathlib import Path

import pytest

from nemo_gym.authoring.audit import import_folder_module
from nemo_gym.authoring.verifier_cases import exercise_verifier_fixture
from nemo_gym.sandbox.providers.local import probe
from nemo_gym.sandbox.providers.local.cgroups import Cgroups

SERVERS = Path(__file__).parents[2] / "resources_servers"


@pytest.mark.parametrize("name", ["bird_sql", "code_gen", "math_with_code"])
def test_verdicts_are_the_same_without_control_groups(monkeypatch, name):
    """Without groups more system calls are refused; code_gen scored every right program 0.0 for an ordinary user."""
    if not probe().available:
        pytest.skip(f"no isolation here: {probe().problem}")
    monkeypatch.setattr(Cgroups, "find", lambda: None)
    fixture = import_folder_module(SERVERS / name, "app").VERIFIER_FIXTURE

    results = asyncio.run(exercise_verifier_fixture(fixture, seeded=True, reward_range=(0.0, 1.0), best=1.0))

    assert [f"{result.name}: {result.problem}" for result in results if not result.is_good] == []
    assert len(results) > 3
