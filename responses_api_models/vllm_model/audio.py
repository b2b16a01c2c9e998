"""Audio named by file in a request: read from the configured folder and sent inside the request."""

import base64
import mimetypes
from pathlib import Path
from typing import Any

from fastapi import HTTPException

Json = dict[str, Any]


def names_files(messages: list[Json]) -> bool:
    """Whether any audio part names a file."""
    return any(_reference(part) for message in messages for part in _parts(message))


def with_audio_inline(messages: list[Json], root: Path) -> list[Json]:
    """The conversation with every named audio file as a `data:` URL. Reads files: not for an event loop.

    Raises:
        HTTPException: 400, a file is missing or lies outside `root`.
    """
    told = []
    for message in messages:
        parts = [_inline(part, root) for part in _parts(message)]
        told.append({**message, "content": parts} if parts else message)
    return told


def _parts(message: Json) -> list[Json]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _reference(part: Json) -> str | None:
    """The file an audio part names. Base64 has no dot in it, and a file name here has one."""
    if part.get("type") == "input_audio":
        given = part.get("input_audio", {}).get("data")
    elif part.get("type") == "audio_url":
        given = part.get("audio_url", {}).get("url")
    else:
        return None
    if not isinstance(given, str) or given.startswith(("data:", "http://", "https://")):
        return None
    return given.removeprefix("file://") if given.startswith("file://") or "." in given[-16:] else None


def _inline(part: Json, root: Path) -> Json:
    name = _reference(part)
    if name is None:
        return part
    folder = root.resolve()
    file = (folder / name).resolve()  # also undoes `..`, absolute names and links
    if not file.is_relative_to(folder):
        raise HTTPException(400, f"the audio file {name!r} lies outside audio_root")
    if not file.is_file():
        raise HTTPException(400, f"there is no audio file {name!r} below audio_root")
    kind = mimetypes.guess_type(file.name)[0] or f"audio/{part.get('input_audio', {}).get('format') or 'wav'}"
    url = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"
    return {"type": "audio_url", "audio_url": {"url": url}}
