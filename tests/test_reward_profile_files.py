"""The profile read from a run's files."""

import json

import pytest

from nemo_gym.errors import ConfigPathNotFoundError
from nemo_gym.journal import StoreError
from nemo_gym.metrics.aggregate import RolloutRowsError
from nemo_gym.reward_profile import RewardProfiler, RunProfile


def place(task, rollout, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": "solver"}, **fields}


INPUTS = [place(t, r, question=f"q{t}") for t in range(3) for r in range(2)]
RESULTS = [place(t, r, reward=float(r), response={"usage": {"total_tokens": t}}) for t in (2, 0, 1) for r in (1, 0)]


@pytest.fixture
def files(tmp_path):
    def write(name, rows, tail=""):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
        return path

    return write


def test_a_run_read_line_by_line_gives_what_lists_give(files):
    """Holding a hundred thousand conversations in memory is what this saves, and all it changes."""
    run = RunProfile(files("in.jsonl", INPUTS), files("out.jsonl", RESULTS, tail='{"torn'))

    groups, agents = RewardProfiler().profile_from_data(INPUTS, RESULTS)
    assert list(run.groups_with_inputs()) == groups
    assert run.agents() == agents
    assert groups[1]["sample"] == {"agent_ref": {"name": "solver"}, "question": "q1"}


@pytest.mark.parametrize("missing", ["in.jsonl", "out.jsonl"])
def test_a_file_that_is_not_there_is_named(files, missing):
    """An empty profile would look like an empty run."""
    paths = {"in.jsonl": files("in.jsonl", INPUTS), "out.jsonl": files("out.jsonl", RESULTS)}
    paths[missing].unlink()

    with pytest.raises(ConfigPathNotFoundError, match=missing):
        RunProfile(paths["in.jsonl"], paths["out.jsonl"])


def test_a_damaged_line_is_named(files):
    """Leaving it out would change the score without a word."""
    inputs = files("in.jsonl", INPUTS)
    damaged = files("out.jsonl", RESULTS[:1], tail="nonsense\n{}\n")

    with pytest.raises(StoreError, match=r"out\.jsonl:2"):
        RunProfile(inputs, damaged)


def test_the_same_input_twice_is_refused(files):
    """Two rows with one identity cannot both be answered."""
    with pytest.raises(RolloutRowsError, match="rollout 1 of task 2 occurs twice"):
        RunProfile(files("in.jsonl", [*INPUTS, INPUTS[-1]]), files("out.jsonl", RESULTS))
