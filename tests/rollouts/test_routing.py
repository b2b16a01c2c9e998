"""Rows go to the agents that they or the options name."""

import json
import re
from typing import Any

import pytest

from nemo_gym.config.instances import server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import RolloutCollectionConfig
from nemo_gym.rollouts.plan import AgentNames, InputRowsError, PlanOptions, plan_jobs
from nemo_gym.rollouts.routing import AgentRoutes

VERIFIER = {"type": "resources_servers", "name": "v"}
SERVERS: dict[str, Any] = {
    "v": {"resources_servers": {"sums": {"entrypoint": "app.py"}}},
    "w": {"resources_servers": {"sums": {"entrypoint": "app.py"}}},
    "a": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "resources_server": VERIFIER}}},
    "b": {"responses_api_agents": {"other": {"entrypoint": "app.py"}}},
    "m": {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}},
}


def names(row: dict[str, Any], **options: Any) -> list[str]:
    routes = AgentRoutes(instances=server_instances(SERVERS), **options)
    return [reference["name"] for reference in routes.references(row)]


def test_rows_without_an_agent_go_to_the_agent_of_their_source() -> None:
    """Data prepared by newer releases names the instance that declares it, not the agent."""
    assert names({"task_source": "v"}) == ["a"]
    assert names({"task_source": "b"}) == ["b"]
    assert names({"task_source": "v"}, default_agent="b") == ["b"]
    assert names({"task_source": "v", "agent_ref": {"name": "x"}}) == ["x"]


@pytest.mark.parametrize(
    "fields", [{"agent_server": {"name": "a"}}, {"solver": {"type": "responses_api_agents", "name": "a"}}]
)
def test_a_source_may_be_an_environment_server(fields: dict[str, Any]) -> None:
    """Newer releases put one before each agent; here the agent is called directly."""
    options = RolloutCollectionConfig(input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl")
    servers = {**SERVERS, "e": {"environment_servers": {"legacy_agent": {"entrypoint": "app.py", **fields}}}}

    (reference,) = AgentRoutes.from_options(options, servers).references({"task_source": "e"})

    assert reference["name"] == "a"


@pytest.mark.parametrize("source", ["w", "m", "missing", None])
def test_a_source_without_a_single_agent_is_a_problem_of_the_row(source: str | None) -> None:
    """The wrong agent would spend a whole run on rows that it cannot solve."""
    with pytest.raises(ConfigError):
        names({"task_source": source})


def test_the_options_have_priority_over_the_row() -> None:
    """One run compares agents on the same rows without rewriting the data."""
    row = {"agent_ref": {"name": "a"}, "task_source": "v"}

    assert names(row, agent_map={"a": "b"}) == ["b"]
    assert names(row, agent_map={"v": "b"}) == ["b"]
    assert names(row, agent_map={"_default": "b"}) == ["b"]
    assert names(row, fan_out={"v": ["a", "b"]}) == ["a", "b"]
    assert names(row, agent_map={"other": "b"}) == ["a"]


def test_every_agent_of_a_fanned_out_row_gets_rollouts_of_its_own() -> None:
    """Results are stored by task and rollout, so two agents must not share a number."""
    lines = [(1, b'{"task_source": "v", "responses_create_params": {"input": "?"}}')]
    routes = AgentRoutes(fan_out={"v": ["a", "b"]}, instances=server_instances(SERVERS))
    options = PlanOptions(routes=routes, repeats=2, agents=AgentNames(["a", "b"]))

    jobs = list(plan_jobs(lines, options, source="rows.jsonl"))

    assert [(job.key.rollout, job.agent) for job in jobs] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    unknown = PlanOptions(routes=routes, agents=AgentNames(["a"]))
    with pytest.raises(InputRowsError, match="unknown agent 'b'"):
        list(plan_jobs(lines, unknown, source="rows.jsonl"))


TASK = {
    "task_id": {"taskset": "sums", "task_id": "t1"},
    "task_input": {"responses_create_params": {"input": "2+2?"}, "task_data": {"answer": 4}, "level": 1},
    "_ng_task_index": 7,
}


def plan(*rows: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    config = RolloutCollectionConfig(input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl", **options)
    servers = {**SERVERS, "environment_server_routes": {"sums": "v"}}
    choice = PlanOptions(routes=AgentRoutes.from_options(config, servers), agents=AgentNames(["a", "b"]))
    lines = [(number, json.dumps(row).encode()) for number, row in enumerate(rows, start=1)]
    return [job.row for job in plan_jobs(lines, choice, source="rows.jsonl")]


def test_a_task_with_an_identity_is_sent_as_a_flat_row_to_the_agent_of_its_set() -> None:
    """Newer releases write such rows; agents and verifiers read the fields of the task at the top level."""
    (row,) = plan(TASK)

    assert row["agent_ref"]["name"] == "a"
    assert (row["answer"], row["level"], row["_ng_task_index"]) == (4, 1, 7)
    assert row["responses_create_params"] == {"input": "2+2?"}
    assert row["_ng_task_id"] == TASK["task_id"]
    assert not {"task_id", "task_input", "task_data"} & row.keys()


def test_a_task_of_a_set_without_a_route_names_the_key_that_adds_one() -> None:
    """The message about `agent_ref` would not say what is missing in a row of this form."""
    foreign = {**TASK, "task_id": {"taskset": "games", "task_id": "t1"}}

    with pytest.raises(InputRowsError, match=r"environment_server_routes\.games"):
        plan(foreign)

    assert plan(foreign, agent_map={"_default": "b"})[0]["agent_ref"]["name"] == "b"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"task_id": {"taskset": "sums"}}, "task_id: not an object with the texts"),
        ({"task_input": None}, "task_input: not an object"),
        ({"task_input": {"task_data": []}}, "task_input.task_data: not an object"),
        ({"task_input": {"task_data": {"level": 1}, "level": 2}}, "'level' occurs with two values"),
        ({"task_input": {"task_data": {"level": 1}}}, "no object 'responses_create_params'"),
    ],
)
def test_an_invalid_task_is_a_problem_of_its_row(change: dict[str, Any], problem: str) -> None:
    """A field with two values would be graded by whichever is read first."""
    with pytest.raises(InputRowsError, match=re.escape(problem)):
        plan({**TASK, **change})
