"""`eval run --no-serve`: rollouts that run in somebody else's processes can still be asked what they wait for."""

import asyncio
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from nemo_gym.cli.eval_session import connected
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.launch.run import Run
from nemo_gym.rollouts.flight import Flight
from nemo_gym.rollouts.key import RolloutKey

ROOT = Path(__file__).resolve().parents[2]
STALLS = {"script": [{"text": "never", "fault": {"kind": "stall"}}]}


def configuration() -> Any:
    place = {"entrypoint": "app.py", "host": "127.0.0.1", "port": -1}
    agent = {
        "resources_server": {"type": "resources_servers", "name": "sums"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return OmegaConf.create(
        {
            "head_server": {"host": "127.0.0.1", "port": 0},
            "sums": {"resources_servers": {"example_single_tool_call": {**place, "domain": "other"}}},
            "agent": {"responses_api_agents": {"simple_agent": {**place, **agent}}},
            "policy_model": {"responses_api_models": {"scripted_model": {**place, **STALLS}}},
        }
    )


async def test_the_head_of_running_servers_tells_which_call_a_rollout_waits_for(tmp_path: Path) -> None:
    config = configuration()
    async with Run(config, [ROOT], links=False, log_dir=tmp_path) as run:
        head = BaseServerConfig.model_validate(dict(run.config["head_server"]))
        session = await asyncio.to_thread(connected, head)
        row = {"responses_create_params": {"input": "hi"}, "_ng_task_index": 7, "_ng_rollout_index": 2}
        asking = asyncio.create_task(session.client.post(server_name="agent", url_path="/run", json=row))
        flights = [Flight(RolloutKey(7, 2), "agent", 9.0), Flight(RolloutKey(8, 0), "agent", 9.0)]
        try:
            async with asyncio.timeout(30):
                while not (told := await session.waiting(flights)):
                    assert not asking.done(), (await asking).status
                    await asyncio.sleep(0.02)
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    assert told == {"7-2": "policy_model /v1/responses"}


async def test_a_head_of_another_version_knows_nothing() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    config = b'"{}"'

    async def configured(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readline()).startswith(b"GET /global_config_dict_yaml"):
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(config), config)
            )
            writer.close()
        else:
            await answer(reader, writer)

    async with await asyncio.start_server(configured, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        session = await asyncio.to_thread(connected, BaseServerConfig(host="127.0.0.1", port=port))
        assert await session.waiting([Flight(RolloutKey(7, 2), "agent", 9.0)]) == {}
