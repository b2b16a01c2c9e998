"""The failures file has a place people can predict."""

from pathlib import Path

import pytest

from nemo_gym.path_utils import failures_path_for


@pytest.mark.parametrize("given", ["dir/x.jsonl", Path("dir/x.jsonl")])
def test_the_failures_file_lies_next_to_the_output(given):
    """Agents and tools outside this package compute the same path."""
    assert failures_path_for(given) == Path("dir/x_failures.jsonl")
