"""Rows go to the agents that they or the options name."""

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
