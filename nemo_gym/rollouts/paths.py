"""Where the files that belong to one output file live: next to it, named after its stem."""

from pathlib import Path

FAILURES_ENDING = "_failures.jsonl"
MATERIALIZED_ENDING = "_materialized_inputs.jsonl"
AGGREGATE_METRICS_ENDING = "_aggregate_metrics.json"
RUN_ENDING = "_run.json"
INDEX_ENDING = "_index"
PREVIOUS_ENDING = "_previous"
LOCK_ENDING = ".lock"


def failures_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_failures.jsonl`: the rollouts without a reward."""
    return _sibling(output, FAILURES_ENDING)


def materialized_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_materialized_inputs.jsonl`: every row as it is sent, repeats included."""
    return _sibling(output, MATERIALIZED_ENDING)


def aggregate_metrics_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_aggregate_metrics.json`: one entry per agent."""
    return _sibling(output, AGGREGATE_METRICS_ENDING)


def run_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_run.json`: what run this is, so that only the same one is resumed."""
    return _sibling(output, RUN_ENDING)


def index_folder_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_index`: which rollouts are where; made again when it is missing."""
    return _sibling(output, INDEX_ENDING)


def previous_folder_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x_previous`: where the files of the run before are kept, under their own names."""
    return _sibling(output, PREVIOUS_ENDING)


def lock_path_for(output: str | Path) -> Path:
    """`dir/x.jsonl` -> `dir/x.lock`: there as long as somebody collects into this output."""
    return _sibling(output, LOCK_ENDING)


def _sibling(output: str | Path, ending: str) -> Path:
    path = Path(output)
    return path.with_name(path.stem + ending)
