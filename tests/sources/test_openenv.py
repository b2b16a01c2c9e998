"""Environments of OpenEnv play as with its own client, on a running server and on one for each session."""

import asyncio
import json
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from openenv.core.generic_client import GenericEnvClient
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from nemo_gym.adapters.episodes import Action
from nemo_gym.config.environment_sources import parse_name
from resources_servers.openenv.episode import OpenEnvEpisode
from tests.sources.conftest import ROOT, Evaluation, actions_of, source
from tests.sources.packages import openenv_hunt
from tests.sources.policies import choose

PACKAGE = "tests.sources.packages.openenv_hunt"
HUNT = f"{PACKAGE}:policy"


class Running(uvicorn.Server):
    """A server in a thread."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(uvicorn.Config(app, log_level="error", **options))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, kwargs={"sockets": [self.listener]})
        self.thread.start()

    def drop_connections(self) -> None:
        """Cut the connection of every client, as a server does that restarts."""
        (listening,) = self.servers
        for connection in list(self.server_state.connections):
            listening.get_loop().call_soon_threadsafe(connection.transport.abort)

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


@pytest.mark.parametrize("size", [12])
def test_a_running_server_gives_the_rewards_of_its_own_client(evaluation: Evaluation, hunt: str, size: int) -> None:
    """Typed actions, invalid ones, two in a turn: the rewards of each turn must be those of the package."""
    records = evaluation.run([f"openenv:{hunt}?size={size}&max_turns=8"], "--concurrency", "12", GYM_TEST_POLICY=HUNT)

    assert len(records) == size
    for record in records:
        rewards, done, shown = asyncio.run(play_alone(hunt, record, openenv_hunt.policy))
        assert (record["step_rewards"], record["terminated"]) == (rewards, done)
        assert outputs_of(record)[: len(shown) - 1] == shown[1:]
        assert record["reward"] == sum(rewards)
        (tool,) = record["responses_create_params"]["tools"]
        assert (tool["name"], sorted(tool["parameters"]["properties"])) == ("step", ["loud", "steps"])
    assert len({record["reward"] for record in records}) > 1


def test_a_package_is_served_for_each_of_24_sessions(evaluation: Evaluation, hunt: str) -> None:
    """Most packages allow one session in a server, so every session has its server, and its seed."""
    names = [f"openenv:{PACKAGE}:app?size=12&max_turns=8"]
    records = evaluation.run(names, "--concurrency", "24", "--num-repeats", "2", GYM_TEST_POLICY=HUNT)

    assert len(records) == 24
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


ROW = {"seed": 1, "arguments": {}}


def test_a_new_connection_is_never_a_continued_episode() -> None:
    """The client connects again without notice, to an environment that was not reset and rewards all the same."""
    server, episode = Running(openenv_hunt.echo), OpenEnvEpisode()
    try:
        episode.start({**ROW, "environment": server.url})
        assert episode.step(Action("I say")).reward == len("I say") / 8
        server.drop_connections()
        asyncio.run_coroutine_threadsafe(episode._socket.wait_closed(), episode._loop).result(30)
        with pytest.raises(ConnectionError, match="closed the connection"):
            episode.step(Action("I say"))
    finally:
        episode.close()
        server.stop()
    assert not episode._thread.is_alive()


class PongRecorder(WebSocketsSansIOProtocol):
    """A connection of a server, which keeps the answers to its pings."""

    pongs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()

    def handle_pong(self, event: Any) -> None:
        super().handle_pong(event)
        self.pongs.put(event)


def test_pings_are_answered_while_the_policy_thinks() -> None:
    """A server closes a connection whose client does not answer, after 40 s by default; a policy may think longer."""
    server, episode = Running(openenv_hunt.echo, ws=PongRecorder, ws_ping_interval=0.05), OpenEnvEpisode()
    try:
        episode.start({**ROW, "environment": server.url})
        for _ in range(4):
            PongRecorder.pongs.get(timeout=20)
        assert episode.step(Action("I say")).reward == len("I say") / 8
    finally:
        episode.close()
        server.stop()


def test_an_environment_that_cannot_start_leaves_no_thread() -> None:
    """The error of the start must come, not one of closing what was never opened."""
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        OpenEnvEpisode().start({**ROW, "environment": "no_such_package:app"})
    assert not any(thread.name.startswith("openenv") for thread in threading.enumerate())


def test_a_server_without_room_is_a_failure_that_says_so(evaluation: Evaluation, echo: str) -> None:
    """A package serves one session by default; a second one must not count as a played episode."""
    records = evaluation.run([f"openenv:{echo}?size=8"], "--max-attempts", "1", "--concurrency", "8", may_fail=True)

    assert len(records) + len(evaluation.failed) == 8
    for failure in evaluation.failed:
        assert "CAPACITY_REACHED" in failure["_ng_failure"]["message"]


def test_there_is_no_list_of_ids_because_environments_are_servers() -> None:
    """Any URL, and any `module:app`, may be one."""
    assert source("openenv").ids == {}
