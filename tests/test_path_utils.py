"""The path of the failures file follows from the output."""

from pathlib import Path

import pytest

from nemo_gym.path_utils import aggregate_metrics_path_for, failures_path_for, materialized_path_for


@pytest.mark.parametrize("output", ["dir/x.jsonl", Path("dir/x.jsonl")])
def test_the_failures_file_is_beside_the_output(output):
    """Agents and tools outside this package compute the same path."""
    assert failures_path_for(output) == Path("dir/x_failures.jsonl")
    assert materialized_path_for(output) == Path("dir/x_materialized_inputs.jsonl")
    assert aggregate_metrics_path_for(output) == Path("dir/x_aggregate_metrics.json")
