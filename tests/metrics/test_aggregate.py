"""What `/aggregate_metrics` answers."""

import asyncio
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.aggregate import (
    AggregateMetricsMixin,
    AggregateMetricsRequest,
    RolloutRowsError,
    compute_aggregate_metrics,
)


def row(task, rollout, reward, **fields):
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": reward, **fields}


def test_the_whole_answer_for_one_task_with_two_rollouts():
    """Keys, order and numbers are read by other people's programs."""
    rows = [
        row(0, 0, 1.0, steps=3, response={"usage": {"input_tokens": 10, "output_tokens": 2}}),
        row(0, 1, 0.0, steps=5, response={"usage": {"input_tokens": 10, "output_tokens": 4}}),
    ]

    answer = compute_aggregate_metrics(rows)

    figures = {
        "mean/reward": 0.5,
        "mean/steps": 4.0,
        "mean/input_tokens": 10.0,
        "mean/output_tokens": 3.0,
        "max/reward": 1.0,
        "max/steps": 5.0,
        "max/input_tokens": 10.0,
        "max/output_tokens": 4.0,
        "min/reward": 0.0,
        "min/steps": 3.0,
        "min/input_tokens": 10.0,
        "min/output_tokens": 2.0,
        "median/reward": 0.5,
        "median/steps": 4.0,
        "median/input_tokens": 10.0,
        "median/output_tokens": 3.0,
        "std/reward": pytest.approx(statistics.stdev([1, 0])),
        "std/steps": pytest.approx(statistics.stdev([3, 5])),
        "std/input_tokens": 0.0,
        "std/output_tokens": pytest.approx(statistics.stdev([2, 4])),
    }
    assert answer.agent_metrics == figures
    assert list(answer.agent_metrics) == list(figures)
    assert answer.key_metrics == {name: value for name, value in figures.items() if name.startswith("mean/")}
    assert answer.group_level_metrics == [
        {
            **figures,
            "_ng_task_index": 0,
            "sample": {"agent_ref": {"name": "agent"}},
            "num_rollouts": 2,
            "expected_num_rollouts": 2,
            "missing_num_rollouts": 0,
            "reward_profile_completion_pct": 100.0,
            "rollout_infos": [
                {
                    "rollout_id": f"0:{n}",
                    "_ng_task_index": 0,
                    "_ng_rollout_index": n,
                    "reward": reward,
                    "input_tokens": 10,
                    "output_tokens": out,
                    "steps": steps,
                }
                for n, reward, out, steps in [(0, 1.0, 2, 3), (1, 0.0, 4, 5)]
            ],
        }
    ]
    assert list(answer.group_level_metrics[0]["rollout_infos"][0]) == [
        "rollout_id",
        "_ng_task_index",
        "_ng_rollout_index",
        "reward",
        "input_tokens",
        "output_tokens",
        "steps",
    ]


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 3)), st.floats(-2, 2), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_rollouts_finished_changes_nothing(rewards, random):
    """Concurrency must not show in the score."""
    rows = [row(task, rollout, reward) for (task, rollout), reward in rewards.items()]
    seen = []

    def own(tasks):
        seen.append(tasks)
        return {}

    first = compute_aggregate_metrics(rows, own)
    second = compute_aggregate_metrics(random.sample(rows, len(rows)), own)

    assert first == second
    assert seen[0] == seen[1]
    assert first.agent_metrics["mean/reward"] == pytest.approx(statistics.fmean(rewards.values()), abs=1e-12)
    assert [group["_ng_task_index"] for group in first.group_level_metrics] == sorted({task for task, _ in rewards})


def test_a_rollout_given_twice_is_refused():
    """Counting it twice would weigh its task double without anyone noticing."""
    with pytest.raises(ValueError, match="rollout 1 of task 2 occurs twice"):
        compute_aggregate_metrics([row(2, 1, 1.0), row(2, 1, 0.0)])


def test_a_failure_is_counted_and_enters_no_mean():
    """91 % of a training run's rewards were once zeros of failed rollouts."""
    rows = [row(0, 0, 1.0), row(0, 1, 0.0, _ng_failure_class="judge_failed"), row(1, 0, 0.0, _ng_failure_class="x")]
    seen = []

    answer = compute_aggregate_metrics(rows, lambda tasks: seen.extend(tasks) or {})

    assert answer.agent_metrics["mean/reward"] == 1.0
    assert answer.agent_metrics["num_failed_rollouts"] == 2
    assert seen == [[rows[0]]]
    (group,) = answer.group_level_metrics
    assert (group["num_rollouts"], group["expected_num_rollouts"], group["missing_num_rollouts"]) == (1, 2, 1)
    assert group["reward_profile_completion_pct"] == 50.0


def test_without_failures_no_key_speaks_of_them():
    """The answer has the contract's keys and no others."""
    assert "num_failed_rollouts" not in compute_aggregate_metrics([row(0, 0, 1.0)]).agent_metrics


def test_a_reward_that_is_not_a_number_enters_no_mean():
    """NaN spreads: one would make every figure of the run NaN."""
    answer = compute_aggregate_metrics([row(0, 0, float("nan")), row(0, 1, 1.0)])

    assert answer.agent_metrics["mean/reward"] == 1.0
    assert answer.group_level_metrics[0]["mean/reward"] == 1.0
    assert "reward" not in answer.group_level_metrics[0]["rollout_infos"][0]


def test_rows_without_an_index_are_rollouts_of_task_zero():
    """Rows written by hand carry no index and are still worth a mean."""
    answer = compute_aggregate_metrics([{"reward": 1.0}, {"reward": 0.0}])

    assert [info["rollout_id"] for info in answer.group_level_metrics[0]["rollout_infos"]] == ["0:0", "0:1"]


def test_an_index_that_is_no_whole_number_is_named():
    """A broken file is one clear sentence."""
    with pytest.raises(RolloutRowsError, match="_ng_task_index must be a whole number, not 'a'"):
        compute_aggregate_metrics([{"_ng_task_index": "a", "reward": 1.0}])


def test_a_servers_own_metrics_join_ours():
    """Per-task figures go to their task, the rest to the agent, and the server picks the headline."""

    def own(tasks):
        return {
            "tasks": len(tasks),
            "per_task_metrics": [{"_ng_task_index": 1, "difficulty": 0.7}, {"_ng_task_index": 9, "difficulty": 1.0}],
        }

    answer = compute_aggregate_metrics(
        [row(1, 0, 1.0), row(0, 0, 0.0)], own, lambda metrics: {"tasks": metrics["tasks"]}
    )

    assert answer.agent_metrics["tasks"] == 2
    assert "per_task_metrics" not in answer.agent_metrics
    assert [group.get("difficulty") for group in answer.group_level_metrics] == [None, 0.7]
    assert answer.key_metrics == {"tasks": 2}


def test_no_rollouts_give_an_empty_answer():
    """Nothing was measured, so nothing is claimed."""
    answer = compute_aggregate_metrics([])

    assert (answer.agent_metrics, answer.group_level_metrics, answer.key_metrics) == ({}, [], {})


def test_a_server_overrides_what_it_wants_and_inherits_the_rest():
    """The mixin is how 46 existing servers add their metrics."""

    class Server(AggregateMetricsMixin):
        def compute_metrics(self, tasks):
            return {"solved": sum(any(r["reward"] for r in task) for task in tasks)}

    async def ask(server):
        return await server.aggregate_metrics(AggregateMetricsRequest(verify_responses=[row(0, 0, 1.0)]))

    assert asyncio.run(ask(Server())).agent_metrics["solved"] == 1
    assert asyncio.run(ask(Server())).key_metrics == {"mean/reward": 1.0}
    assert "solved" not in asyncio.run(ask(AggregateMetricsMixin())).agent_metrics


VALUES = st.floats() | st.integers(-3, 3) | st.booleans() | st.none() | st.sampled_from(["x", [1], {"a": 1}, 10**400])
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "_ng_task_index": st.integers(0, 3),
            "reward": VALUES,
        },
        optional={
            "steps": VALUES,
            "_ng_failure_class": st.sampled_from([None, "timeout"]),
            "response": st.none() | st.fixed_dictionaries({"usage": st.fixed_dictionaries({"total_tokens": VALUES})}),
        },
    ),
    max_size=12,
)


def naive(rows):
    """The contract's words, written down without a thought for memory or time."""
    scored = [r for r in rows if r.get("_ng_failure_class") is None]
    numbers = []
    for r in scored:
        usage = (r.get("response") or {}).get("usage") or {}
        fields = {**usage, **{n: v for n, v in r.items() if not n.startswith("_ng_")}}
        numbers.append(
            {
                n: float(v)
                for n, v in fields.items()
                if isinstance(v, int | float) and abs(v) < 2**1023 and math.isfinite(v)
            }
        )

    def figures(of):
        columns = {n: [f[n] for f in of if n in f] for f in of for n in f}
        metrics = {}
        for n, values in columns.items():
            metrics |= {f"max/{n}": max(values), f"min/{n}": min(values), f"median/{n}": statistics.median(values)}
            metrics[f"mean/{n}"] = statistics.fmean(values)
            if len(values) > 1:
                metrics[f"std/{n}"] = statistics.stdev(values)
        if columns and all(len(values) < 2 for values in columns.values()):
            metrics |= {f"std/{n}": 0.0 for n in columns}
        return {n: v for n, v in metrics.items() if math.isfinite(v)}

    tasks = sorted({r["_ng_task_index"] for r in scored})
    by_task = [[f for r, f in zip(scored, numbers, strict=True) if r["_ng_task_index"] == t] for t in tasks]
    return figures(numbers), {t: figures(of) for t, of in zip(tasks, by_task, strict=True)}


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_one_pass_gives_what_the_plain_computation_gives(rows):
    """Any rows: failed ones, NaN, missing fields, numbers too large, repeats without an index."""
    tame = [
        {n: 1e6 if isinstance(v, float) and math.isfinite(v) and abs(v) > 1e6 else v for n, v in r.items()}
        for r in rows
    ]
    for r in tame:
        tokens = ((r.get("response") or {}).get("usage") or {}).get("total_tokens")
        if isinstance(tokens, float) and math.isfinite(tokens) and abs(tokens) > 1e6:
            r["response"] = None

    answer = compute_aggregate_metrics(tame)

    overall, by_task = naive(tame)
    metrics = {n: v for n, v in answer.agent_metrics.items() if n != "num_failed_rollouts"}
    assert metrics == {n: pytest.approx(v, rel=1e-9, abs=1e-9) for n, v in overall.items()}
    assert answer.agent_metrics.get("num_failed_rollouts", 0) == sum(
        r.get("_ng_failure_class") is not None for r in tame
    )
    assert [group["_ng_task_index"] for group in answer.group_level_metrics] == list(by_task)
    for group in answer.group_level_metrics:
        figures = {n: v for n, v in group.items() if n.partition("/")[0] in ("mean", "max", "min", "median", "std")}
        assert figures == {n: pytest.approx(v, rel=1e-9, abs=1e-9) for n, v in by_task[group["_ng_task_index"]].items()}
