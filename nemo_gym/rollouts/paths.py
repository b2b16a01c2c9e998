"""Where the files that belong to one output file live: next to it, named after its stem."""

from pathlib import Path

FAILURES_ENDING = "_failures.jsonl"
MATERIALIZED_ENDING = "_materialized_inputs.jsonl"
AGGREGATE_METRICS_ENDING = "_aggregate_metrics.json"


def failures_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_failures.jsonl`: the rollouts without a reward."""
    return _sibling(output, FAILURES_ENDING)


def materialized_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_materialized_inputs.jsonl`: every row as it is sent, repeats included."""
    return _sibling(output, MATERIALIZED_ENDING)


def aggregate_metrics_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_aggregate_metrics.json`: one entry per agent."""
    return _sibling(output, AGGREGATE_METRICS_ENDING)


def _sibling(output: str | Path, ending: str) -> Path:
    path = Path(output)
    return path.with_name(path.stem + ending)
