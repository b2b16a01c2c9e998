"""Serve the model being trained from the trainer's own process: `serve_policy(model, tokenizer)`.

The engine speaks Chat Completions over HTTP on the loopback interface, with a bearer token, so that the model server
`torch_model` and with it any agent can use it. Replies carry the token ids, log-probs, weight version and finish
reason; a prompt keeps the ids of the turns that the engine generated. Needs torch (the extra `train`).
"""

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import orjson
from aiohttp import web
from torch import Tensor, nn

from nemo_gym.errors import GymError, ModelFailed
from nemo_gym.training.chat_tokens import ChatTokenizer, ParseReply, parse_hermes, render_prompt
from nemo_gym.training.policy import Policy
from nemo_gym.training.torch_engine import Generation, TorchEngine

Json = dict[str, Any]

MAX_BODY_BYTES = 256 * 1024**2
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "frequency_penalty": (0,), "presence_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "stop": ("", []),
}  # fmt: skip
"""Options of sampling that the engine does not have, and their values that change nothing."""
TEMPERATURES = (1e-6, 1e6)
"""The lowest and the highest temperature above 0; beyond them, logits in single precision overflow."""
CLOSE_SECONDS = 5.0
START_SECONDS = 60.0


@dataclass(frozen=True)
class PolicySettings:
    """Limits and defaults of a served policy."""

    context_length: int
    """Tokens of prompt and reply together."""
    max_tokens: int = 256
    """Tokens of a reply, for requests that set no limit."""
    temperature: float = 1.0
    """For requests that set none."""
    request_seconds: float = 600.0
    """Time of one request, pauses included."""


class RequestRefused(GymError):
    """A request that the policy cannot answer as it stands."""

    def __init__(self, problem: str, *, code: str = "invalid_request_error") -> None:
        super().__init__(problem)
        self.api_code = code


class TorchPolicy(Policy):
    """A torch model behind an HTTP endpoint of this process, for use as the policy of a session.

    All methods may be called from any thread. `close` it, or use it as a context manager.
    """

    def __init__(
        self,
        engine: TorchEngine,
        tokenizer: ChatTokenizer,
        *,
        settings: PolicySettings,
        end_ids: Collection[int],
        parse: ParseReply = parse_hermes,
        model_name: str = "policy",
    ) -> None:
        self.engine = engine
        self.settings = settings
        self._tokenizer, self._end_ids, self._parse = tokenizer, frozenset(end_ids), parse
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._run_loop, name="nemo-gym-policy", daemon=True)
        self._thread.start()
        base_url = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_SECONDS)
        super().__init__(base_url, model_name, api_key=secrets.token_urlsafe(24))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def update(self, weights: "nn.Module | Mapping[str, Tensor]", *, version: int) -> None:
        """Copy new weights into the engine between two steps, and set their version.

        Requests in flight continue with the new weights and report both versions; `pause` first to prevent a change
        within a step of the trainer.
        """
        self.engine.update(weights, version)

    async def pause(self) -> None:
        await asyncio.to_thread(self.engine.pause)

    async def resume(self) -> None:
        self.engine.resume()

    async def set_version(self, version: int) -> None:
        await asyncio.to_thread(self.engine.update, None, version)

    async def version(self) -> int | None:
        return self.engine.version

    async def tokens_generated(self) -> int | None:
        return self.engine.tokens_generated

    def close(self) -> None:
        """Stop the endpoint and the engine; requests in flight fail. Idempotent."""
        if not self._thread.is_alive():
            return
        self.engine.close()
        asyncio.run_coroutine_threadsafe(self._stop_listening(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> str:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._authorize])
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/v1/chat/completions", self._complete)
        # A client that disconnects cancels its handler, which cancels the request in the engine.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _stop_listening(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Any) -> web.StreamResponse:
        header = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(header, f"Bearer {self._api_key}".encode()):
            return _error(401, "the bearer token of this policy is missing or wrong", "invalid_api_key")
        response: web.StreamResponse = await handler(request)
        return response

    async def _list_models(self, _request: web.Request) -> web.Response:
        model = {"id": self.model_name, "object": "model", "weight_version": self.engine.version}
        return _json({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = orjson.loads(await request.read())
            return _json(await asyncio.wait_for(self._completion(body), self.settings.request_seconds))
        except orjson.JSONDecodeError:
            return _error(400, "the body is not JSON")
        except RequestRefused as refusal:
            return _error(400, refusal.problem, refusal.api_code)
        except ModelFailed as failure:
            return _error(500, str(failure), "model_failed")
        except TimeoutError:
            limit = self.settings.request_seconds
            return _error(504, f"the policy generated no reply within {limit:g} s", "timeout")

    async def _completion(self, body: Json) -> Json:
        """Answer a Chat Completions request."""
        _check_request(body, self.engine.vocabulary_size)
        has_tools = body.get("tool_choice") != "none"
        tools = body.get("tools") if has_tools else None
        prompt = render_prompt(self._tokenizer, body["messages"], tools, self._end_ids)
        _check_ids("the prompt", prompt, self.engine.vocabulary_size)
        space = self.settings.context_length - len(prompt)
        if space < 1:
            longest = self.settings.context_length
            problem = f"the prompt has {len(prompt)} tokens, and the maximum context length is {longest}"
            raise RequestRefused(problem, code="context_length_exceeded")
        limit = _first_set(body.get("max_completion_tokens"), body.get("max_tokens"), self.settings.max_tokens)
        generation = await asyncio.wrap_future(self._submit(prompt, min(limit, space), body))
        return self._reply(prompt, generation, has_tools=has_tools)

    def _submit(self, prompt: list[int], max_tokens: int, body: Json) -> "Future[Generation]":
        temperature = _first_set(body.get("temperature"), self.settings.temperature)
        return self.engine.submit(prompt, max_tokens=max_tokens, temperature=float(temperature), seed=body.get("seed"))

    def _reply(self, prompt: list[int], generation: Generation, *, has_tools: bool) -> Json:
        """Build the chat completion, with the token fields on its message; without tools, all of it is text."""
        text = str(self._tokenizer.decode(generation.token_ids, skip_special_tokens=True))
        is_cut = generation.finish_reason == "length"
        message: Json = {"role": "assistant", **(self._parse(text) if has_tools else {"content": text})}
        message |= {
            "prompt_token_ids": prompt,
            "generation_token_ids": generation.token_ids,
            "generation_log_probs": generation.log_probs,
            "weight_version": generation.weight_version,
            "finish_reason": generation.finish_reason,
        }
        reason = "tool_calls" if message.get("tool_calls") and not is_cut else generation.finish_reason
        read, written = len(prompt), len(generation.token_ids)
        return {
            "id": f"chatcmpl_{uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model_name,
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }


def serve_policy(
    model: nn.Module,
    tokenizer: ChatTokenizer,
    *,
    context_length: int | None = None,
    max_tokens: int = 256,
    temperature: float = 1.0,
    request_seconds: float = 600.0,
    max_batch_size: int = 256,
    parse: ParseReply = parse_hermes,
    end_ids: Collection[int] = (),
    model_name: str = "policy",
    seed: int = 0,
    version: int = 0,
) -> TorchPolicy:
    """Serve a copy of `model` on a loopback port of this process, and return its policy.

    `model(input_ids=…, attention_mask=…)` returns logits, or an object with `logits`, as models of `transformers` do.
    `parse` reads tool calls from the text of a turn; the default reads `<tool_call>{…}</tool_call>`. A turn ends with
    the tokenizer's end-of-sequence token, those of the model's generation configuration, or one of `end_ids`.
    `context_length` defaults to the one that the model's configuration states.

    Raises:
        ModelFailed: the context length is unknown, or the tokenizer has no end-of-sequence token.
    """
    turn_ends = _end_ids(model, tokenizer) | set(end_ids)
    if not turn_ends:
        raise ModelFailed("the tokenizer has no eos_token_id, so no turn could end", fix="set tokenizer.eos_token")
    settings = PolicySettings(
        context_length=context_length or _context_length(model),
        max_tokens=max_tokens,
        temperature=temperature,
        request_seconds=request_seconds,
    )
    engine = TorchEngine(model, turn_ends, seed=seed, max_batch_size=max_batch_size)
    engine.update(None, version)
    return TorchPolicy(engine, tokenizer, settings=settings, end_ids=turn_ends, parse=parse, model_name=model_name)


def _end_ids(model: nn.Module, tokenizer: ChatTokenizer) -> set[int]:
    """Return the tokens that end a turn: the tokenizer's and those of the model's generation configuration."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return {int(token) for token in [tokenizer.eos_token_id, *ids] if token is not None}


def _context_length(model: nn.Module) -> int:
    config = getattr(model, "config", None)
    length = getattr(model, "context_length", None) or getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        raise ModelFailed("the context length of the model is unknown", fix="pass context_length=…")
    return length


def _check_request(body: Any, vocabulary_size: int) -> None:
    """Refuse what the engine does not do, instead of doing something else or failing the batch of the request.

    Raises:
        RequestRefused: with the reason.
    """
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise RequestRefused("messages: a list of at least one message is needed")
    if (body.get("n") or 1) != 1:
        raise RequestRefused("n: this policy returns one completion for each request")
    if body.get("stream"):
        raise RequestRefused("stream: this policy does not stream")
    for name, neutral in NEUTRAL.items():
        if body.get(name) not in (None, *neutral):
            raise RequestRefused(
                f"{name}: the log-probs would not be those of the policy; only temperature is supported"
            )
    if body.get("tool_choice") not in (None, "auto", "none") or body.get("response_format") not in (None, {}):
        raise RequestRefused("tool_choice, response_format: this policy samples without a grammar")
    _check_numbers(body)
    for message in body["messages"]:
        for name in ("prompt_token_ids", "generation_token_ids"):
            _check_ids(name, message.get(name) or [], vocabulary_size)


def _check_numbers(body: Json) -> None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = body.get(name)
        if limit is not None and (type(limit) is not int or limit < 1):
            raise RequestRefused(f"{name}: {limit!r} is not an integer of at least 1")
    temperature = _first_set(body.get("temperature"), 1.0)
    lowest, highest = TEMPERATURES
    if type(temperature) not in (int, float) or not (temperature == 0 or lowest <= temperature <= highest):
        raise RequestRefused(f"temperature: {temperature!r} is neither 0 nor between {lowest:g} and {highest:g}")


def _check_ids(name: str, ids: Any, vocabulary_size: int) -> None:
    """Refuse ids that the model has no embedding for: it would raise, and fail the other requests of the batch."""
    if not isinstance(ids, list):
        raise RequestRefused(f"{name}: a list of token ids is needed")
    wrong = next((token for token in ids if type(token) is not int or not 0 <= token < vocabulary_size), None)
    if wrong is not None:
        raise RequestRefused(f"{name}: {wrong!r} is not a token id from 0 to {vocabulary_size - 1}")


def _first_set(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _json(body: Json, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, content_type="application/json")


def _error(status: int, problem: str, code: str = "invalid_request_error") -> web.Response:
    return _json({"error": {"message": problem, "type": code, "code": code}}, status)
