"""The model servers under test, each at a loopback port of this process, and the endpoint that two of them use."""

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from socket import create_server
from typing import Any

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.serve.rollout_budgets import CLOSE_BUDGET_PATH, Budget
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import ServerClient, server_config
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.scripted_model.app import ScriptedModel
from responses_api_models.vllm_model.app import VLLMModel
from tools.clients.upstream import MODEL, upstream_app

SERVERS = ("scripted_model", "openai_model", "vllm_model")
_CLASSES = {"scripted_model": ScriptedModel, "openai_model": SimpleModelServer, "vllm_model": VLLMModel}


@dataclass(frozen=True)
class RolloutAddress:
    """The address of a model server for one rollout, whose calls are counted."""

    port: int
    rollout_id: str
    budget: Budget

    @property
    def root(self) -> str:
        """The URL without `/v1`."""
        return f"http://127.0.0.1:{self.port}/ng-rollout/{self.rollout_id}/budget/{self.budget}"

    @property
    def base(self) -> str:
        """The URL with `/v1`."""
        return f"{self.root}/v1"

    def close(self) -> dict[str, Any]:
        """Return the counts of the rollout and drop them."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.root}{CLOSE_BUDGET_PATH}", data=b"{}", headers=headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            counts: dict[str, Any] = json.load(reply)
            return counts


@contextmanager
def model_servers() -> Iterator[Mapping[str, int]]:
    """Serve the endpoint and every model server; yield the port of each server by name."""
    ports = {name: _free_port() for name in (*SERVERS, "upstream")}
    upstream = f"http://127.0.0.1:{ports['upstream']}/v1"
    fields: dict[str, dict[str, Any]] = {
        "scripted_model": {"function": "tools.clients.coding_task:play", "model": MODEL},
        "openai_model": {"openai_base_url": upstream, "openai_api_key": "k", "openai_model": MODEL},
        "vllm_model": {
            "base_url": upstream,
            "api_key": "k",
            "model": MODEL,
            "return_token_id_information": True,
            "uses_reasoning_parser": True,
            "transport": "chat",
        },
    }
    config: dict[str, Any] = {"head_server": {"host": "127.0.0.1", "port": 1}}
    for name in SERVERS:
        block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": ports[name], **fields[name]}
        config[name] = {"responses_api_models": {name: block}}
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=1), global_config_dict=config)
    apps: dict[str, Any] = {"upstream": upstream_app()}
    for name, cls in _CLASSES.items():
        loaded = server_config(cls, client.global_config_dict, name)
        apps[name] = cls(config=loaded, server_client=client).prepare_webserver(config)
    serving = [serve_in_thread(app, host="127.0.0.1", port=ports[name]) for name, app in apps.items()]
    try:
        yield {name: ports[name] for name in SERVERS}
    finally:
        for server, _ in serving:
            server.should_exit = True
        for _, thread in serving:
            thread.join(10)


def _free_port() -> int:
    with create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
