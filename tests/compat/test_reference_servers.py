"""The reference folders together: rows in, scored rollouts out, one process, no socket.

Agent, environment and model are built from the folders' own YAML files, so the files are tested too.
"""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from nemo_gym import PARENT_DIR
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient, SimpleServer
from nemo_gym.transport import in_process

HOST = "127.0.0.1"
WEATHER = "resources_servers/example_single_tool_call/configs/example_single_tool_call.yaml"
COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"
SCRIPTED = "responses_api_models/scripted_model/configs/scripted_model.yaml"


def server_class(kind: str, implementation: str) -> type[SimpleServer]:
    module = import_module(f"{kind}.{implementation}.app")
    (server,) = {
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, SimpleServer) and value.__module__ == module.__name__
    }
    return server


class Servers:
    """The instances of some YAML files, mounted in memory."""

    def __init__(self, *files: str, first_port: int = 40100, **extra: Any) -> None:
        self.config: dict[str, Any] = dict(extra)
        for file in files:
            self.config.update(yaml.safe_load((PARENT_DIR / file).read_text()))
        instances = [name for name in self.config if name not in extra]
        for port, name in enumerate(instances, first_port):
            self.block(name).update(host=HOST, port=port)
        self.instances = instances

    def block(self, name: str) -> dict[str, Any]:
        (implementations,) = self.config[name].values()
        (block,) = implementations.values()
        return block

    def start(self) -> ServerClient:
        client = ServerClient(
            head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict=OmegaConf.create(self.config)
        )
        for name in self.instances:
            ((kind, implementations),) = self.config[name].items()
            server = server_class(kind, next(iter(implementations)))
            config = server.model_fields["config"].annotation.model_validate({**self.block(name), "name": name})
            running = server(config=config, server_client=client)
            app = running.setup_webserver()
            running.setup_exception_middleware(app)
            in_process.mount(HOST, self.block(name)["port"], app)
        return client

    def stop(self) -> None:
        for name in self.instances:
            in_process.unmount(HOST, self.block(name)["port"])


class Helper(RolloutCollectionHelper):
    """As trainers do it: the client is passed in, without a head server."""

    def __init__(self, client: ServerClient) -> None:
        super().__init__()
        self.client = client

    def setup_server_client(self, head_server_config: Any = None) -> ServerClient:
        return self.client


@pytest.fixture
def start_server() -> Iterator[Callable[[Servers], ServerClient]]:
    running: list[Servers] = []

    def start(servers: Servers) -> ServerClient:
        running.append(servers)
        return servers.start()

    yield start
    for servers in running:
        servers.stop()


async def collect(client: ServerClient, agent: str, data: str, output: Path, **settings: Any) -> list[dict[str, Any]]:
    config = RolloutCollectionConfig(
        agent_name=agent, input_jsonl_fpath=data, output_jsonl_fpath=str(output), **settings
    )
    return await Helper(client).run_from_config(config)


@pytest.mark.asyncio
async def test_the_weather_example_is_collected_as_the_seed_shows_it(start_server, tmp_path):
    """The first thing a user runs: call, answer of the tool, message, reward 1.0, five times."""
    client = start_server(Servers(WEATHER, SCRIPTED))

    results = await collect(
        client,
        "example_single_tool_call_simple_agent",
        "resources_servers/example_single_tool_call/data/example.jsonl",
        tmp_path / "weather.jsonl",
        num_repeats=2,
    )

    assert [result["reward"] for result in results] == [1.0] * 10
    call, output, message = results[0]["response"]["output"]
    assert (call["name"], message["role"]) == ("get_weather", "assistant")
    assert output["output"] == (
        '{"city":"San Francisco","weather_description":"The weather in San Francisco is cold."}'
    )
    (metrics,) = json.loads((tmp_path / "weather_aggregate_metrics.json").read_text())
    assert metrics["key_metrics"]["mean/reward"] == 1.0


@pytest.mark.asyncio
async def test_counters_of_many_rollouts_at_once_do_not_meet(start_server, tmp_path):
    """Each rollout has its own session on the shared environment; the verdicts prove it."""
    servers = Servers(COUNTER, SCRIPTED)
    servers.block("policy_model")["script"] = [
        {"tool_calls": [{"name": "increment_counter", "arguments": {"count": 7}}]},
        {"tool_calls": [{"name": "get_counter_value"}]},
        {"text": "done"},
    ]

    results = await collect(
        start_server(servers),
        "example_session_state_mgmt_simple_agent",
        "resources_servers/example_session_state_mgmt/data/example.jsonl",
        tmp_path / "counter.jsonl",
        num_repeats=8,
    )

    assert len(results) == 40
    assert all(result["final_count"] == result["initial_count"] + 7 for result in results)
    assert {result["reward"] for result in results if result["initial_count"] == 0} == {1.0}
    assert {result["reward"] for result in results if result["initial_count"] != 0} == {0.0}


@pytest.mark.asyncio
async def test_a_failing_model_costs_its_own_rollouts_and_no_reward(start_server, tmp_path):
    """A rollout without an answer is a failure on record, not a zero in the mean."""
    servers = Servers(WEATHER, SCRIPTED)
    servers.block("policy_model")["script"] = [{"fault": {"kind": "status", "status": 401, "message": "wrong key"}}]

    results = await collect(
        start_server(servers),
        "example_single_tool_call_simple_agent",
        "resources_servers/example_single_tool_call/data/example.jsonl",
        tmp_path / "failed.jsonl",
        disable_aggregation=True,
    )

    assert (tmp_path / "failed.jsonl").read_text() == ""
    assert len(results) == 5 and not any("reward" in result for result in results)
    failures = (tmp_path / "failed_failures.jsonl").read_text().splitlines()
    assert len(failures) == 5 and "wrong key" in failures[0]


@pytest.mark.parametrize("patched", [True, False])
@pytest.mark.asyncio
async def test_collection_reads_the_configuration_through_its_own_name(start_server, tmp_path, monkeypatch, patched):
    """Trainers replace `nemo_gym.rollout_collection.get_global_config_dict`; what they put there must count."""
    observed = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "captures")}
    client = start_server(Servers(WEATHER, SCRIPTED, **observed))
    if patched:
        monkeypatch.setattr("nemo_gym.rollout_collection.get_global_config_dict", lambda: OmegaConf.create(observed))

    results = await collect(
        client,
        "example_single_tool_call_simple_agent",
        "resources_servers/example_single_tool_call/data/example.jsonl",
        tmp_path / "observed.jsonl",
        limit=1,
    )

    assert ("ng_model_call_capture" in results[0]) is patched
    if patched:
        assert results[0]["ng_model_call_capture"]["metrics"]["num_calls"] == 2


def test_the_folders_are_complete():
    """A folder without licence, requirements or a test is not one that others can take as a model."""
    folders = [
        "responses_api_agents/simple_agent",
        "resources_servers/example_single_tool_call",
        "resources_servers/example_session_state_mgmt",
        "responses_api_models/openai_model",
        "responses_api_models/scripted_model",
    ]
    for folder in folders:
        root = PARENT_DIR / folder
        assert (root / "requirements.txt").read_text().startswith("-e nemo-gym[dev] @ ../../\n")
        assert "Apache 2.0" in (root / "README.md").read_text()
        assert (root / "tests" / "test_app.py").is_file()
        assert (root / "configs" / f"{root.name}.yaml").is_file()
        kind = root.parent.name
        assert server_class(kind, root.name).HOSTING == "cell"
        if kind == "resources_servers":
            assert len((root / "data" / "example.jsonl").read_text().splitlines()) == 5
