"""The files beside an output."""

from pathlib import Path

from nemo_gym.path_utils import failures_path_for as public_failures_path_for
from nemo_gym.rollouts.run_files import (
    aggregate_metrics_path_for,
    failures_path_for,
    index_folder_for,
    lock_path_for,
    materialized_path_for,
    previous_folder_for,
    run_path_for,
)


def test_files_of_a_run_lie_beside_its_output():
    """Other tools find the files by these names."""
    assert failures_path_for("out/x.jsonl") == Path("out/x_failures.jsonl")
    assert materialized_path_for(Path("out/x.jsonl")) == Path("out/x_materialized_inputs.jsonl")
    assert aggregate_metrics_path_for("x.jsonl") == Path("x_aggregate_metrics.json")
    assert run_path_for("out/x.jsonl") == Path("out/x_run.json")
    assert index_folder_for("out/x.jsonl") == Path("out/x_index")
    assert previous_folder_for("out/x.jsonl") == Path("out/x_previous")
    assert lock_path_for("out/x.jsonl") == Path("out/x.lock")
    assert public_failures_path_for is failures_path_for
