"""The profile lines inputs up with rollouts and says what is missing."""

import pytest

from nemo_gym.metrics.aggregate import RolloutRowsError, RolloutStats
from nemo_gym.reward_profile import Profile, RewardProfiler, count_reward_spread


def source(task, rollout, agent="solver", **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": {"name": agent}, **fields}


def finished_row(task, rollout, reward, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, **fields}


INPUTS = [source(0, 0, question="a"), source(0, 1, question="a"), source(1, 0, "other", question="b")]


def test_a_complete_run_has_one_entry_per_task_and_per_agent():
    """This is what people sort tasks by before training."""
    results = [finished_row(1, 0, 0.5), finished_row(0, 1, 0.0), finished_row(0, 0, 1.0)]

    groups, agents = RewardProfiler().profile_from_data(INPUTS, results)

    assert [(g["_ng_task_index"], g["mean/reward"], g["num_rollouts"]) for g in groups] == [(0, 0.5, 2), (1, 0.5, 1)]
    assert groups[0]["sample"] == {"agent_ref": {"name": "solver"}, "question": "a"}
    assert [info["rollout_id"] for info in groups[0]["rollout_infos"]] == ["0:0", "0:1"]
    assert {a["agent_ref"]["name"]: a["mean/reward"] for a in agents} == {"solver": 0.5, "other": 0.5}


def test_a_missing_rollout_is_refused_unless_partial_ones_are_allowed():
    """A profile of half the data looks like a profile of all of it."""
    results = [finished_row(0, 0, 1.0), finished_row(1, 0, 0.0)]

    with pytest.raises(ValueError, match="1 of 3 rollouts are missing or failed: 0:1"):
        RewardProfiler().profile_from_data(INPUTS, results)
    groups, _ = RewardProfiler().profile_from_data(INPUTS, results, allow_partial_rollouts=True)

    assert [(g["expected_num_rollouts"], g["missing_num_rollouts"]) for g in groups] == [(2, 1), (1, 0)]
    assert groups[0]["reward_profile_completion_pct"] == 50.0


def test_a_failed_rollout_is_missing_not_zero():
    """A task is not hard because a server was down."""
    results = [
        finished_row(0, 0, 1.0),
        finished_row(0, 1, 0.0, _ng_failure_class="agent_error"),
        finished_row(1, 0, 0.0),
    ]

    groups, agents = RewardProfiler().profile_from_data(INPUTS, results, allow_partial_rollouts=True)

    assert groups[0]["mean/reward"] == 1.0
    assert {a["agent_ref"]["name"]: a["mean/reward"] for a in agents} == {"solver": 1.0, "other": 0.0}


def test_a_rollout_nobody_asked_for_is_refused():
    """It comes from another run, and so may the rest."""
    with pytest.raises(RolloutRowsError, match="1 rollouts belong to no input row: 7:0"):
        RewardProfiler().profile_from_data(INPUTS, [finished_row(7, 0, 1.0)], allow_partial_rollouts=True)


@pytest.mark.parametrize("inputs", [INPUTS, [*INPUTS, source(0, 1)]])
def test_the_same_rollout_twice_is_refused(inputs):
    """In the inputs as in the results."""
    with pytest.raises(ValueError, match="rollout 1 of task 0 occurs twice"):
        RewardProfiler().profile_from_data(
            inputs, [finished_row(0, 1, 1.0), finished_row(0, 1, 1.0)], allow_partial_rollouts=True
        )


def test_the_summary_counts_rollouts_and_tasks():
    """The first thing printed: how much of the run is there."""
    inputs = [*INPUTS, source(2, 0)]

    assert RewardProfiler().profile_completion_summary(
        inputs, [finished_row(0, 0, 1.0), finished_row(1, 0, 1.0), finished_row(9, 9, 0.0)]
    ) == {
        "expected_rollout_rows": 4,
        "completed_rollout_rows": 2,
        "missing_rollout_rows": 2,
        "extra_rollout_rows": 1,
        "completion_pct": 50.0,
        "total_input_rows": 3,
        "complete_input_rows": 1,
        "partial_input_rows": 1,
        "missing_input_rows": 1,
    }
    assert Profile([], []).summary()["completion_pct"] == 0.0


def test_rows_and_results_are_paired_in_order():
    """Whatever the order on disk."""
    rows, results = RewardProfiler().align_rows_and_results(
        INPUTS[::-1], [finished_row(0, 1, 0.0), finished_row(1, 0, 0.5), finished_row(0, 0, 1.0)]
    )

    assert [row["question"] for row in rows] == ["a", "a", "b"]
    assert [result["reward"] for result in results] == [1.0, 0.0, 0.5]


def test_an_index_missing_in_one_rollout_stands_for_the_first():
    """Rows from a run with a single repeat may carry no rollout index."""
    groups, _ = RewardProfiler().profile_from_data([{"_ng_task_index": 4}], [{"_ng_task_index": 4, "reward": 1}])

    assert groups[0]["rollout_infos"][0]["rollout_id"] == "4:0"


def test_a_rollout_in_short():
    """Who, reward, usage, the rest."""
    info = RewardProfiler().rollout_info_from_result(finished_row(3, 1, 0.5, response={"usage": {"total_tokens": 9}}))

    assert info == {
        "rollout_id": "3:1",
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "reward": 0.5,
        "total_tokens": 9,
    }


def test_figures_of_plain_rows_leave_failures_out():
    """The two public names for describing rows agree on scored ones."""
    profiler = RewardProfiler()
    rows = [finished_row(0, 0, 1.0), finished_row(0, 1, 0.0, _ng_failure_class="x")]

    assert profiler.calculate_metrics_single_df(rows)["mean/reward"] == 1.0
    assert profiler.describe_dataframe(rows)["mean/reward"] == 0.5


def test_what_json_cannot_write_is_left_out():
    """`null` would be read as a value."""
    assert RewardProfiler().prepare_for_serialization([{"a": float("nan"), "b": 1.0, "c": "x"}]) == [
        {"b": 1.0, "c": "x"}
    ]


def test_the_spread_counts_what_tasks_can_teach():
    """A task that is always or never solved gives a trainer nothing to compare."""
    rewards = {0: (1, 0), 1: (1, 1), 2: (0, 0), 3: (1,)}
    stats = RolloutStats()
    for task, values in rewards.items():
        for rollout, reward in enumerate(values):
            stats.add(finished_row(task, rollout, reward))

    assert count_reward_spread(stats) == {
        "num_tasks": 4,
        "rewards_differ": 1,
        "all_rewards_equal": 2,
        "never_solved": 1,
        "always_solved": 2,
    }


def test_a_graded_reward_is_never_called_solved():
    """0.3 is neither."""
    stats = RolloutStats()
    stats.add(finished_row(0, 0, 0.3))

    assert count_reward_spread(stats) == {"num_tasks": 1, "rewards_differ": 0, "all_rewards_equal": 0}
