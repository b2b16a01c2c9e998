"""Token capture over HTTP: several workers behind one address, streamed answers in three dialects, and redirects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nemo_gym import training
from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import response_from_events
from nemo_gym.token_id_capture.consumer import build_delivery
from nemo_gym.token_id_capture.store import TokenCaptureStore
from responses_api_models.vllm_model.tests.mock_engine import MockEngine, serving

pytestmark = pytest.mark.asyncio

Json = dict[str, Any]
TURNS = 6
WORKERS = 2
ASSEMBLERS = {
    "chat/completions": completion_from_chunks,
    "messages": message_from_events,
    "responses": response_from_events,
}


@pytest.fixture
async def model_url(tmp_path: Path) -> AsyncIterator[str]:
    """Serve a model in two processes with token capture; yield its address."""
    model = {
        "entrypoint": "app.py", "hosting": "process", "num_workers": WORKERS, "api_key": "k", "model": "small",
        "return_token_id_information": True, "uses_reasoning_parser": False, "transport": "tokens",
    }  # fmt: skip
    tokens = {"enabled": True, "all_agents": True, "dir": str(tmp_path / "tokens")}
    async with serving(MockEngine(lambda turn: f"answer {turn}: the weather")) as engine:
        policy = {"responses_api_models": {"vllm_model": {**model, "base_url": engine.url}}}
        async with training.session({"policy": policy, "token_id_capture": tokens}) as gym:
            block = gym.client.global_config_dict["policy"]["responses_api_models"]["vllm_model"]
            yield f"http://{block['host']}:{block['port']}"


def prefix(rollout: str) -> str:
    return f"/ng-rollout/{rollout}/training-token-capture/v1"


async def post(url: str, body: Json) -> bytes:
    """Send a request on a new connection, so that the kernel chooses the worker."""
    async with aiohttp.ClientSession() as client, client.post(url, json=body) as reply:
        text = await reply.read()
        assert reply.status == 200, text
        return text


async def stream_answer(url: str, dialect: str, turns: list[Json]) -> str:
    """Ask for a streamed answer in a dialect and return its text; every token field is dropped."""
    body = {"model": "m", "stream": True, "input" if dialect == "responses" else "messages": turns}
    events = list(
        sse.decode(await post(f"{url}/{dialect}", body | ({"max_tokens": 99} if dialect == "messages" else {})))
    )
    answer = ASSEMBLERS[dialect](events)
    if dialect == "chat/completions":
        return str(answer["choices"][0]["message"]["content"])
    content = answer["content"] if dialect == "messages" else answer["output"][-1]["content"]
    return str(content[0]["text"])


async def converse(url: str, dialect: str) -> None:
    turns: list[Json] = [{"role": "user", "content": "the weather?"}]
    for _ in range(TURNS):
        text = await stream_answer(url, dialect, turns)
        turns += [{"role": "assistant", "content": text}, {"role": "user", "content": "and then?"}]


def chains(tmp_path: Path, rollout: str) -> Any:
    snapshot = TokenCaptureStore(tmp_path / "tokens").read(rollout)
    return snapshot, build_delivery(snapshot, {}).chains


async def test_streamed_conversations_are_captured_by_whichever_worker_serves_a_call(
    model_url: str, tmp_path: Path
) -> None:
    """Workers share nothing but the files, and a stream carries no token ids: both must not break a boundary."""
    names = {f"{dialect[:4]}-{number}": dialect for dialect in ASSEMBLERS for number in range(4)}
    await asyncio.gather(*(converse(model_url + prefix(name), dialect) for name, dialect in names.items()))

    workers = set()
    for name in names:
        snapshot, [chain] = chains(tmp_path, name)
        assert not snapshot.incomplete, snapshot.reasons
        assert len(chain.calls) == TURNS
        assert [call.extends_parent for call in chain.calls] == [False] + [True] * (TURNS - 1)
        workers |= {call.model_call_id.partition("-")[0] for call in chain.calls}
    assert len(workers) == WORKERS


async def test_a_redirect_keeps_the_capture(model_url: str, tmp_path: Path) -> None:
    """A base URL with a slash at its end is redirected; without the prefix the call would run uncaptured."""
    body = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{model_url}{prefix('r')}/chat/completions/", json=body, allow_redirects=False) as reply,
    ):
        assert reply.status == 307
        assert reply.headers["location"].endswith(f"{prefix('r')}/chat/completions")
    await post(f"{model_url}{prefix('r')}/chat/completions/", body)

    snapshot, [chain] = chains(tmp_path, "r")
    assert len(chain.calls) == 1
    assert not snapshot.incomplete, "the redirect itself generates nothing"
