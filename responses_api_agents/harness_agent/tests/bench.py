"""A harness agent, a scripted model at a real address, and the environment `coding_task`, for tests."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from fastapi import Request

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import ServerClient, server_config
from nemo_gym.transport import http_sessions, in_process
from resources_servers.coding_task.app import CodingTaskServer
from resources_servers.coding_task.generate import row
from resources_servers.coding_task.problems import MERGE
from responses_api_agents.harness_agent.app import HarnessAgent, HarnessRunRequest
from responses_api_models.scripted_model.app import ScriptedModel

HOST = "127.0.0.1"
SOLVER = {"function": "resources_servers.coding_task.scripted_solver:play"}
PROGRAM = (Path(__file__).parent / "program.py").read_text()
TASK = row(MERGE, 0)


def stub_harness(mode: str = "good", **fields: Any) -> dict[str, Any]:
    """Return the harness of `program.py`."""
    return {
        "command": ["python3", "{home}/program.py", mode, "{prompt}"],
        "dialect": "chat",
        "env": {"OPENAI_BASE_URL": "{base}"},
        "files": {"program.py": PROGRAM},
        "final_text": {"stdout": "last_json_line", "field": "result.text"},
        **fields,
    }


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])


@asynccontextmanager
async def harness_agent(
    harness: Mapping[str, Any], *, model: Mapping[str, Any] = SOLVER, **settings: Any
) -> AsyncIterator[HarnessAgent]:
    """Yield an agent whose environment is in this process and whose model is served over HTTP."""
    ports = {name: free_port() for name in ("model", "env", "agent")}
    refs = {"resources_server": "resources_servers", "model_server": "responses_api_models"}
    names = {"resources_server": "env", "model_server": "model"}
    fields = {key: {"type": kind, "name": names[key]} for key, kind in refs.items()}
    blocks: dict[str, dict[str, Any]] = {
        "model": {"responses_api_models": {"scripted_model": dict(model)}},
        "env": {"resources_servers": {"coding_task": {"sandbox": {"local": {}}}}},
        "agent": {"responses_api_agents": {"harness_agent": {**fields, "harness": dict(harness), **settings}}},
    }
    for name, kinds in blocks.items():
        for kind in kinds.values():
            for block in kind.values():
                block |= {"entrypoint": "app.py", "host": HOST, "port": ports[name]}
    client = ServerClient(
        head_server_config=BaseServerConfig(host=HOST, port=1), global_config_dict={**blocks, "head_server": {}}
    )
    scripted = ScriptedModel(config=server_config(ScriptedModel, blocks, "model"), server_client=client)
    server, thread = serve_in_thread(scripted.prepare_webserver(blocks), host=HOST, port=ports["model"])
    env = CodingTaskServer(config=server_config(CodingTaskServer, blocks, "env"), server_client=client)
    agent = HarnessAgent(config=server_config(HarnessAgent, blocks, "agent"), server_client=client)
    app = env.setup_webserver()
    env.setup_exception_middleware(app)
    in_process.mount(HOST, ports["env"], app)
    try:
        yield agent
    finally:
        await agent.aclose()
        await env.aclose()
        in_process.unmount(HOST, ports["env"])
        await http_sessions.close_current_session()
        server.should_exit = server.force_exit = True  # a call of a killed program may still be open
        await asyncio.to_thread(thread.join, 10)


async def run_task(agent: HarnessAgent, task: Mapping[str, Any] = TASK) -> dict[str, Any]:
    """Run one rollout and return its result."""
    body = HarnessRunRequest.model_validate({**task, "_ng_task_index": 0, "_ng_rollout_index": 0})
    result = await agent.run(Mock(spec=Request, cookies={}), body)
    fields: dict[str, Any] = result.model_dump(mode="json")
    return fields
