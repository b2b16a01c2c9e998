"""Tasksets of verifiers 0.4 give the rewards, metrics and turns that its agent gives."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from aiohttp import web
from verifiers.v1.agent import make_agent
from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

from nemo_gym.config.environment_sources import parse_name
from resources_servers.verifiers_v1.episode import HARNESS, prepare
from tests.sources.conftest import ROOT, Evaluation, actions_of, source
from tests.sources.packages import gym_taskset, gym_tool_taskset

pytestmark = pytest.mark.filterwarnings("ignore")  # the package runs in this process and warns
PACKAGES = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'sources' / 'packages'}"}


@pytest.fixture(autouse=True)
def packages(monkeypatch) -> None:
    """The package imports tasksets, and programs of their tools, by the names of their packages."""
    monkeypatch.setenv("PYTHONPATH", PACKAGES["PYTHONPATH"])
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "sources" / "packages"))


async def play_alone(name: str, count: int, policy) -> list[Any]:
    """Play the first tasks with the package's agent against an endpoint that follows a policy; return the traces."""

    async def complete(request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        reply = policy(messages[-1]["content"], sum(one["role"] == "assistant" for one in messages))
        fields = reply if isinstance(reply, dict) else {"text": reply}
        calls = [
            {
                "id": f"{len(messages)}-{position}",
                "type": "function",
                "function": {
                    "name": call["name"],
                    "arguments": call["arguments"]
                    if isinstance(call["arguments"], str)
                    else json.dumps(call["arguments"]),
                },
            }
            for position, call in enumerate(fields.get("tool_calls", ()))
        ]
        message = {"role": "assistant", "content": fields.get("text", ""), **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    prepare()
    client = EvalClientConfig(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", api_key_var="NONE")
    runtime = {"type": "subprocess"}
    config = AgentConfig.model_validate(
        {"model": "m", "harness": {"id": HARNESS}, "runtime": runtime, "client": client.model_dump()}
    )
    taskset = load_taskset(taskset_config_type(name).model_validate({"id": name}))
    async with make_agent(config) as agent:
        traces = [await agent.run(task) for task in taskset.take(count)]
    await runner.cleanup()
    return traces


def outputs_of(record: dict[str, Any]) -> list[str]:
    items = record["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


@pytest.mark.parametrize(
    ("name", "count", "policy"),
    [("gym-taskset", 12, gym_taskset.policy), ("gym-tool-taskset", 3, gym_tool_taskset.policy)],
)
def test_rewards_metrics_and_turns_are_those_of_the_package(evaluation: Evaluation, name, count, policy) -> None:
    """A system prompt, weights, and a server of tools in its own process, one of which raises."""
    chosen = f"{policy.__module__}:{policy.__name__}"
    limit = f"++{parse_name(f'verifiers_v1:{name}?size={count}', [ROOT]).instance}"
    records = evaluation.run(
        [f"verifiers_v1:{name}?size={count}"], "--concurrency", "12",
        f"{limit}.resources_servers.verifiers_v1.step_timeout_seconds=200", GYM_TEST_POLICY=chosen, **PACKAGES,
    )  # fmt: skip

    assert len(records) == count
    for record, trace in zip(records, asyncio.run(play_alone(name, count, policy)), strict=True):
        assert trace.ok, trace.errors
        assert record["reward"] == trace.reward
        assert record["info"]["rewards"] == {key: one.value for key, one in trace.rewards.items()}
        assert record["info"]["metrics"] == trace.metrics
        assert record["info"]["stop_condition"] == trace.stop_condition
        assert actions_of(record) == [one.content for one in trace.assistant_messages if one.content]
        assert outputs_of(record) == [one.content for one in trace.tool_messages]
    assert len({record["reward"] for record in records}) > 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", "lost answer"),
        ("exit", "its process ended with status 7"),
        ("hang", "did not answer within 20 s"),
    ],
)
def test_a_fault_of_the_package_is_a_failure_without_a_reward(
    evaluation: Evaluation, tmp_path: Path, fault, reason
) -> None:
    """The package keeps the rewards that it has so far; they are no rewards of the policy.

    A process that exits or is killed cannot remove its folder, which must not stay in the home folder.
    """
    name = f"verifiers_v1:gym-taskset?size=2&task={{fault: {fault}}}"
    limit = f"++{parse_name(name, [ROOT]).instance}.resources_servers.verifiers_v1.step_timeout_seconds=20"
    with TemporaryDirectory() as folder:  # a short path, for sockets
        places = {"HOME": str(tmp_path), "TMPDIR": folder}
        records = evaluation.run([name], "--max-attempts", "1", limit, may_fail=True, **PACKAGES, **places)

    assert list(tmp_path.glob(".cache/verifiers/runtimes/subprocess/*")) == []
    assert (records, len(evaluation.failed)) == ([], 2)
    assert all(reason in failure["_ng_failure"]["message"] for failure in evaluation.failed)


def test_there_is_no_list_of_ids_because_tasksets_are_packages() -> None:
    """Any name may be one of an installed package."""
    assert source("verifiers_v1").ids == {}
