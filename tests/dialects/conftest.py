"""Model servers on loopback in front of an endpoint whose answer the test sets, and clients of every dialect."""

import json
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from socket import create_server
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import ServerClient, server_config
from responses_api_models.openai_model.app import SimpleModelServer
from responses_api_models.vllm_model.app import VLLMModel

Json = dict[str, Any]


@dataclass(repr=False)
class FixedEndpoint:
    """An endpoint that answers every request with the same answer, and keeps the requests."""

    response: Json = field(default_factory=dict)
    response_events: list[Json] = field(default_factory=list)
    completion: Json = field(default_factory=dict)
    chunks: list[Json] = field(default_factory=list)
    status: int = 200
    requests: deque[Json] = field(default_factory=lambda: deque(maxlen=10), repr=False)

    def app(self) -> FastAPI:
        app = FastAPI()

        async def answer_responses(request: Request) -> Response:
            return self._answer(await request.json(), self.response, self.response_events)

        async def answer_chat(request: Request) -> Response:
            return self._answer(await request.json(), self.completion, self.chunks, b"data: [DONE]\n\n")

        async def tokenize(request: Request) -> Json:
            self.requests.append(await request.json())
            return {"tokens": [1, 2, 3], "count": 3, "max_model_len": 4096}

        app.post("/v1/responses")(answer_responses)
        app.post("/v1/chat/completions")(answer_chat)
        app.post("/tokenize")(tokenize)
        return app

    def _answer(self, body: Json, whole: Json, events: list[Json], end: bytes = b"") -> Response:
        self.requests.append(body)
        if self.status != 200:
            return JSONResponse({"error": {"message": "the prompt is refused", "code": "bad_prompt"}}, self.status)
        if not body.get("stream") or not events:
            return JSONResponse(whole)
        lines = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        return Response(b"".join(lines) + end, media_type="text/event-stream")


@dataclass(repr=False)
class ModelServers:
    """The endpoint and the addresses of the model servers in front of it."""

    endpoint: FixedEndpoint = field(repr=False)
    roots: dict[str, str]
    clients: dict[tuple[str, str], Any] = field(default_factory=dict, repr=False)

    def client(self, package: str, server: str) -> Any:
        """Return the client of a package for a server; making one takes longer than a request."""
        if (package, server) not in self.clients:
            self.clients[package, server] = self._new_client(package, self.roots[server])
        return self.clients[package, server]

    def _new_client(self, package: str, root: str) -> Any:
        # Imported here, because other tests of this folder run without these packages.
        if package == "openai":
            import openai

            return openai.OpenAI(base_url=f"{root}/v1", api_key="k", max_retries=0)
        if package == "anthropic":
            import anthropic

            return anthropic.Anthropic(base_url=root, api_key="k", max_retries=0)
        from google import genai
        from google.genai import types

        options = types.HttpOptions(base_url=root, retry_options=types.HttpRetryOptions(attempts=1))
        return genai.Client(api_key="k", vertexai=False, http_options=options)


def _free_port() -> int:
    with create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def servers() -> Iterator[ModelServers]:
    endpoint = FixedEndpoint()
    ports = {name: _free_port() for name in ("upstream", "openai_model", "vllm_model")}
    upstream = f"http://127.0.0.1:{ports['upstream']}/v1"
    fields: dict[str, Json] = {
        "openai_model": {"openai_base_url": upstream, "openai_api_key": "k", "openai_model": "m"},
        "vllm_model": {
            "base_url": upstream,
            "api_key": "k",
            "model": "m",
            "return_token_id_information": False,
            "uses_reasoning_parser": True,
        },
    }
    config: Json = {"head_server": {"host": "127.0.0.1", "port": 1}}
    for name, values in fields.items():
        block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": ports[name], **values}
        config[name] = {"responses_api_models": {name: block}}
    head = BaseServerConfig(host="127.0.0.1", port=1)
    client = ServerClient(head_server_config=head, global_config_dict=config)
    apps: Json = {"upstream": endpoint.app()}
    for name, cls in (("openai_model", SimpleModelServer), ("vllm_model", VLLMModel)):
        loaded = server_config(cls, client.global_config_dict, name)
        apps[name] = cls(config=loaded, server_client=client).prepare_webserver(config)
    with ExitStack() as stack:
        for name, app in apps.items():
            server, thread = serve_in_thread(app, host="127.0.0.1", port=ports[name])
            stack.callback(thread.join, 10)
            stack.callback(setattr, server, "should_exit", True)
        servers = ModelServers(endpoint, {name: f"http://127.0.0.1:{ports[name]}" for name in fields})
        yield servers
        for client in servers.clients.values():
            client.close()
