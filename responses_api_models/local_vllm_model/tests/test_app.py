"""The local vLLM model with a program that has vLLM's command line."""

import asyncio
import os
import select
import socket
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from pydantic import ValidationError

from nemo_gym.errors import ConfigError
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.serve.response_cache import ResponseCache
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import http
from responses_api_models.local_vllm_model.app import LocalVLLMModel, LocalVLLMModelConfig
from responses_api_models.local_vllm_model.engine import EngineFailed, command_line
from responses_api_models.openai_model.tests.endpoint import ask

FAKE = [sys.executable, str(Path(__file__).with_name("fake_vllm.py"))]


@pytest.fixture(autouse=True)
def _no_memory_of_other_tests() -> None:
    http.health.clear()


def model(**settings: Any) -> LocalVLLMModel:
    fields: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 1,
        "entrypoint": "app.py",
        "name": "policy_model",
        "model": "tiny",
        "return_token_id_information": False,
        "uses_reasoning_parser": True,
        "vllm_command": FAKE,
    }
    config = LocalVLLMModelConfig(**(fields | settings))
    return LocalVLLMModel(config=config, server_client=MagicMock(spec=ServerClient, global_config_dict={}))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_vllm_is_started_asked_and_stopped():
    """One command evaluates a model on this machine, and nothing keeps the GPU afterwards."""
    server = model(vllm_serve_kwargs={"max_model_len": 128}, hf_home="models")
    app = server.setup_webserver()
    async with app.router.lifespan_context(app):
        process = server._engine._process
        reply = await ask(server, "/v1/responses", {"input": "Hi"})
        answer = await reply.json()
        assert process is not None and is_running(process.pid)

    assert answer["output"][0]["content"][0]["text"] == "tiny 128"
    assert process.returncode is not None
    assert server._engine._lines[0] == "loading tiny models"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vllm_serve_kwargs": {"fail": True}}, "ended with status 1; last lines of its log:\nloading tiny None\nCUDA"),
        ({"vllm_serve_kwargs": {"hang": True}, "start_timeout_seconds": 2}, "not ready after 2 s"),
    ],
)
async def test_an_engine_that_does_not_start_is_an_error_with_its_log(settings, words):
    """The reason is in the log of the engine: memory, a missing file, a wrong flag."""
    server = model(**settings)
    app = server.setup_webserver()

    with pytest.raises(EngineFailed) as failure:
        async with app.router.lifespan_context(app):
            pass

    assert words in str(failure.value)
    assert server._engine._process is None


async def test_an_engine_that_ends_ends_the_server(monkeypatch):
    """The run starts servers that ended again; a server without its engine would fail every rollout."""
    ended = asyncio.Event()
    statuses: list[int] = []

    def record_exit(status: int) -> None:
        statuses.append(status)
        ended.set()

    monkeypatch.setattr("responses_api_models.local_vllm_model.app.os._exit", record_exit)
    server = model(vllm_serve_kwargs={"worker": True})
    app = server.setup_webserver()
    async with app.router.lifespan_context(app):
        worker = os.pidfd_open(int(server._engine._lines[0].removeprefix("worker ")))
        call = asyncio.create_task(
            ask(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "die"}]})
        )
        async with asyncio.timeout(30):
            await ended.wait()
        call.cancel()
        is_dead = await asyncio.to_thread(select.select, [worker], [], [], 10)
        os.close(worker)

    assert statuses == [1]
    assert is_dead[0], "a worker that outlives vLLM keeps the memory of the GPU"


def test_the_next_run_finds_the_stored_answers(tmp_path):
    """Each run has another port, which says nothing about the answers."""
    config = {"response_cache": True, "cache_dir": str(tmp_path)}
    body = NeMoGymResponseCreateParamsNonStreaming(input="Hi")
    keys = [ResponseCache.from_config(config, model().config)._path_of(body, "r") for _ in range(2)]

    assert keys[0] == keys[1]


def test_the_port_is_reserved_until_vllm_binds_it():
    """vLLM imports for many seconds first; connections and other servers take free ports meanwhile."""
    server = model()

    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", server._engine.port))


async def test_a_line_without_an_end_is_cut():
    """Progress bars write one line of megabytes, which would be in the error."""
    code = "import sys; print('x' * 500_000, flush=True); sys.exit('CUDA out of memory')"
    server = model(vllm_command=[sys.executable, "-c", code])
    app = server.setup_webserver()

    with pytest.raises(EngineFailed, match="CUDA out of memory") as failure:
        async with app.router.lifespan_context(app):
            pass

    assert len(str(failure.value)) < 5000


def test_a_missing_program_is_an_error_with_the_fix():
    """vLLM is not a dependency of this project."""
    with pytest.raises(ConfigError, match="pip install vllm"):
        model(vllm_command=["no-such-vllm", "serve"])


@pytest.mark.parametrize("field", ["base_url", "api_key"])
def test_an_address_is_refused(field):
    """An address belongs to `vllm_model`; here it would be ignored."""
    with pytest.raises(ValidationError):
        model(**{field: "http://127.0.0.1:8000/v1"})


def test_settings_become_flags():
    """Names are those of vLLM's Python API and of its documentation."""
    options = {"tensor_parallel_size": 2, "enforce_eager": True, "enable_prefix_caching": False, "seed": None}
    options |= {"override_generation_config": {"top_k": 1}, "allowed_origins": ["a", "b"]}

    words = command_line(["vllm", "serve"], "m", 7, options, served_name="m")

    assert words == [
        *("vllm", "serve", "m", "--host", "127.0.0.1", "--port", "7", "--served-model-name", "m"),
        *("--tensor-parallel-size", "2", "--enforce-eager", "--no-enable-prefix-caching"),
        *("--override-generation-config", '{"top_k": 1}', "--allowed-origins", "a", "b"),
    ]
