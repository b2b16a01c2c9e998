"""Environments of OpenEnv play as with its own client, on a running server and on one for each session."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from openenv.core.generic_client import GenericEnvClient

from nemo_gym.config.environment_sources import parse_name
from tests.sources.conftest import ROOT, Evaluation, actions_of, source
from tests.sources.packages import openenv_hunt
from tests.sources.policies import choose

PACKAGE = "tests.sources.packages.openenv_hunt"
HUNT = f"{PACKAGE}:policy"


class Running(uvicorn.Server):
    """A server in a thread."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, log_level="error"))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def stop(self) -> None:
        self.should_exit = True
        self.thread.join(30)


@pytest.fixture
def hunt() -> Iterator[str]:
    server = Running(openenv_hunt.app)
    yield server.url
    server.stop()


@pytest.fixture
def echo() -> Iterator[str]:
    server = Running(openenv_hunt.echo)
    yield server.url
    server.stop()


async def play_alone(url: str, record: dict[str, Any], policy) -> tuple[list[float], bool, list[str]]:
    """Play a row with the package's client; return the reward of each turn, done, and what was shown."""
    async with GenericEnvClient(base_url=url) as client:
        result = await client.reset(seed=record["seed"], **record["arguments"])
        rewards: list[float] = []
        shown = [show(result)]
        while not result.done and len(rewards) < 8:
            reply = policy(shown[-1], len(rewards))
            total = 0.0
            actions = (
                [call["arguments"] for call in reply["tool_calls"]] if isinstance(reply, dict) else [{"message": reply}]
            )
            for action in actions:
                if result.done:
                    break
                try:
                    result = await client.step(action)
                except RuntimeError as error:
                    shown.append(json.dumps({"error": str(error)}))
                    continue
                total += result.reward
                shown.append(show(result))
            rewards.append(total)
        return rewards, result.done, shown


def show(result: Any) -> str:
    fields = result.observation
    return fields["text"] if "text" in fields else json.dumps({"place": fields["place"], "hint": fields["hint"]})


def outputs_of(record: dict[str, Any]) -> list[str]:
    items = record["response"]["output"]
    return [item["output"] for item in items if item["type"] == "function_call_output"]


@pytest.mark.parametrize("size", [24])
def test_a_running_server_gives_the_rewards_of_its_own_client(evaluation: Evaluation, hunt: str, size: int) -> None:
    """Typed actions, invalid ones, two in a turn: the rewards of each turn must be those of the package."""
    records = evaluation.run([f"openenv:{hunt}?size={size}&max_turns=8"], "--concurrency", "24", GYM_TEST_POLICY=HUNT)

    assert len(records) == size
    for record in records:
        rewards, done, shown = asyncio.run(play_alone(hunt, record, openenv_hunt.policy))
        assert (record["step_rewards"], record["terminated"]) == (rewards, done)
        assert outputs_of(record)[: len(shown) - 1] == shown[1:]
        assert record["reward"] == sum(rewards)
        (tool,) = record["responses_create_params"]["tools"]
        assert (tool["name"], sorted(tool["parameters"]["properties"])) == ("step", ["loud", "steps"])
    assert len({record["reward"] for record in records}) > 1


def test_a_package_is_served_for_each_of_64_sessions(evaluation: Evaluation, hunt: str) -> None:
    """Most packages allow one session in a server, so every session has its server, and its seed."""
    names = [f"openenv:{PACKAGE}:app?size=16&max_turns=8"]
    records = evaluation.run(names, "--concurrency", "64", "--num-repeats", "4", GYM_TEST_POLICY=HUNT)

    assert len(records) == 64
    for record in records:
        rewards, done, shown = asyncio.run(play_alone(hunt, record, openenv_hunt.policy))
        assert (record["step_rewards"], record["terminated"]) == (rewards, done)
        assert outputs_of(record)[: len(shown) - 1] == shown[1:]


def test_an_action_of_one_text_is_the_reply_of_the_model(evaluation: Evaluation, echo: str) -> None:
    """Games in text need no tool call; the server allows one session, which concurrency 1 keeps to."""
    records = evaluation.run([f"openenv:{echo}?size=20"], "--concurrency", "1")

    for record in records:
        rewards, done, _ = asyncio.run(play_alone(echo, record, choose))
        assert (record["step_rewards"], record["terminated"], len(actions_of(record))) == (rewards, done, 3)
    assert len(records) == 20


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("raise", "lost goal"), ("exit", "its process ended with status 7"), ("hang", "did not answer within 4 s")],
)
def test_a_fault_of_the_package_is_a_failure_without_a_reward(evaluation: Evaluation, fault, reason) -> None:
    """The server of a package may raise, exit or hang; that says nothing about the policy."""
    name = f"openenv:{PACKAGE}:app?size=2&fault={fault}"
    limit = f"++{parse_name(name, [ROOT]).instance}.resources_servers.openenv.step_timeout_seconds=4"
    records = evaluation.run([name], "--max-attempts", "1", limit, may_fail=True, GYM_TEST_POLICY=HUNT)

    assert (records, len(evaluation.failed)) == ([], 2)
    assert all(reason in failure["_ng_failure"]["message"] for failure in evaluation.failed)


def test_a_server_without_room_is_a_failure_that_says_so(evaluation: Evaluation, echo: str) -> None:
    """A package serves one session by default; a second one must not count as a played episode."""
    records = evaluation.run([f"openenv:{echo}?size=8"], "--max-attempts", "1", "--concurrency", "8", may_fail=True)

    assert len(records) + len(evaluation.failed) == 8
    for failure in evaluation.failed:
        assert "CAPACITY_REACHED" in failure["_ng_failure"]["message"]


def test_there_is_no_list_of_ids_because_environments_are_servers() -> None:
    """Any URL, and any `module:app`, may be one."""
    assert source("openenv").ids == {}
