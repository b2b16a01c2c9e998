"""A mock engine that samples tokens no tokenizer would give, a vLLM model server over it, and agents of many habits."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer
from fastapi import Body
from pydantic import ConfigDict

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.transport import in_process
from nemo_gym.wire.run_seed_verify import BaseRunRequest
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

Json = dict[str, Any]
ROLES = {"system": 3, "user": 4, "assistant": 5, "tool": 6}
BEGIN, END = 1, 2
MODEL_PORT, AGENT_PORT = 61, 62


def canonical_ids(text: str) -> list[int]:
    """Tokenize as a tokenizer would: two characters at a time."""
    return [
        10_000 + sum(ord(char) * 300**index for index, char in enumerate(text[i : i + 2]))
        for i in range(0, len(text), 2)
    ]


def sampled_ids(text: str) -> list[int]:
    """Return ids that the engine samples: one for each character, which `canonical_ids` never gives."""
    return [100 + ord(char) for char in text]


def render_message(message: Json) -> list[int]:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    calls = [
        [call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return [BEGIN, ROLES[message["role"]], *canonical_ids(text + (json.dumps(calls) if calls else "")), END]


class Engine:
    """An endpoint like NeMo RL's vLLM: it splices the ids of the last assistant message, and samples its own tokens."""

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.generations: list[tuple[list[int], list[int]]] = []
        """Prompt and generation of every call."""
        self.failures: list[int] = []
        """Statuses of the next replies."""
        self.with_tokens = True

    def prompt_ids(self, messages: list[Json]) -> list[int]:
        spliced: list[int] = []
        for index in range(len(messages) - 1, -1, -1):
            if messages[index].get("prompt_token_ids") is not None:
                spliced = [*messages[index]["prompt_token_ids"], *messages[index]["generation_token_ids"]]
                messages = messages[index + 1 :]
                break
        return [*spliced, *(token for message in messages for token in render_message(message)), BEGIN, 5]

    def answer(self, body: Json) -> Json:
        messages = body["messages"]
        prompt = self.prompt_ids(messages)
        last = messages[-1]
        text, calls = f"answer {len(self.generations)}", None
        if last["role"] == "user" and body.get("tools"):
            calls = [
                {
                    "id": f"call_{len(self.generations)}",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"b": 1, "a": 2}'},
                }
            ]
            text = ""
        written = text or json.dumps(calls)
        generation = [*sampled_ids(written), END]
        self.generations.append((prompt, generation))
        message: Json = {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}
        if self.with_tokens:
            log_probs = [-0.001 * (index + 1) for index in range(len(generation))]
            message |= {
                "prompt_token_ids": prompt,
                "generation_token_ids": generation,
                "generation_log_probs": log_probs,
            }
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(generation),
            "total_tokens": len(prompt) + len(generation),
        }
        return {
            "id": f"chatcmpl-{len(self.generations)}",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [choice],
            "usage": usage,
        }

    async def handle(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.requests.append(body)
        if self.failures:
            return web.Response(status=self.failures.pop(0), text="out of order")
        return web.Response(body=orjson.dumps(self.answer(body)), content_type="application/json")


class CaptureRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class HabitAgent(SimpleResponsesAPIAgent):
    """Runs the function `habit`, which gets the agent and the row and returns the response of the rollout."""

    habit: Callable[["HabitAgent", Json], Awaitable[Json]]

    async def responses(self, body: Any = Body()) -> Any:
        raise NotImplementedError

    async def run(self, body: CaptureRunRequest = Body()) -> dict:
        row = body.model_dump(exclude_unset=True)
        response = await self.habit(self, row)
        return {**row, "response": response, "reward": 1.0}

    async def chat(self, row: Json, messages: list[Json], **fields: Any) -> tuple[str, Json]:
        """Call the model like a chat SDK, which keeps only the fields it knows; return completion id and message."""
        path = self.url_path_for_run("/v1/chat/completions", row)
        reply = await self.server_client.post("policy", path, json={"model": "m", "messages": messages, **fields})
        await raise_for_status(reply)
        completion = await get_response_json(reply)
        message = completion["choices"][0]["message"]
        return completion["id"], {key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)}

    async def respond(self, row: Json, items: list[Json], **fields: Any) -> Json:
        """Call the model in the Responses dialect, and return the response with all its fields."""
        path = self.url_path_for_run("/v1/responses", row)
        reply = await self.server_client.post("policy", path, json={"input": items, **fields})
        await raise_for_status(reply)
        return await get_response_json(reply)


def output_text(text: str) -> Json:
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def final_response(response_id: str, output: list[Json]) -> Json:
    return {
        "id": response_id,
        "created_at": 0,
        "model": "small",
        "object": "response",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"total_tokens": 1},
    }


class CaptureWorld:
    def __init__(self, engine: Any, config: Json, agent: HabitAgent, model: VLLMModel, client: ServerClient) -> None:
        self.engine, self.config, self.agent, self.model, self.client = engine, config, agent, model, client

    def helper(self) -> RolloutCollectionHelper:
        helper = RolloutCollectionHelper()
        helper.setup_server_client = lambda head_server_config=None: self.client  # type: ignore[method-assign]
        return helper

    async def collect(self, tmp_path: Path, rows: int = 1) -> list[Json]:
        source = tmp_path / "rows.jsonl"
        row = {"responses_create_params": {"input": "hi"}, "agent_ref": {"name": "agent"}}
        source.write_bytes(b"".join(orjson.dumps({**row, "n": n}) + b"\n" for n in range(rows)))
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(source),
            output_jsonl_fpath=str(tmp_path / "out.jsonl"),
            disable_aggregation=True,
            max_rollout_attempts=1,
        )
        return await self.helper().run_from_config(config)


@asynccontextmanager
async def capture_world(
    tokens: Json | None,
    habit: Callable[[HabitAgent, Json], Awaitable[Json]],
    engine: Any = None,
    **model_settings: Any,
) -> AsyncIterator[CaptureWorld]:
    """Run engine (an `Engine` unless given), model server and agent; `tokens` is the block `token_id_capture`."""
    engine = engine or Engine()
    app = web.Application()
    app.router.add_post("/{path:.*}", engine.handle)
    config: Json = {
        "head_server": {"host": "127.0.0.1", "port": 31000},
        "agent": {"responses_api_agents": {"mine": {"entrypoint": "app.py", "host": "127.0.0.1", "port": AGENT_PORT}}},
        "policy": {"responses_api_models": {"mine": {"entrypoint": "app.py", "host": "127.0.0.1", "port": MODEL_PORT}}},
        **({"token_id_capture": tokens} if tokens is not None else {}),
    }
    client = ServerClient(head_server_config=BaseServerConfig(host="127.0.0.1", port=31000), global_config_dict=config)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        fields: Json = {"return_token_id_information": True, "uses_reasoning_parser": False, **model_settings}
        model_config = VLLMModelConfig(
            host="127.0.0.1",
            port=MODEL_PORT,
            entrypoint="app.py",
            name="policy",
            base_url=str(server.make_url("/v1")),
            api_key="k",
            model="small",
            **fields,
        )
        model = VLLMModel(config=model_config, server_client=client)
        agent_config = BaseResponsesAPIAgentConfig(host="127.0.0.1", port=AGENT_PORT, entrypoint="", name="agent")
        agent = HabitAgent(config=agent_config, server_client=client, habit=habit)
        in_process.mount("127.0.0.1", MODEL_PORT, model.prepare_webserver(config))
        in_process.mount("127.0.0.1", AGENT_PORT, agent.prepare_webserver(config))
        try:
            yield CaptureWorld(engine, config, agent, model, client)
        finally:
            in_process.unmount("127.0.0.1", MODEL_PORT)
            in_process.unmount("127.0.0.1", AGENT_PORT)
