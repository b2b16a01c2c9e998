"""Audio named by file."""

import base64
from pathlib import Path
from typing import Any

import pytest

from responses_api_models.openai_model.tests.endpoint import Said, ask, listening
from responses_api_models.vllm_model.tests.support import completion, model


def says(data: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "audio"
    (folder / "clips").mkdir(parents=True)
    (folder / "clips" / "a.wav").write_bytes(b"RIFF")
    (tmp_path / "secret.wav").write_bytes(b"not yours")
    (folder / "link.wav").symlink_to(tmp_path / "secret.wav")
    return folder


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["clips/a.wav", "file://clips/a.wav", "clips/../clips/a.wav"])
async def test_a_named_file_travels_inside_the_request(root: Path, name: str):
    """Datasets stay small, and the endpoint needs no access to our disk."""
    async with listening(chat=Said(completion())) as endpoint:
        body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "?"}, says(name)]}]}
        reply = await ask(model(endpoint.url, audio_root=str(root)), "/v1/responses", body)

    assert reply.status == 200, await reply.text()
    text, audio = endpoint.bodies[0]["messages"][0]["content"]
    kind, _, data = audio["audio_url"]["url"].partition(";base64,")
    assert text == {"type": "text", "text": "?"}
    assert kind.startswith("data:audio/")
    assert base64.b64decode(data) == b"RIFF"


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["../secret.wav", "link.wav", "clips/none.wav", "file:///etc/os-release"])
async def test_nothing_outside_the_folder_is_read(root: Path, name: str):
    """A dataset from the internet must not send our files to an endpoint."""
    async with listening(chat=Said(completion())) as endpoint:
        body = {"messages": [{"role": "user", "content": [says(name)]}]}
        reply = await ask(model(endpoint.url, audio_root=str(root)), "/v1/chat/completions", body)

    assert reply.status == 400
    assert "audio_root" in await reply.text()
    assert endpoint.calls == []


@pytest.mark.asyncio
@pytest.mark.parametrize("settings", [{}, {"audio_root": "."}])
async def test_audio_that_is_already_inside_is_left_alone(settings: dict[str, Any]):
    """Base64 is not a file name."""
    data = base64.b64encode(b"RIFF" * 40).decode()
    async with listening(chat=Said(completion())) as endpoint:
        body = {"messages": [{"role": "user", "content": [says(data)]}]}
        await ask(model(endpoint.url, **settings), "/v1/chat/completions", body)

    assert endpoint.bodies[0]["messages"][0]["content"] == [says(data)]
