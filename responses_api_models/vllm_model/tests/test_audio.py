"""Audio files that requests name are sent inside the request."""

import base64
from pathlib import Path
from typing import Any

import pytest

from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.tests.support import completion, model


def audio_message(data: str) -> dict[str, Any]:
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
async def test_a_named_file_is_sent_inside_the_request(root: Path, name: str):
    """Datasets stay small, and the endpoint needs no access to the local disk."""
    async with listening(chat=Reply(completion())) as endpoint:
        body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "?"}, audio_message(name)]}]}
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
    """A dataset from the internet must not send local files to an endpoint."""
    async with listening(chat=Reply(completion())) as endpoint:
        body = {"messages": [{"role": "user", "content": [audio_message(name)]}]}
        reply = await ask(model(endpoint.url, audio_root=str(root)), "/v1/chat/completions", body)

    assert reply.status == 400
    assert "audio_root" in await reply.text()
    assert endpoint.calls == []


@pytest.mark.asyncio
@pytest.mark.parametrize("settings", [{}, {"audio_root": "."}])
async def test_inline_audio_is_unchanged(settings: dict[str, Any]):
    """Base64 must not be mistaken for a file name."""
    data = base64.b64encode(b"RIFF" * 40).decode()
    async with listening(chat=Reply(completion())) as endpoint:
        body = {"messages": [{"role": "user", "content": [audio_message(data)]}]}
        await ask(model(endpoint.url, **settings), "/v1/chat/completions", body)

    assert endpoint.bodies[0]["messages"][0]["content"] == [audio_message(data)]
