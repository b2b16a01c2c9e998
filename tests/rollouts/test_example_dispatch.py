"""Rows of a trainer: limits in flight, a time budget, failures as results, and the plan of a batch."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import DispatchLatencyTracker, RolloutCollectionHelper
from nemo_gym.rollouts.example_dispatch import (
    DispatchOptions,
    drained_result,
    failure_result,
    route_to_environment,
    send_examples,
)
from nemo_gym.rollouts.plan import InputRowsError

ROWS = [{"number": number} for number in range(8)]


async def double(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"twice": 2 * row["number"]}


def options(**fields: Any) -> DispatchOptions:
    return DispatchOptions(slots=nullcontext(), **fields)


@pytest.mark.parametrize("most", [None, 1, 3, 100])
@pytest.mark.asyncio
async def test_every_row_is_sent_once_with_its_result(most: int | None) -> None:
    """A limit of tasks must not lose or repeat a row of the batch."""
    awaitables = list(send_examples(ROWS, double, options(max_resident_tasks=most)))

    results = await asyncio.gather(*awaitables)

    assert sorted((row["number"], result["twice"]) for row, result in results) == [(n, 2 * n) for n in range(8)]


@pytest.mark.asyncio
async def test_resident_tasks_limit_the_rows_in_flight_and_a_failure_raises_alone() -> None:
    """A batch of a million rows must not be a million tasks."""
    in_flight = most = 0

    async def run(row: dict[str, Any]) -> int:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return 1 // row["number"]

    awaitables = send_examples(ROWS, run, options(max_resident_tasks=2))
    outcomes = await asyncio.gather(*awaitables, return_exceptions=True)

    assert most == 2
    assert [type(one) for one in outcomes].count(ZeroDivisionError) == 1
    assert len(outcomes) == len(ROWS)


@pytest.mark.asyncio
async def test_closing_the_iterator_cancels_the_rows_in_flight() -> None:
    """A trainer that stops must not leave rollouts behind."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def run(row: dict[str, Any]) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    iterator = send_examples(ROWS, run, options(max_resident_tasks=1))
    first = next(iterator)
    await started.wait()
    iterator.close()
    first.close()

    await asyncio.wait_for(cancelled.wait(), 10)


@pytest.mark.parametrize("limits", [{"budget_seconds": 0.0}, {"budget_seconds": 60.0, "margin_seconds": 60.0}])
@pytest.mark.asyncio
async def test_rows_after_the_budget_are_returned_as_drained(limits: dict[str, float]) -> None:
    """They have no reward and are not stored, so that a resumed run sends them."""
    tracker = DispatchLatencyTracker()
    results = [await one for one in send_examples(ROWS, double, options(tracker=tracker, **limits))]

    assert all(result["_ng_failure_class"] == "cancelled" and result["_ng_no_persist"] for _, result in results)
    assert all(result["_ng_dispatch_drained"] and "reward" not in result for _, result in results)
    assert (tracker.summary()["drained"], tracker.summary()["completed"]) == (len(ROWS), 0)


@pytest.mark.asyncio
async def test_a_budget_that_is_not_spent_changes_nothing() -> None:
    """The durations of the rows are recorded for the margin."""
    tracker = DispatchLatencyTracker()

    results = [await one for one in send_examples(ROWS, double, options(tracker=tracker, budget_seconds=3600.0))]

    assert all("twice" in result for _, result in results)
    assert tracker.summary()["completed"] == len(ROWS)


def test_the_margin_is_the_time_of_a_rollout_once_five_are_finished() -> None:
    """Fewer say little: one slow rollout at the start would end the run."""
    tracker = DispatchLatencyTracker()
    assert (tracker.quantile(0.5), tracker.drain_margin()) == (None, 0.0)

    for seconds in (4.0, 1.0, 3.0, 2.0):
        tracker.record(seconds)
    assert tracker.drain_margin() == 0.0
    tracker.record(5.0)

    assert tracker.drain_margin() == 4.0
    assert (tracker.quantile(0.0), tracker.quantile(0.5), tracker.quantile(1.0)) == (1.0, 3.0, 5.0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        tracker.quantile(75)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_resident_tasks": 0}, "max_resident_tasks"),
        ({"budget_seconds": -1.0}, "dispatch_budget_s"),
        ({"margin_seconds": float("nan")}, "drain_margin_s"),
    ],
)
def test_invalid_limits_are_refused(fields: dict[str, Any], name: str) -> None:
    """A limit of 0 tasks would wait without an end."""
    with pytest.raises(ConfigError, match=name):
        options(**fields)


def test_the_reward_of_an_earlier_rollout_is_no_reward_of_a_failure() -> None:
    """Rows may be the records of an earlier run; a trainer would train on the old reward and answer."""
    row = {"number": 1, "reward": 1.0, "response": {"output": []}}

    for result in (failure_result(row, TimeoutError()), drained_result(row, 1.0)):
        assert not {"reward", "response"} & result.keys()
        assert result["number"] == 1


@pytest.mark.asyncio
async def test_a_row_whose_code_raises_a_cancellation_ends_alone() -> None:
    """The worker would end without a result for its row, and the trainer would wait for it without an end."""

    async def run(row: dict[str, Any]) -> int:
        await asyncio.sleep(0)
        if row["number"] == 0:
            raise asyncio.CancelledError
        return 1

    awaitables = send_examples(ROWS, run, options(max_resident_tasks=1))
    outcomes = await asyncio.wait_for(asyncio.gather(*awaitables, return_exceptions=True), 10)

    assert [type(one) for one in outcomes].count(asyncio.CancelledError) == 1
    assert len(outcomes) == len(ROWS)


def test_a_failure_without_an_answer_is_a_failed_request() -> None:
    """It may be sent again; what the agent itself answered may not."""
    result = failure_result({"number": 1}, TimeoutError("too slow" * 1000))

    assert (result["_ng_failure_class"], result["_ng_failure_type"]) == ("agent_request_failed", "TimeoutError")
    assert len(result["_ng_failure_message"]) == 2000
    assert "reward" not in result


SERVERS: dict[str, Any] = {
    "a": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}},
    "b": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}},
    "e": {"environment_servers": {"legacy_agent": {"entrypoint": "app.py", "agent_server": {"name": "b"}}}},
}


def test_a_batch_is_planned_as_a_collection_plans_its_rows() -> None:
    """Trainers get the same agents and numbers without files."""
    rows = [{"responses_create_params": {"input": "x"}, "agent_ref": {"name": "a"}}]

    planned = RolloutCollectionHelper.preprocess_examples(
        rows, fan_out={"a": ["a", "b"]}, num_repeats=2, num_repeats_add_seed=True, global_config_dict=SERVERS
    )

    assert [(row["agent_ref"]["name"], row["_ng_rollout_index"]) for row in planned] == [
        ("a", 0),
        ("a", 1),
        ("b", 2),
        ("b", 3),
    ]
    assert [row["responses_create_params"]["metadata"]["extra_body"] for row in planned[:2]]
    with pytest.raises(InputRowsError, match="no 'agent_ref'"):
        RolloutCollectionHelper.preprocess_examples(
            [{"responses_create_params": {"input": "x"}}], global_config_dict=SERVERS
        )


def test_rows_go_to_the_agent_of_an_environment_server() -> None:
    """A misspelt name must not send a batch to another agent."""
    assert route_to_environment([{"number": 1}], "e", SERVERS)[0]["agent_ref"]["name"] == "b"
    with pytest.raises(ConfigError, match="one of e"):
        route_to_environment([{"number": 1}], "f", SERVERS)
