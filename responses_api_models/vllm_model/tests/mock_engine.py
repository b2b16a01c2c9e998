"""A vLLM engine without a model, for tests: tokenizer, chat template, sampling and parsers do what real ones do.

- It samples tokens that its tokenizer would not choose (single characters where a word is one token).
- Its chat template writes tool calls with other spaces and in another order than the model, and can leave out earlier
  thoughts; a reasoning parser and a tool parser read the answers.
- The log-probability of a token depends on every token before it, so a trainer that sees other tokens gets others.
- It can splice by itself (as NeMo RL's does), lack the token transport, limit the context, and answer with faults.

`python -m responses_api_models.vllm_model.tests.mock_engine PORT` serves one that asks for the weather three times.
"""

import json
import re
import sys
import zlib
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

Json = dict[str, Any]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
WORDS = [
    "assistant",
    "system",
    "user",
    "tool",
    "weather",
    "name",
    "arguments",
    "city",
    '": "',
    '{"',
    '"}',
    " the ",
    "11",
]
VOCABULARY = [*SPECIAL, *WORDS, *(chr(code) for code in range(256))]
IDS = {token: number for number, token in enumerate(VOCABULARY)}
IM_START, IM_END = IDS["<|im_start|>"], IDS["<|im_end|>"]
PIECES = re.compile("|".join(map(re.escape, [*SPECIAL, *WORDS])) + "|.", re.DOTALL)
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def encode(text: str) -> list[int]:
    """Return the canonical tokens of a text: whole words where the vocabulary has them."""
    return [IDS[piece] for piece in PIECES.findall(text)]


def sample(text: str) -> list[int]:
    """Return the tokens that the model samples for a text: special tokens, and single characters otherwise."""
    return [
        number
        for piece in PIECES.findall(text)
        for number in ([IDS[piece]] if piece in SPECIAL else [IDS[character] for character in piece])
    ]


def decode(ids: list[int]) -> str:
    return "".join(VOCABULARY[number] for number in ids)


def log_probs(prompt: list[int], generated: list[int]) -> list[float]:
    """Return the log-probabilities of tokens; each depends on all tokens before it."""
    state = zlib.crc32(array("I", prompt).tobytes())
    numbers = []
    for token in generated:
        state = zlib.crc32(array("I", [token]).tobytes(), state)
        numbers.append(-(state % 4000) / 1000 - 0.001)
    return numbers


@dataclass
class MockEngine:
    """The engine; tests set its attributes between calls."""

    answers: Callable[[int], str]
    """The text of an answer, by the number of answers in the conversation so far."""
    style: str = "beside"
    """Where the chat endpoint reports tokens: `message`, `beside` (`return_token_ids`) or `log_probs`."""
    splices: bool = False
    scale_out: bool = True
    keeps_thoughts: bool = True
    answer_start: str = "<|im_start|>assistant\n"
    max_model_len: int = 100_000
    version: str = "default"
    fault: Callable[[Json], None] | None = None
    """Changes each reply that has tokens."""
    calls: list[tuple[str, int, Json]] = field(default_factory=list)
    """Path, bytes and body of each request."""
    url: str = ""

    def bytes_sent(self) -> int:
        return sum(size for _, size, _ in self.calls)

    def render_text(self, messages: list[Json], tools: list[Json] | None = None, *, start: bool = True) -> str:
        """Write a conversation as the chat template does."""
        names = [tool["function"]["name"] for tool in tools or []]
        text = f"<|im_start|>system\nTools: {' '.join(names)}<|im_end|>\n" if names else ""
        last_question = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=0)
        for index, message in enumerate(messages):
            content = message.get("content") or ""
            parts = content if isinstance(content, list) else [{"text": content}]
            content = "".join(part["text"] for part in parts)
            thought = message.get("reasoning") or message.get("reasoning_content")
            if thought and (self.keeps_thoughts or index > last_question):
                content = f"<think>{thought}</think>{content}"
            for call in message.get("tool_calls") or []:
                function = call["function"]
                written = {"name": function["name"], "arguments": json.loads(function["arguments"])}
                content += f"<tool_call>\n{json.dumps(written)}\n</tool_call>"
            role = "user" if message["role"] == "tool" else message["role"]
            text += f"<|im_start|>{role}\n{content}<|im_end|>\n"
        return text + (self.answer_start if start else "")

    def render_ids(self, body: Json) -> list[int]:
        ids = encode(
            self.render_text(body["messages"], body.get("tools"), start=body.get("add_generation_prompt", True))
        )
        last = next((message for message in reversed(body["messages"]) if "generation_token_ids" in message), None)
        if not (self.splices and last):
            return ids
        upto = body["messages"][: body["messages"].index(last) + 1]
        before = encode(self.render_text(upto, body.get("tools"), start=False))
        return last["prompt_token_ids"] + last["generation_token_ids"] + ids[len(before) - 1 :]

    def generate(self, prompt: list[int], max_tokens: int | None, answer: str) -> tuple[list[int], str]:
        space = self.max_model_len - len(prompt)
        generated = [*sample(answer), IM_END][: min(space, max_tokens or space)]
        return generated, "stop" if generated[-1:] == [IM_END] else "length"

    def parse(self, ids: list[int], tools: Any) -> Json:
        """Split generated tokens into reasoning, text and tool calls."""
        text = decode(ids).removesuffix("<|im_end|>")
        message: Json = {"role": "assistant"}
        if thought := THOUGHT.search(text):
            message["reasoning"] = thought[1]
            text = text.replace(thought[0], "", 1)
        calls = CALL.findall(text) if tools else []
        message["tool_calls"] = [
            {
                "id": f"call-{zlib.crc32(repr((ids, index)).encode())}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for index, call in enumerate(map(json.loads, calls))
        ]
        content = CALL.sub("", text) if calls else text
        return {**message, "content": content or (None if calls else "")}

    def too_long(self, length: int) -> web.Response | None:
        if length < self.max_model_len:
            return None
        problem = f"This model's maximum context length is {self.max_model_len} tokens. Your prompt has {length}."
        return web.json_response({"error": {"message": problem, "code": 400}}, status=400)

    def reply(self, reply: Json) -> web.Response:
        if self.fault is not None:
            self.fault(reply)
        return web.Response(body=json.dumps(reply).encode(), content_type="application/json")  # writes NaN, as vLLM

    def count_answers(self, messages: list[Json]) -> int:
        return sum(message["role"] == "assistant" for message in messages)

    async def chat(self, body: Json) -> web.Response:
        prompt = self.render_ids(body)
        if refusal := self.too_long(len(prompt)):
            return refusal
        ids, finish = self.generate(prompt, body.get("max_tokens"), self.answers(self.count_answers(body["messages"])))
        numbers = log_probs(prompt, ids)
        message = self.parse(ids, body.get("tools"))
        names = [f"token_id:{number}" if self.style == "log_probs" else decode([number]) for number in ids]
        entries = [
            {"token": name, "logprob": value, "bytes": None, "top_logprobs": []}
            for name, value in zip(names, numbers, strict=True)
        ]
        choice: Json = {"index": 0, "message": message, "finish_reason": finish, "logprobs": {"content": entries}}
        if finish == "stop" and message["tool_calls"]:
            choice["finish_reason"] = "tool_calls"
        reply: Json = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        reply |= {"choices": [choice], "usage": usage(prompt, ids)}
        if self.style == "beside" and body.get("return_token_ids"):
            reply["prompt_token_ids"], choice["token_ids"] = prompt, ids
        elif self.style == "message":
            fields = {"prompt_token_ids": prompt, "generation_token_ids": ids, "generation_log_probs": numbers}
            message |= fields
        return self.reply(reply)

    async def render(self, body: Json) -> web.Response:
        ids = self.render_ids({**body, "messages": [dict(message) for message in body["messages"]]})
        if refusal := self.too_long(len(ids)):
            return refusal
        sampling = {"max_tokens": body.get("max_tokens") or self.max_model_len - len(ids), "logprobs": 0}
        if body.get("tool_choice") == "required" or (body.get("response_format") or {}).get("type", "text") != "text":
            sampling["structured_outputs"] = {"json_object": True}
        turn = self.count_answers(body["messages"])  # the mock's model knows its script by the turn
        return web.json_response(
            {"request_id": f"turn-{turn}", "token_ids": ids, "sampling_params": sampling, "model": body["model"]}
        )

    async def inference(self, body: Json) -> web.Response:
        prompt = body["token_ids"]
        if refusal := self.too_long(len(prompt)):
            return refusal
        turn = int(body["request_id"].removeprefix("turn-"))
        ids, finish = self.generate(prompt, body["sampling_params"].get("max_tokens"), self.answers(turn))
        entries = [
            {"token_id": number, "logprob": value} for number, value in zip(ids, log_probs(prompt, ids), strict=True)
        ]
        spans = [{"version": self.version, "start": 0, "end": len(ids)}]
        choice = {"index": 0, "finish_reason": finish, "stop_reason": None, "token_ids": ids}
        choice |= {"logprobs": {"content": entries}, "weight_versions": spans, "routed_experts": None}
        return self.reply({"request_id": "g", "choices": [choice], "usage": usage(prompt, ids)})

    async def derender(self, body: Json) -> web.Response:
        (choice,) = body["generate_response"]["choices"]
        message = self.parse(choice["token_ids"], body["chat_request"].get("tools"))
        entries = (choice.get("logprobs") or {}).get("content")
        if entries:
            texts = [{"token": decode([entry["token_id"]]), "bytes": None, "top_logprobs": []} for entry in entries]
            entries = [text | {"logprob": entry["logprob"]} for text, entry in zip(texts, entries, strict=True)]
        parsed = {"index": 0, "message": message, "finish_reason": choice["finish_reason"], "logprobs": None}
        parsed["logprobs"] = {"content": entries} if entries else None
        head = {"id": f"g-{len(self.calls)}", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**head, "choices": [parsed]})

    async def tokenize(self, body: Json) -> web.Response:
        return web.json_response({"tokens": self.render_ids(body)})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.calls.append((request.path, len(data), orjson.loads(data)))
        routes = {"/v1/chat/completions": self.chat, "/tokenize": self.tokenize}
        if self.scale_out:
            routes |= {"/v1/chat/completions/render": self.render, "/v1/chat/completions/derender": self.derender}
            routes |= {"/inference/v1/generate": self.inference}
        handler = routes.get(request.path)
        return await handler(self.calls[-1][2]) if handler else web.json_response({"detail": "Not Found"}, status=404)


def usage(prompt: list[int], generated: list[int]) -> Json:
    counts = {"prompt_tokens": len(prompt), "completion_tokens": len(generated)}
    return {**counts, "total_tokens": sum(counts.values())}


@asynccontextmanager
async def serving(engine: MockEngine) -> AsyncIterator[MockEngine]:
    """Serve an engine on loopback."""
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/{path:.*}", engine.handle)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        engine.url = str(server.make_url("/v1"))
        yield engine


def weather_script(turn: int) -> str:
    """Call the tool of `example_single_tool_call` in three turns, then answer."""
    call = '<tool_call>{"arguments": {"city":"Bern"},"name":"get_weather"}</tool_call>'
    return f"<think>turn {turn}</think>{call}" if turn < 3 else "Take the coat."


if __name__ == "__main__":
    app = web.Application(client_max_size=2**30)
    app.router.add_post("/{path:.*}", MockEngine(weather_script).handle)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
