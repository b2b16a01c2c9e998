"""An orchestrator and its sub-agents: scripted models and a real environment in this process."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.training.samples import rollout_of
from responses_api_agents.orchestrator_agent.app import OrchestratorAgent
from responses_api_agents.simple_agent.tests.bench import WEATHER, Bench, tool_texts, types, unmount_servers
from responses_api_models.scripted_model.script import Scene

TOOL = {"type": "function", "name": "weather", "description": "", "strict": False, "parameters": {"type": "object"}}
ROW = {"responses_create_params": {"input": "Compare Oslo and Rome.", "tools": [TOOL]}}
SUB_AGENTS = {"reporter": {"description": "Reports the weather.", "instructions": "You report."}}
_scenes: list[Scene] = []


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    _scenes.clear()
    yield
    unmount_servers()


def play(scene: Scene) -> dict[str, Any]:
    """Play the orchestrator, which delegates two cities in one turn, and the reporter, which calls the tool."""
    _scenes.append(scene)
    if scene.conversation[0].get("content") == "You report.":
        city = scene.conversation[1]["content"]
        return (
            {"text": f"It is grey in {city}."}
            if scene.number
            else {"tool_calls": [{"name": "weather", "arguments": {"city": city}}]}
        )
    if scene.number:
        return {"text": "Both grey."}
    return {"tool_calls": [{"name": "reporter", "arguments": {"task": city}} for city in ("Oslo", "Rome")]}


def bench(script: Any = f"{__name__}:play", **settings: Any) -> Bench:
    return Bench(script, agent=OrchestratorAgent, **{"sub_agents": SUB_AGENTS, **settings})


def test_sub_agents_run_in_the_session_of_the_rollout_and_return_their_last_message() -> None:
    """The verifier needs the state that all of them left."""
    result = bench().run(**ROW)

    assert types(result["response"]) == [*["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert tool_texts(result["response"]) == ["It is grey in Oslo.", "It is grey in Rome."]
    assert result["reward"] == 2.0


def test_every_run_is_recorded_with_its_conversation() -> None:
    """A reader must see which call of which agent did what."""
    result = bench().run(**ROW)

    records = {each["invocation_id"]: each for each in result["ng_agent_observations"]["records"]}
    assert set(records) == {"root", "reporter-1", "reporter-2"}
    calls = {item["call_id"] for item in result["response"]["output"] if item["type"] == "function_call"}
    assert {records[f"reporter-{n}"]["spawned_by_tool_call_id"] for n in (1, 2)} == calls
    assert {records[f"reporter-{n}"]["parent_invocation_id"] for n in (1, 2)} == {"root"}
    assert [item.get("role") or item["type"] for item in records["reporter-1"]["conversation"]] == [
        "system", "user", "function_call", "function_call_output", "assistant",
    ]  # fmt: skip


def test_the_usage_counts_all_agents_and_the_turns_those_of_the_orchestrator() -> None:
    """The cost of a rollout is that of all its model calls."""
    result = bench().run(**ROW)

    own = sum(turn[1] + turn[3] for turn in result["_ng_turns"])
    assert len(_scenes) == 6
    assert result["response"]["usage"]["total_tokens"] > own > 0


def test_tokens_of_sub_agents_are_samples_of_their_own() -> None:
    """Each context is a segment; joined they would be a prompt that the model never saw."""
    result = bench(token_ids=True).run(**ROW, _ng_task_index=0, _ng_rollout_index=0)

    rollout = rollout_of(result)
    assert rollout.trainable
    assert sorted(sample.trace for sample in rollout.samples) == ["main", "reporter-1", "reporter-2"]
    assert [len(sample.spans) for sample in rollout.samples] == [2, 2, 2]


def test_runs_of_sub_agents_are_limited() -> None:
    """A model that only delegates would run without end."""
    result = bench(max_sub_agent_runs=1).run(**ROW)

    assert "No more sub-agents" in tool_texts(result["response"])[1]


def test_a_sub_agent_that_does_not_finish_says_so() -> None:
    """The orchestrator must not take a half-done task for a result."""
    script = [{"tool_calls": [{"name": "reporter", "arguments": {"task": "x"}}]}]
    agents = {"reporter": {**SUB_AGENTS["reporter"], "max_steps": 2}}
    loop = [{"tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}]
    agents["reporter"]["model_server"] = {"type": "responses_api_models", "name": "second_model"}

    result = bench([*script, {"text": "Done."}], sub_agents=agents, second_script=loop).run(**ROW)

    assert tool_texts(result["response"]) == ["[reporter-1 ended without a message]"]
    assert result["reward"] == 2.0


def test_tools_can_be_left_to_sub_agents() -> None:
    """With `own_tools: false` the orchestrator can only delegate, also if its model invents a call."""
    result = bench([WEATHER, {"text": "Done."}], own_tools=False).run(**ROW)

    assert json.loads(tool_texts(result["response"])[0])["error"].startswith("There is no tool named 'weather'")
    assert result["reward"] == 0.0


def test_a_name_that_the_environment_uses_is_one_error() -> None:
    """Otherwise one of the two tools would never be called."""
    world = bench(sub_agents={"weather": SUB_AGENTS["reporter"]})

    reply = world.http.post("/run", json=ROW)

    assert reply.status_code == 500
    assert "weather is a tool of the environment and a sub-agent" in reply.text


def test_a_sub_agent_that_compacts_its_context_keeps_its_limit_and_its_call() -> None:
    """Compaction adds turns and records the run itself; neither may lose `max_steps` or the call that began the run."""
    call = {"tool_calls": [{"name": "reporter", "arguments": {"task": "x"}}]}
    agents = {"reporter": {**SUB_AGENTS["reporter"], "max_steps": 2}}
    agents["reporter"]["model_server"] = {"type": "responses_api_models", "name": "second_model"}
    second = [WEATHER, {"text": "Half done."}]

    result = bench([call, {"text": "Done."}], sub_agents=agents, second_script=second, compaction={"at_tokens": 1}).run(
        **ROW
    )

    records = result["ng_agent_observations"]["records"]
    compactions = [each for each in records if each["kind"] == "context_compaction"]
    assert [each["invocation_id"] for each in compactions].count("reporter-1") == 1
    assert not [each for each in compactions if each["invocation_id"] == "reporter-1-segment-2"]
    run = next(each for each in records if each["invocation_id"] == "reporter-1")
    calls = [item["call_id"] for item in result["response"]["output"] if item["type"] == "function_call"]
    assert run["spawned_by_tool_call_id"] == calls[0]
