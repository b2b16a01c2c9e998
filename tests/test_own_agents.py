"""The agents that we ship, started by `gym eval run --agent-type` with real servers and scripted models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.eval.test_run import gym, lines_of

WEATHER = {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
ACTION = {"text": 'Thought: look\nAction: get_weather\nAction Input: {"city": "Oslo"}'}
COLD = {"text": "It is cold in San Francisco; take a jacket."}
STOP = {"text": "Thanks. ###STOP###"}
PREFIX = "{name}.responses_api_agents.{name}"
USER_MODEL = f"++{PREFIX}.user_model_server={{type: responses_api_models, name: user_model}}"
Script = list[dict[str, Any]] | str
CASES: dict[str, tuple[Script, list[str], set[str]]] = {
    "react_agent": ([ACTION, {"text": f"Final Answer: {COLD['text']}"}], [], set()),
    "user_simulation_agent": ([{"text": "Where?"}, WEATHER, COLD], [USER_MODEL], {"root", "user"}),
    "orchestrator_agent": (
        [{"tool_calls": [{"name": "delegate", "arguments": {"task": "x"}}]}, WEATHER, COLD],
        [f"++{PREFIX}.sub_agents.delegate.model_server={{type: responses_api_models, name: user_model}}"],
        {"root", "delegate-1"},
    ),
    "parallel_agent": ([WEATHER, COLD], [f"++{PREFIX}.candidates=2"], {"candidate-1", "candidate-2"}),
    "simple_agent": (
        "responses_api_agents.simple_agent.tests.test_compaction:play",
        [f"++{PREFIX}.compaction.at_tokens=1"],
        {"root", "root-segment-2"},
    ),
}  # fmt: skip
"""By agent: the turns of its model or a function, settings, and the ids of the invocations that it records."""


def model_block(name: str, script: Script) -> dict[str, Any]:
    turns = {"function" if isinstance(script, str) else "script": script}
    return {name: {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", **turns}}}}


@pytest.mark.parametrize("name", CASES)
def test_an_agent_plays_any_environment_with_tools_by_a_flag(name: str, tmp_path: Path) -> None:
    """Objects that travel between processes are not those of one process: only real servers show what is lost."""
    script, settings, invocations = CASES[name]
    config = tmp_path / "models.yaml"
    config.write_text(
        json.dumps(model_block("policy_model", script) | model_block("user_model", [{"text": "Oslo."}, STOP]))
    )
    words = ("eval", "run", "--resources-server", "example_single_tool_call", "--agent-type", name, "--limit", "2")
    settings = [setting.replace("{name}", name) for setting in settings]

    capture = ("+observability_enabled=true", f"+model_call_capture_dir={tmp_path / 'captures'}")

    done = gym(*words, "--config", str(config), *capture, *settings, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    records = lines_of(next((tmp_path / "results").glob("*/rollouts.jsonl")))
    assert len(records) == 2
    for record in records:
        assert record["agent_ref"]["name"] == name
        assert record["response"]["output"][-1]["role"] == "assistant"
        trajectory = record["ng_trajectory"]
        assert {each["invocation_id"] for each in trajectory["invocations"]} == invocations
        assert trajectory["gaps"] == []
        assert all(call["status_code"] == 200 for call in record["ng_model_call_capture"]["calls"])
